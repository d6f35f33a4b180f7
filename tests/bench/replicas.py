"""Compares calls of a replica on Ray with those of the plain server on the same machine.

    PYTHONPATH=tests python -m bench.replicas [--json FILE]

A cluster of a head and one node is made of network namespaces. A plain server and one replica run
on the node, with the same flags; a third machine calls both in turn, round by round, over the same
link. Needs root and Ray. The ratio is the plain server's median time over the replica's: 1 is as
fast.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from bench.rounds import Pace, samples
from gradwire import Client, Item, ops
from raycluster.nodes import ray_cluster

_FLAGS = ("--insecure", "--backend", "numpy_cpu", "--compute-threads", "1", "--log-level", "error")
_NODE, _PORT = 2, 50051
_PACE = Pace(rounds=30, sample_s=0.2, warm_s=0.05, budget_s=60.0)
_COPY = ops.DmlResample(interpolation_mode="linear")
_HALVE = ops.InterpolateBackward(mode="bilinear", data_format="NCX")
_MANY = 200


@dataclass(frozen=True, slots=True)
class _Contestant:
    name: str
    run: Callable[[], object]


def _loads(client: Client) -> dict[str, Callable[[], object]]:
    """Return what is called, by name."""
    small = np.ones((1, 1, 16, 16), np.float32)
    large = np.ones((16, 1024, 256), np.float32)
    items = [Item(_HALVE, small, (1, 1, 8, 8))] * _MANY
    return {
        "unary, 1 KiB": partial(client.evaluate, _HALVE, small, output_shape=(1, 1, 8, 8)),
        f"{_MANY} of evaluate_many": lambda: sum(1 for _ in client.evaluate_many(items)),
        "stream, 16 MiB each way": partial(client.evaluate, _COPY, large, output_shape=large.shape),
    }


def compare(plain: str, replica: str) -> dict[str, dict[str, float]]:
    """Call both; return the medians in ms and the ratio, by load."""
    report: dict[str, dict[str, float]] = {}
    with Client(plain) as of_plain, Client(replica) as of_replica:
        both = _loads(of_plain), _loads(of_replica)
        for name in both[0]:
            pair = [
                _Contestant(title, loads[name])
                for title, loads in zip(("plain", "replica"), both, strict=True)
            ]
            taken = samples(pair, {one.name: _timed(one.run) for one in pair}, _PACE)
            told = {title: statistics.median(times) for title, times in taken.items()}
            report[name] = {f"{title}_ms": round(s * 1e3, 3) for title, s in told.items()}
            report[name]["ratio"] = round(told["plain"] / told["replica"], 3)
    return report


def _timed(run: Callable[[], object]) -> float:
    run()
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def measure() -> dict[str, dict[str, float]]:
    """Make the cluster, and compare on it."""
    with ray_cluster(nodes=1, cpus=1) as cluster:
        target = cluster.command("up", "--address", cluster.head, "--", *_FLAGS).strip()
        plain = f"{cluster.machines.address(_NODE)}:{_PORT}"
        words = (sys.executable, "-m", "gradwire_server", "--address", plain, *_FLAGS)
        server = cluster.start(_NODE, *words)
        assert server.stdout is not None
        server.stdout.readline()
        told = cluster.run(
            cluster.caller, sys.executable, "-m", "bench.replicas", "--compare", plain, target
        )
        server.terminate()
        server.wait()
        cluster.command("down", "--address", cluster.head)
    report: dict[str, dict[str, float]] = json.loads(told)
    return report


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument(
        "--compare", nargs=2, metavar=("PLAIN", "REPLICA"), help="two targets that are there"
    )
    arguments = parser.parse_args()
    report = compare(*arguments.compare) if arguments.compare else measure()
    text = json.dumps(report, indent=2)
    sys.stdout.write(text + "\n")
    if arguments.json:
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
