"""Who takes memory of the device: one call at a time, in order of arrival.

A call takes all it needs at once, and holds nothing of it while it waits: so those before it come
to their end, and it to its turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Condition
from typing import TypeVar

T = TypeVar("T")


class Turns:
    """Calls that hold memory, and those that wait for theirs. Threads may share it."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._line = deque[object]()
        self._holding = 0
        self._ended = 0

    def take(self, take: Callable[[], T]) -> T:
        """Return what `take` takes, once it can; followed by end().

        take  takes all or, raising MemoryError, nothing; no other call's runs meanwhile. It is
              tried again whenever a call has ended; alone its MemoryError is final
        """
        ticket = object()
        with self._changed:
            self._line.append(ticket)
        try:
            if self._line[0] is not ticket:
                with self._changed:
                    self._changed.wait_for(lambda: self._line[0] is ticket)
            taken = self._taken(take)
        except BaseException:
            self._leave(ticket, holding=0)
            raise
        self._leave(ticket, holding=1)
        return taken

    def end(self) -> None:
        """Note that a call holds no memory any more."""
        with self._changed:
            self._holding -= 1
            self._ended += 1
            self._notify()

    def _taken(self, take: Callable[[], T]) -> T:
        while True:
            with self._changed:
                is_alone, ended = not self._holding, self._ended
            try:
                return take()
            except MemoryError:
                if is_alone:
                    raise
            with self._changed:
                self._changed.wait_for(lambda: self._ended != ended)  # noqa: B023 - at once

    def _leave(self, ticket: object, *, holding: int) -> None:
        with self._changed:
            self._holding += holding
            self._line.remove(ticket)
            self._notify()

    def _notify(self) -> None:
        if self._line:
            self._changed.notify_all()
