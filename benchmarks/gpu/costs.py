"""Cost of a gradient between host arrays, on GPU and CPU.

Calls on tensors outside the device are bounded by the bus to the device, and by the wire before
that; the kernels' speed matters little. This benchmark finds the size from which the GPU pays all
the same. The gradient is that of a bilinear x2 enlargement of float32, four planes NCX.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.compute.cases import Array, Case, WrongResultError
from benchmarks.gpu.cases import Numbers, gradient
from benchmarks.rounds import timed
from gradwire_server.backends import Backend

_PLANES = 4


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one size.

    way      "apply", a backend in this process; or "request", a server over loopback
    nbytes   of the output gradient
    seconds  of each call, [backend][round]
    """

    way: str
    nbytes: int
    seconds: dict[str, list[float]]

    def median_ms(self, backend: str) -> float:
        """Return the milliseconds of a call, by its median round."""
        return statistics.median(self.seconds[backend]) * 1e3


@dataclass(frozen=True, slots=True)
class CostPace:
    """Limits of a measurement: rounds, and seconds for each size.

    Both are upper bounds; the seconds are approximate.
    """

    rounds: int = 15
    budget_s: float = 2.0


def sizes(*, smallest: int = 1 << 14, largest: int = 1 << 28) -> Iterator[Case]:
    """Yield cases, each four times as large as the one before.

    smallest, largest  bytes of the output gradient
    """
    nbytes = smallest
    while nbytes <= largest:
        side = math.isqrt(nbytes // (4 * _PLANES))
        yield Case("request", "linear", (1, _PLANES, side // 2, side // 2), _square(side))
        nbytes *= 4


def applied(backends: Mapping[str, Backend], case: Case, pace: CostPace) -> Cost:
    """Time backends in this process; raise WrongResultError if they differ."""
    x, plan = Numbers().filled(case.dst, "float32"), gradient(case, "NCX")
    results = {name: np.zeros(case.src, np.float32) for name in backends}
    runs = {name: partial(one.apply, plan, x, results[name]) for name, one in backends.items()}
    return _cost("apply", x, runs, results, pace)


def requested(
    evaluate: Mapping[str, Callable[[Array, Array], object]], case: Case, pace: CostPace
) -> Cost:
    """Time calls of servers; raise WrongResultError for other bits.

    evaluate  sends an output gradient and writes the input gradient to another array
    """
    x = Numbers().filled(case.dst, "float32")
    results = {name: np.zeros(case.src, np.float32) for name in evaluate}
    runs = {name: partial(one, x, results[name]) for name, one in evaluate.items()}
    return _cost("request", x, runs, results, pace)


def pays_from(costs: Sequence[Cost], gpu: str, cpu: str) -> int | None:
    """Return the least size from which the GPU is always faster.

    None if there is no such size.

    costs  of one way, the smaller first
    """
    found = None
    for cost in reversed(costs):
        if cost.median_ms(gpu) >= cost.median_ms(cpu):
            break
        found = cost.nbytes
    return found


def lines(costs: Sequence[Cost]) -> Iterator[str]:
    """Yield a table of one way, in milliseconds."""
    names = list(costs[0].seconds)
    yield f"{costs[0].way:>8} KiB" + "".join(f"{name:>14} ms" for name in names)
    for cost in costs:
        cells = "".join(f"{cost.median_ms(name):17.3f}" for name in names)
        yield f"{cost.nbytes / 1024:12.0f}{cells}"
    if len(names) == 2:
        least = pays_from(costs, *names)
        words = "at no size" if least is None else f"from {least / 1024:.0f} KiB on"
        yield f"{names[0]} is faster than {names[1]} {words}"


def _cost(
    way: str,
    x: Array,
    runs: Mapping[str, Callable[[], object]],
    results: Mapping[str, Array],
    pace: CostPace,
) -> Cost:
    took = {name: min(timed(run), timed(run)) for name, run in runs.items()}
    if len({result.tobytes() for result in results.values()}) > 1:
        raise WrongResultError(f"{way}: {' and '.join(results)} give other bits, {x.nbytes} bytes")
    rounds = max(3, min(pace.rounds, int(pace.budget_s / sum(took.values()))))
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds):
        for name in list(runs) if number % 2 else list(runs)[::-1]:
            seconds[name].append(timed(runs[name]))
    return Cost(way, x.nbytes, seconds)


def _square(side: int) -> tuple[int, ...]:
    return (1, _PLANES, side, side)
