"""Numbers, ranges and tables as text that is exact and short."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Numbers of a longer list that are written, half of them from each end.
SHOWN = 6


def number(value: Any) -> str:
    """Write a number with as few digits as tell it from all others of its type.

    A float64 that float32 can hold is written as that: tables in float32 arithmetic arrive widened.
    """
    wide = float(value)
    if not math.isfinite(wide):
        return str(wide)
    narrow = _float32(wide)
    written = str(narrow if float(narrow) == wide else np.float64(wide))
    return written.removesuffix(".0")


def numbers(values: NDArray[Any]) -> str:
    """Write numbers, the middle of many left out."""
    if len(values) <= SHOWN:
        return " ".join(map(number, values))
    first, last = values[: SHOWN // 2], values[-SHOWN // 2 :]
    left_out = len(values) - len(first) - len(last)
    return f"{numbers(first)} .. {left_out} more .. {numbers(last)}"


def places(indices: NDArray[np.int64]) -> str:
    """Write ascending indices, neighbors as a range: "0 2-4"; the middle of many left out."""
    runs: list[list[int]] = []
    for index in map(int, indices):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    words = [f"{low}" if low == high else f"{low}-{high}" for low, high in runs]
    if len(words) > SHOWN:
        half = SHOWN // 2
        words = [*words[:half], f".. {len(words) - 2 * half} more ..", *words[-half:]]
    return " ".join(words) or "none"


def middle_left_out(count: int, shown: int) -> Iterable[int | None]:
    """Return the indices below count, or `shown` of them from both ends with a None between."""
    if count <= shown:
        return range(count)
    first = (shown + 1) // 2
    return (*range(first), None, *range(count - shown + first, count))


def table(
    titles: Sequence[str], rows: Iterable[Sequence[str] | str], *, last_to_left: bool = True
) -> list[str]:
    """Align columns to the right, the last one as told. A string is a row by itself."""
    listed = list(rows)
    cells = [row for row in listed if not isinstance(row, str)]
    widths = [max(len(row[column]) for row in (titles, *cells)) for column in range(len(titles))]

    def line(row: Sequence[str]) -> str:
        aligned = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        if last_to_left:
            aligned[-1] = row[-1]
        return "  ".join(["", *aligned]).rstrip()

    return [line(titles), *(f"  {row}" if isinstance(row, str) else line(row) for row in listed)]


def _float32(value: float) -> np.float32:
    with np.errstate(over="ignore"):
        return np.float32(value)


def as_json(value: Any) -> float | str:
    """Return a number as JSON can hold it: those that are not finite as protobuf writes them."""
    wide = float(value)
    if math.isfinite(wide):
        return wide
    return "NaN" if math.isnan(wide) else "Infinity" if wide > 0 else "-Infinity"
