"""Who builds long tables asks, between two blocks, whether anybody still waits for them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar

Check = Callable[[], object]


class AbandonedError(Exception):
    """Nobody waits for a table any more."""


def _go_on() -> None:
    """Let every table be built to its end."""


_CHECK: ContextVar[Check] = ContextVar("gradwire_table_check", default=_go_on)


@contextmanager
def asking(check: Check | None) -> Generator[None]:
    """Have tables ask this, which raises where they are to be given up; None changes nothing."""
    before = _CHECK.set(check or _CHECK.get())
    try:
        yield
    finally:
        _CHECK.reset(before)


def ask() -> None:
    """Raise what the one who asked for a table wants raised, if anything."""
    _CHECK.get()()
