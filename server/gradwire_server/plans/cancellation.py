"""Cooperative cancellation of table building."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar

Check = Callable[[], object]


class AbandonedError(Exception):
    """The caller no longer waits for the table."""


def _go_on() -> None:
    """Never cancel."""


_CHECK: ContextVar[Check] = ContextVar("gradwire_table_check", default=_go_on)


@contextmanager
def asking(check: Check | None) -> Generator[None]:
    """Set the check that table building calls.

    The check raises to cancel; None changes nothing.
    """
    before = _CHECK.set(check or _CHECK.get())
    try:
        yield
    finally:
        _CHECK.reset(before)


def ask() -> None:
    """Call the current check, between two blocks of a table.

    Raises the check's exception, if any.
    """
    _CHECK.get()()
