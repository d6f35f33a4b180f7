"""One evaluation by 1, 2 and 4 servers in the same rounds.

    unshare -rn python -m benchmarks scale links [--rate 200mbit] [--rounds N] [--json FILE]
    python -m benchmarks scale compute|loopback [--rounds N] [--json FILE]

links     each server behind a link of its own with this rate each way; the client's is not bounded
compute   servers with the NumPy backend, one thread each, and an operator that takes them long
          (Lanczos along four axes, float16)
loopback  the same servers, and an operator that takes them less than the way does

slices: (8, 64, 112, 112) to (8, 64, 56, 56) but for compute, cut between outer slices. rows: the
outermost axis is resized, cut between rows. Results of all are compared, bit by bit. A speed-up is
that of a round, medians are of rounds; `model` is the prediction of scale-model. In all stages but
the first, servers share a machine: the processor time of the busiest one estimates the time on
machines of their own. `best` are the shortest times of all rounds.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from benchmarks import machine
from benchmarks.scale.links import fleet
from benchmarks.scale.model import Model, Rates, simulate
from benchmarks.servers import OURS, Server, started
from benchmarks.wire.loads import OPERATOR, Array
from benchmarks.wire.rounds import LARGE, LARGE_RESULT, numbers
from gradwire import Client, ops

COUNTS: tuple[int, ...] = (1, 2, 4)
_FLAGS = ("--backend", "numpy_cpu", "--compute-threads", "1", "--no-warm-up")
_LOCAL = (*OURS, *_FLAGS)
# Payload of a full Ethernet frame: headers are the rest, and count against a link's rate.
_PAYLOAD = 1448 / 1514
_RATES = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


@dataclass(frozen=True, slots=True)
class Problem:
    """An evaluation to split."""

    operator: ops.Operator
    source: tuple[int, ...]
    result: tuple[int, ...]
    dtype: str = "float32"

    def given(self) -> Array:
        """Make an input."""
        return numbers(self.source).astype(self.dtype)


_LIGHT = {
    "slices": Problem(OPERATOR, LARGE, LARGE_RESULT),
    "rows": Problem(OPERATOR, (1, 1, 2560, 2560), (1, 1, 1280, 1280)),
}
_SLOW = ops.JaxResize(method="lanczos5")
_HEAVY = {
    "slices": Problem(_SLOW, (32, 12, 24, 37, 37), (32, 11, 22, 34, 34), "float16"),
    "rows": Problem(_SLOW, (900, 10, 38, 38), (810, 9, 34, 34), "float16"),
}


def measure(
    targets: list[str], problem: Problem, rounds: int, *, servers: Sequence[Server] = ()
) -> dict[str, Any]:
    """Time calls on one server, two, and so on.

    The clients take turns.
    """
    source = problem.given()
    taken: dict[int, list[float]] = {count: [] for count in COUNTS}
    busiest = dict.fromkeys(COUNTS, 0.0)
    with ExitStack() as stack:
        calls = {
            count: _call(stack.enter_context(_client(targets[:count])), problem, source)
            for count in COUNTS
        }
        whole = {count: call().tobytes() for count, call in calls.items()}
        if len(set(whole.values())) > 1:
            raise AssertionError("several servers gave other bits than one")
        for _ in range(rounds):
            for count, call in calls.items():
                before = [server.cpu_s() for server in servers]
                start = time.perf_counter()
                call()
                taken[count].append(time.perf_counter() - start)
                used = (now.cpu_s() - then for now, then in zip(servers, before, strict=True))
                busiest[count] += max(used, default=0.0) / rounds
    return {
        str(count): {
            "seconds": statistics.median(seconds),
            "speed_up": statistics.median(
                one / each for one, each in zip(taken[1], seconds, strict=True)
            ),
            "best_speed_up": min(taken[1]) / min(seconds),
            "busiest_cpu_s": busiest[count],
            "every": seconds,
        }
        for count, seconds in taken.items()
    }


def _client(targets: list[str]) -> Client:
    return Client(targets, split=True, split_threshold_bytes=1 << 20)


def _call(client: Client, problem: Problem, source: Array) -> Callable[[], Array]:
    return lambda: client.evaluate(problem.operator, source, output_shape=problem.result)


def links(rate: str, rounds: int) -> dict[str, Any]:
    """Measure behind links, beside the model's predictions."""
    with fleet(max(COUNTS), rate, *_FLAGS, "--insecure") as targets:
        rows = {name: measure(targets, one, rounds) for name, one in _LIGHT.items()}
    number, unit = rate[:-4], rate[-4:]
    link = float(number) * _RATES[unit] / 8 * _PAYLOAD
    for name, counts in rows.items():
        problem = _LIGHT[name]
        sides = (4.0 * math.prod(problem.source), 4.0 * math.prod(problem.result))
        for count, row in counts.items():
            model = Model(*sides, Rates(link=link))
            row["model"] = simulate(model, int(count))
    return rows


def local(problems: dict[str, Problem], rounds: int) -> dict[str, Any]:
    """Measure on this machine."""
    with ExitStack() as stack:
        servers = [stack.enter_context(started(*_LOCAL)) for _ in range(max(COUNTS))]
        targets = [server.address for server in servers]
        return {
            name: measure(targets, one, rounds, servers=servers) for name, one in problems.items()
        }


def main(argv: list[str] | None = None) -> int:
    """Measure and print."""
    parser = machine.parser("scale", __doc__)
    parser.add_argument("stage", choices=["links", "compute", "loopback"])
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--rounds", type=int, default=7)
    told = parser.parse_args(argv)
    if told.stage == "links":
        rows = links(told.rate, told.rounds)
    else:
        rows = local(_HEAVY if told.stage == "compute" else _LIGHT, told.rounds)
    for name, counts in rows.items():
        for count, row in counts.items():
            model = f", model {row['model']:.3f} s" if "model" in row else ""
            if row["busiest_cpu_s"]:
                model = f", best x{row['best_speed_up']:.2f}"
                model += f", CPU of the busiest server {row['busiest_cpu_s']:.3f} s"
            line = f"{name}, {count}: {row['seconds']:.3f} s, x{row['speed_up']:.2f}{model}"
            sys.stdout.write(line + "\n")
    machine.write(told.json, {"rows": rows})
    return 0
