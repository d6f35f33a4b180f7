"""Fixed cost of a LocalClient call on a tiny gradient.

    python -m benchmarks compute-fixed [--backend NAME] [--seconds S] [--json FILE]

A bilinear x2 gradient, diff_src (1, 3, 16, 16), with out= given: microseconds per call, the medians
of rounds in which the variants take turns. Then the first variant is profiled: the call is repeated
while a timer interrupts it, and a line is the share of interrupts during one of our functions or
its callees.
"""

from __future__ import annotations

import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

import ml_dtypes
import numpy as np
import numpy.typing as npt

from benchmarks import machine
from benchmarks.compute.contestants import Contestant
from benchmarks.rounds import Pace, samples, timed
from gradwire import ops
from gradwire_server import LocalClient, backends, dialects

# An interval that is no multiple of any call's time.
_INTERRUPT_S = 0.00073

# Smaller shares are left out.
_SMALLEST_SHARE = 0.03

Chain = tuple[str, ...]


def _evaluation(
    client: LocalClient, dtype: npt.DTypeLike, *, size: int = 16, out: bool = True
) -> Callable[[], object]:
    operator = ops.InterpolateBackward(mode="bilinear", data_format="NCX")
    x = np.ones((1, 3, 2 * size, 2 * size), dtype)
    y = np.empty((1, 3, size, size), dtype)
    return partial(client.evaluate, operator, x, output_shape=y.shape, out=y if out else None)


def _variants(backend: str, client: LocalClient, two: LocalClient) -> list[Contestant]:
    operator = ops.InterpolateBackward(mode="bilinear", data_format="NCX")
    shapes = ((1, 3, 32, 32), (1, 3, 16, 16))
    plan = dialects.forward(operator.name, operator, *shapes).plan()
    x, y = (np.ones(shape, np.float32) for shape in shapes)
    runs: dict[str, Callable[[], object]] = {
        "evaluate (1, 3, 16, 16)": _evaluation(client, np.float32),
        "  its backend.apply alone": partial(backends.choose(backend)[0].apply, plan, x, y),
        "  on 2 threads": _evaluation(two, np.float32),
        "  without out=": _evaluation(client, np.float32, out=False),
        "  float16": _evaluation(client, np.float16),
        "  bfloat16": _evaluation(client, ml_dtypes.bfloat16),
        "evaluate (1, 3, 4, 4)": _evaluation(client, np.float32, size=4),
        "evaluate (1, 3, 64, 64)": _evaluation(client, np.float32, size=64),
    }
    return [Contestant(name, run, None) for name, run in runs.items()]


def _stacks(run: Callable[[], object], seconds: float) -> Counter[Chain]:
    """Count the interrupts by chain of our active functions.

    The outermost function comes first.
    """
    found: Counter[Chain] = Counter()

    def note(_signal: int, frame: FrameType | None) -> None:
        names: list[str] = []
        while frame is not None:
            code = frame.f_code
            if "/gradwire" in code.co_filename:
                names.append(f"{Path(code.co_filename).stem}.{code.co_qualname}")
            frame = frame.f_back
        found[tuple(reversed(names))] += 1

    before = signal.signal(signal.SIGALRM, note)
    signal.setitimer(signal.ITIMER_REAL, _INTERRUPT_S, _INTERRUPT_S)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(100):
            run()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    return found


def _shares(found: Counter[Chain]) -> list[tuple[Chain, float]]:
    """Return the share of every frequent chain of calls.

    They are in the order of the call tree.
    """
    inclusive: Counter[Chain] = Counter()
    for path, count in found.items():
        for depth in range(1, len(path) + 1):
            inclusive[path[:depth]] += count
    total = sum(found.values())
    ranked = sorted(
        inclusive, key=lambda path: [-inclusive[path[: n + 1]] for n in range(len(path))]
    )
    return [
        (path, inclusive[path] / total)
        for path in ranked
        if inclusive[path] / total >= _SMALLEST_SHARE
    ]


def main(argv: list[str] | None = None) -> int:
    """Measure and print."""
    parser = machine.parser("compute-fixed", __doc__)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args(argv)
    with LocalClient(arguments.backend, 1) as client, LocalClient(arguments.backend, 2) as two:
        sys.stdout.write(f"{client.backend_reason}\n")
        variants = _variants(arguments.backend, client, two)
        for one in variants:
            one.run()
        first = {one.name: timed(one.run) for one in variants}
        times = samples(variants, first, Pace(rounds=15))
        cost = {name: statistics.median(values) * 1e6 for name, values in times.items()}
        for name, value in cost.items():
            sys.stdout.write(f"{value:9.1f} us  {name}\n")
        shares = _shares(_stacks(variants[0].run, arguments.seconds))
    whole = cost[variants[0].name]
    for path, share in shares:
        text = f"{share * whole:9.1f} us  {share:4.0%}  {'  ' * (len(path) - 1)}{path[-1]}"
        sys.stdout.write(text + "\n")
    tree = [{"path": path, "share": share} for path, share in shares]
    machine.write(arguments.json, {"us": cost, "shares": tree})
    return 0
