"""Output of commands: numbers, tables, progress."""

from __future__ import annotations

import logging
import math
import shutil
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Self

import click
import numpy as np
from numpy.typing import NDArray

# Numbers of a longer list that are written, half of them from each end.
SHOWN = 6


def number(value: Any) -> str:
    """Write a number with the fewest digits that distinguish it in its type.

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
    """Align columns to the right, the last one optionally to the left. A string is a row."""
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
    """Return a number for JSON; numbers that are not finite as protobuf writes them."""
    wide = float(value)
    if math.isfinite(wide):
        return wide
    return "NaN" if math.isnan(wide) else "Infinity" if wide > 0 else "-Infinity"


PATIENCE_S = 1.0


class ProgressBar:
    """Follows a transfer of `total_bytes`; after a second shows a bar on stderr, if a terminal."""

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self._start = time.monotonic()
        self._shown = ExitStack()
        self._update: Callable[[int], None] | None = None
        self._done_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._shown.close()

    def moved(self, sent_bytes: int, received_bytes: int) -> None:
        """Update with the bytes sent and received."""
        self._advance(sent_bytes + received_bytes)

    def sent(self, sent_bytes: int, received_bytes: int) -> None:
        """Update with the bytes sent, for a result of unknown size."""
        del received_bytes
        self._advance(sent_bytes)

    def _advance(self, done_bytes: int) -> None:
        if self._update is None and self._is_due():
            bar = click.progressbar(length=self._total_bytes, label="gradwire", file=sys.stderr)
            self._update = self._shown.enter_context(bar).update
        if self._update is not None:
            self._update(done_bytes - self._done_bytes)
            self._done_bytes = done_bytes

    def _is_due(self) -> bool:
        return sys.stderr.isatty() and time.monotonic() - self._start > PATIENCE_S


@contextmanager
def retries_shown() -> Generator[None]:
    """Tell on stderr, if a terminal, of the first call in the block that is tried again."""
    if not sys.stderr.isatty():
        yield
        return
    log, handler = logging.getLogger("gradwire"), _FirstRetry(logging.INFO)
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(level)
        log.removeHandler(handler)


class _FirstRetry(logging.Handler):
    """Prints the first record that comes, as a line cut to the width of the terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print it, and no other."""
        self.setLevel(logging.CRITICAL + 1)
        text = f"gradwire: {record.getMessage()}"[: shutil.get_terminal_size().columns - 1]
        click.echo(text, file=sys.stderr)


class StatusLine:
    """One line on stderr, if a terminal, which each text replaces; gone with the block."""

    def __init__(self) -> None:
        self._shown = 0

    @property
    def is_seen(self) -> bool:
        """Whether there is a terminal to show it."""
        return sys.stderr.isatty()

    def show(self, text: str) -> None:
        """Show a text, cut to the width of the terminal."""
        if not self.is_seen:
            return
        text = text[: shutil.get_terminal_size().columns - 1]
        click.echo(f"\r{text.ljust(self._shown)}", file=sys.stderr, nl=False)
        self._shown = len(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shown:
            self.show("")
            click.echo("\r", file=sys.stderr, nl=False)
