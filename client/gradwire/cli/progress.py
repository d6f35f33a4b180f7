"""What a terminal shows of work that takes more than a moment: a bar for transfers, or a line."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

import click

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
        """Take what has been sent and received so far."""
        self._advance(sent_bytes + received_bytes)

    def sent(self, sent_bytes: int, received_bytes: int) -> None:
        """Take what has been sent so far, where the size of the result is not known."""
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
