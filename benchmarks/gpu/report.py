"""Results of the GPU benchmark, and their targets."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.compute.targets import Verdict, judged_lines
from benchmarks.rounds import CaseTimes

# Least share of the rate of a copy of as many bytes.
_DOUBLED = {"float32": 0.85, "float16": 0.7, "bfloat16": 0.7}
_EVERY = 0.5

# Least ratio to PyTorch's CUDA kernel for the same layout, and to its deterministic path.
_OVER_TORCH = {"float32": 2.0, "float16": 5.0, "bfloat16": 5.0}
_OVER_DETERMINISTIC = 10.0


@dataclass(frozen=True, slots=True)
class GpuRecord(CaseTimes):
    """One case in one layout and type.

    Seconds are those on the device.
    """

    layout: str


def verdicts(record: GpuRecord) -> Iterator[Verdict]:
    """Judge a row by every applicable target."""
    row = f"{record.case}, {record.dtype} {record.layout}"
    to_copy = record.faster("ours", "copy")
    if to_copy is not None:
        doubled = _is_fast_scale(record)
        wanted = _DOUBLED[record.dtype] if doubled else _EVERY
        yield Verdict("of copy, x2" if doubled else "of copy", row, to_copy, wanted)
    over_torch, over_deterministic = (
        record.faster("ours", "torch"),
        record.faster("ours", "deterministic"),
    )
    if over_torch is not None and _is_weighted(record):
        yield Verdict("over torch", row, over_torch, _OVER_TORCH[record.dtype])
    if over_deterministic is not None and _is_weighted(record):
        yield Verdict("over deterministic", row, over_deterministic, _OVER_DETERMINISTIC)


def summary(records: Sequence[GpuRecord]) -> Iterator[str]:
    """Yield a line per target, and a line per failed row.

    A target's line has the number of rows that reach it. Failed rows follow, the worst first.
    """
    return judged_lines([one for record in records for one in verdicts(record)])


HEADER = (
    f"{'case':28}{'dtype':>9} {'':4}{'MB':>6}{'ms':>9}{'GB/s':>8}{'copy':>8}{'/copy':>7}"
    f"{'/torch':>8}{'/determ.':>9}  verdict"
)


def line(record: GpuRecord) -> str:
    """Return one row as a line of text.

    It has the time, GB/s of the kernel and of the copy, and ratios: above 1 ours is faster than the
    contestant of the column.
    """
    took = record.seconds.get("ours")
    cells = [
        f"{record.case:28}{record.dtype:>9} {record.layout:4}{record.nbytes / 1e6:6.0f}",
        _number(statistics.median(took) * 1e3 if took else None, 9, digits=4),
        _number(record.rate("ours"), 8, digits=1),
        _number(record.rate("copy"), 8, digits=1),
        _number(record.faster("ours", "copy"), 7),
        _number(record.faster("ours", "torch"), 8),
        _number(record.faster("ours", "deterministic"), 9),
    ]
    judged = list(verdicts(record))
    missed = [f"miss {one.target} {one.wanted:g}" for one in judged if not one.holds]
    return "".join(cells) + "  " + (", ".join(missed) or ("ok" if judged else "-"))


def load(found: dict[str, Any]) -> list[GpuRecord]:
    """Read the records of a JSON file."""
    return [GpuRecord(**one) for one in found["records"]]


def _is_fast_scale(record: GpuRecord) -> bool:
    """Whether memory should bound the row's time.

    These rows are x2 of images, and in NCX of 16 bits even scales.
    """
    scales = {high / low for low, high in zip(record.src[2:], record.dst[2:], strict=True)}
    if record.kind not in {"linear", "nearest"} or len(record.src) != 4 or len(scales) != 1:
        return False
    if "align_corners" in record.case:
        return False
    (scale,) = scales
    even = record.layout == "NCX" and record.dtype != "float32" and scale % 2 == 0
    return scale == 2 or even


def _is_weighted(record: GpuRecord) -> bool:
    """Whether the row is bilinear, trilinear or bicubic."""
    return record.kind == "cubic" or (record.kind == "linear" and len(record.src) > 3)


def _number(value: float | None, width: int, *, digits: int = 2) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:{width}.{digits}f}"
