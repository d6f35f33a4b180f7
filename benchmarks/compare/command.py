"""Paired comparison of this tree with the baseline commit, row by row.

    python -m benchmarks compare [--against COMMIT] [--rows NAME ...] [--pairs 10] [--full]

Both trees are installed, with the same extra and their own pins, in virtual environments below
build/compare. A row is a load that matters to users. Its samples are taken in pairs, one of each
side, in the order ABBA; servers run on one core and clients on another. Raw loads come from this
process for both sides; where the SDK is measured each side has its own, which calls its own server.

A figure is worse if the median of the pairs' ratios is worse by more than a tenth, the interval of
that median lies on the worse side of 1, and the same is true of as many further pairs, with new
processes. Ends with status 1 if a figure is worse. `baseline` is the commit in benchmarks/BASELINE.
"""

from __future__ import annotations

import fnmatch
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.compare.judgement import Judgement, judge
from benchmarks.compare.rows import ComparedRow, rows
from benchmarks.compare.sides import BASELINE, CLIENT_CORES, Side, sides

# Seconds between loads, in which processors become idle.
_SETTLE_S = 0.1
_COLUMNS = f"{'row':32}{'figure':16}{'this':>10}{'baseline':>10}{'ratio':>7}   interval"


@dataclass(frozen=True, slots=True)
class Measured:
    """The samples of one row, [side][pair], and the judgement of each figure."""

    samples: list[list[dict[str, float]]]
    judgements: dict[str, Judgement]


def measure(row: ComparedRow, both: Sequence[Side], pairs: int) -> Measured:
    """Take the samples of a row.

    both is this tree and the baseline.
    """
    samples: list[list[dict[str, float]]] = [[], []]
    with ExitStack() as stack:
        takes = row.open(stack, both)
        for pair in range(pairs):
            for number in (0, 1) if pair % 2 else (1, 0):
                time.sleep(_SETTLE_S)
                samples[number].append(takes[number]())
    judgements = {
        name: judge(*([one[name] for one in side] for side in samples), better=better)
        for name, better in row.figures.items()
    }
    return Measured(samples, judgements)


def _lines(name: str, found: Measured, *, again: bool) -> list[str]:
    lines: list[str] = []
    for figure, one in found.judgements.items():
        verdict = ("WORSE" if again else "worse?") if one.worse else ""
        lines.append(
            f"{name:32}{figure:16}{one.ours:10.3f}{one.theirs:10.3f}{one.ratio:7.2f}"
            f"   {one.low:.2f} to {one.high:.2f}  {verdict}".rstrip()
        )
    return lines


def main(argv: list[str] | None = None) -> int:
    """Compare and print a table; return 1 if a figure is worse."""
    parser = machine.parser("compare", __doc__)
    parser.set_defaults(json=Path("out/compare.json"))
    parser.add_argument("--against", default="baseline", metavar="COMMIT")
    parser.add_argument("--rows", nargs="+", default=["*"], metavar="NAME", help="or patterns")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--full", action="store_true", help="stream 2 GiB in the row memory")
    parser.add_argument("--list", action="store_true", help="list the rows and end")
    arguments = parser.parse_args(argv)
    every = rows(full=arguments.full)
    chosen = [name for name in every if any(fnmatch.fnmatch(name, one) for one in arguments.rows)]
    if arguments.list or not chosen:
        for name, row in every.items():
            print(f"{name:32}{row.meaning}")
        return 0 if arguments.list else 2
    both = sides(BASELINE if arguments.against == "baseline" else arguments.against)
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, CLIENT_CORES)
    print(_COLUMNS, flush=True)
    worse: list[str] = []
    record: dict[str, Any] = {}
    for name in chosen:
        first = measure(every[name], both, arguments.pairs)
        print(*_lines(name, first, again=False), sep="\n", flush=True)
        record[name] = [asdict(first)]
        doubtful = [figure for figure, one in first.judgements.items() if one.worse]
        if doubtful:
            second = measure(every[name], both, arguments.pairs)
            print(*_lines(f"{name}, again", second, again=True), sep="\n", flush=True)
            record[name].append(asdict(second))
            worse += [f"{name} {one}" for one in doubtful if second.judgements[one].worse]
    os.sched_setaffinity(0, allowed)
    print(f"worse: {', '.join(worse) or 'nothing'}")
    machine.write(
        arguments.json, {"sides": [side.name for side in both], "worse": worse, "rows": record}
    )
    return int(bool(worse))
