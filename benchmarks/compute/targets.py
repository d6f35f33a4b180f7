"""Targets of the compiled backend, checked against the compute benchmark's results.

    python -m benchmarks compute-targets out/compute.json [--backend NAME]

Prints, for each target, the number of rows that meet it and the rows that miss it. Ends with status
1 if any row misses its target.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import machine
from benchmarks.compute.report import ComputeRecord, Row, load, rows

# Least ratio to PyTorch's contiguous kernel, float32 NCX.
_OVER_TORCH = {
    "linear 2-D x2": 9.0,
    "linear 1080p x2": 9.0,
    "linear plane x2": 9.0,
    "cubic 2-D x2": 20.0,
    "linear 3-D x2": 10.0,
    "linear 2-D x2 align_corners": 3.0,
    "linear 2-D x1.52": 3.0,
    "nearest 2-D x1.52": 3.0,
    "linear photo x2.25": 3.0,
    "nearest photo x2.25": 3.0,
    "linear photo /1.5": 3.0,
    "nearest photo /1.5": 3.0,
}
_OVER_TORCH_ELSE = 2.0

# Share of a copy's rate from which a thread counts as bounded by memory.
_BOUND_BY_MEMORY = 0.8
_NOISE = 0.95

# Least share of the copy loop's rate, 1 thread, float32: nearest, and linear x2 by layout and
# spatial axes.
_OF_COPY_NEAREST = 0.7
_OF_COPY_X2 = {("NCX", 2): 0.4, ("NXC", 2): 0.5, ("NCX", 3): 0.3, ("NXC", 3): 0.3}

_HALF_PRECISION = 0.8
_TWO_THREADS = 1.7


@dataclass(frozen=True, slots=True)
class Verdict:
    """A row against one target: reached and wanted figures."""

    target: str
    row: str
    reached: float
    wanted: float

    @property
    def holds(self) -> bool:
        """Whether the target is reached."""
        return self.reached >= self.wanted


def judged_lines(judged: Sequence[Verdict]) -> Iterator[str]:
    """Yield a line per target, and a line per failed row.

    A target's line has the number of rows that reach it. Failed rows follow, the worst first.
    """
    for target in sorted({one.target for one in judged}):
        some = [one for one in judged if one.target == target]
        missed = [one for one in some if not one.holds]
        yield f"{target}: {len(some) - len(missed)} of {len(some)} hold"
        for one in sorted(missed, key=lambda one: one.reached / one.wanted):
            yield f"    {one.reached:7.2f} of {one.wanted:5.2f}  {one.row}"


def verdicts(records: list[ComputeRecord], backend: str) -> Iterator[Verdict]:
    """Judge every row of a backend by every applicable target."""
    times = {
        (row.record.case, row.layout, row.record.dtype, row.record.threads): row
        for record in records
        for row in rows(record, backend)
    }
    for (case, layout, dtype, threads), row in times.items():
        name = f"{case}, {dtype} {layout}, {threads} threads"
        yield from _over_peers(row, name)
        if threads == 1 and dtype == "float32":
            yield from _of_copy(row, name)
        wide = times.get((case, layout, "float32", threads))
        if dtype != "float32" and wide is not None:
            reached = _seconds(wide, backend) / _seconds(row, backend)
            yield Verdict("4 elements per second of float32", name, reached, _HALF_PRECISION)
        one = times.get((case, layout, dtype, 1))
        if threads == 2 and one is not None and "copy" in row.record.seconds:
            copies = statistics.median(one.record.seconds["copy"])
            scales = copies / statistics.median(row.record.seconds["copy"])
            reached = _seconds(one, backend) / _seconds(row, backend)
            wanted = min(_TWO_THREADS, scales * _NOISE)
            yield Verdict("5 two threads over one", name, reached, wanted)


def _over_peers(row: Row, name: str) -> Iterator[Verdict]:
    record = row.record
    torch = row.to_peer.get("torch NCX")
    if record.dtype == "float32" and row.layout == "NCX" and torch is not None:
        wanted = _OVER_TORCH.get(record.case, _OVER_TORCH_ELSE)
        bound = record.case not in _OVER_TORCH and (row.to_copy or 0) >= _BOUND_BY_MEMORY
        yield Verdict("1 over torch contiguous", name, torch, 0.0 if bound else wanted)
    if row.same_layout is not None:
        enough = _NOISE if (row.peer_to_copy or 0) > _BOUND_BY_MEMORY else 1.0
        yield Verdict("2 over the fastest peer", name, row.same_layout, enough)


def _of_copy(row: Row, name: str) -> Iterator[Verdict]:
    record = row.record
    if row.to_copy is None:
        return
    # With align_corners the scale is not an integer.
    doubled = "align_corners" not in record.case and all(
        d == 2 * s for s, d in zip(record.src[2:], record.dst[2:], strict=True)
    )
    if record.kind == "nearest":
        yield Verdict("3 of copy", name, row.to_copy, _OF_COPY_NEAREST)
    wanted = _OF_COPY_X2.get((row.layout, len(record.src) - 2))
    if record.kind == "linear" and doubled and wanted is not None:
        yield Verdict("3 of copy", name, row.to_copy, wanted)


def _seconds(row: Row, backend: str) -> float:
    return statistics.median(row.record.seconds[f"{backend} {row.layout}"])


def main(argv: list[str] | None = None) -> int:
    """Judge and print."""
    parser = machine.parser("compute-targets", __doc__, json=False)
    parser.add_argument("json", type=Path)
    parser.add_argument("--backend", default="numba_cpu")
    arguments = parser.parse_args(argv)
    records = load(json.loads(arguments.json.read_text(encoding="utf-8")))
    judged = list(verdicts(records, arguments.backend))
    for line in judged_lines(judged):
        print(line)
    return int(not all(one.holds for one in judged))
