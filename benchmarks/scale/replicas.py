"""Comparison of a replica on Ray with the plain server.

    python -m benchmarks scale-ray [--json FILE]

A cluster of a head and one node is made of network namespaces. Two plain servers and one replica
run on the node, with the same flags; a third machine calls all in turn, round by round, over the
same link. Needs root and Ray. Figures are a call's median time, and the processor time that its
server took, both in ms. A ratio is the plain server's figure over the other's: 1 is as fast. The
second plain server, the control, shows the noise.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import numpy as np

from benchmarks import machine
from benchmarks.rounds import Pace, samples
from benchmarks.servers import Server
from gradwire import Client, Item, ops
from raycluster.check import ray_cluster

_FLAGS = ("--insecure", "--backend", "numpy_cpu", "--compute-threads", "1", "--log-level", "error")
_NODE, _PORT = 2, 50051
_PACE = Pace(rounds=30, sample_s=0.2, warm_s=0.05, budget_s=60.0)
_COPY = ops.DmlResample(interpolation_mode="linear")
_HALVE = ops.InterpolateBackward(mode="bilinear", data_format="NCX")
_MANY = 200


class _CalledServer:
    """One server called in one way.

    Counts its calls and their cost.
    """

    def __init__(self, name: str, server: Server, call: Callable[[], object]) -> None:
        self.name = name
        self._server = server
        self._call = call
        self._calls = 0
        self._began_s = self._server.cpu_s()

    def run(self) -> None:
        """Call once."""
        self._call()
        self._calls += 1

    @property
    def cpu_s(self) -> float:
        """Seconds of processor time of the server for each call so far."""
        return (self._server.cpu_s() - self._began_s) / self._calls


def _loads(client: Client) -> dict[str, Callable[[], object]]:
    """Return the functions to call, by name."""
    small = np.ones((1, 1, 16, 16), np.float32)
    large = np.ones((16, 1024, 256), np.float32)
    items = [Item(_HALVE, small, (1, 1, 8, 8))] * _MANY
    return {
        "unary, 1 KiB": partial(client.evaluate, _HALVE, small, output_shape=(1, 1, 8, 8)),
        f"{_MANY} of evaluate_many": lambda: sum(1 for _ in client.evaluate_many(items)),
        "stream, 16 MiB each way": partial(client.evaluate, _COPY, large, output_shape=large.shape),
    }


def compare(servers: Sequence[str]) -> dict[str, dict[str, float]]:
    """Call servers in turn; return figures by load.

    Each server is written NAME=TARGET=PID, the plain one first.
    """
    given = [server.split("=") for server in servers]
    clients = [Client(target) for _, target, _ in given]
    calls = [_loads(client) for client in clients]
    report: dict[str, dict[str, float]] = {}
    for load in calls[0]:
        all_of_them = [
            _CalledServer(name, Server(target, int(pid)), by_load[load])
            for (name, target, pid), by_load in zip(given, calls, strict=True)
        ]
        taken = samples(all_of_them, {one.name: _timed(one.run) for one in all_of_them}, _PACE)
        wall = {one.name: statistics.median(taken[one.name]) for one in all_of_them}
        cpu = {one.name: one.cpu_s for one in all_of_them}
        report[load] = _figures(wall, "ms") | _figures(cpu, "cpu_ms")
    for client in clients:
        client.close()
    return report


def _figures(seconds: Mapping[str, float], unit: str) -> dict[str, float]:
    plain = next(iter(seconds.values()))
    found = {f"{name}_{unit}": round(one * 1e3, 3) for name, one in seconds.items()}
    ratios = {
        f"{name}_{unit}_ratio": round(plain / one, 3)
        for name, one in seconds.items()
        if one is not plain
    }
    return found | ratios


def _timed(run: Callable[[], object]) -> float:
    run()
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def measure() -> dict[str, dict[str, float]]:
    """Make the cluster, and compare on it."""
    with ray_cluster(nodes=1, cpus=1) as cluster, ExitStack() as stack:
        target = cluster.command("up", "--address", cluster.head, "--", *_FLAGS).strip()
        told = json.loads(cluster.command("status", "--json", "--address", cluster.head))
        servers = [f"replica={target}={told['replicas'][0]['pid']}"]
        for name, port in (("control", _PORT + 1), ("plain", _PORT)):
            address = f"{cluster.machines.address(_NODE)}:{port}"
            words = (sys.executable, "-m", "gradwire_server", "--address", address, *_FLAGS)
            server = stack.enter_context(cluster.start(_NODE, *words))
            stack.callback(server.terminate)
            assert server.stdout is not None
            server.stdout.readline()
            servers.insert(0, f"{name}={address}={server.pid}")
        compared = cluster.run(
            cluster.caller, sys.executable, "-m", "benchmarks", "scale-ray", "--compare", *servers
        )
        report: dict[str, dict[str, float]] = json.loads(compared)
        cluster.command("down", "--address", cluster.head)
    return report


def main(argv: list[str] | None = None) -> int:
    """Measure, and print the figures."""
    parser = machine.parser("scale-ray", __doc__)
    parser.add_argument("--compare", nargs="+", help="servers that run, NAME=TARGET=PID each")
    arguments = parser.parse_args(argv)
    report = compare(arguments.compare) if arguments.compare else measure()
    print(json.dumps(report, indent=2))
    machine.write(arguments.json, report)
    return 0
