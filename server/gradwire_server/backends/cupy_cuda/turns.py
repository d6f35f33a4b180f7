"""Who takes memory of the device: one call at a time, in order of arrival.

A call takes all it needs at once, and holds nothing of it while it waits: so those before it come
to their end, and it to its turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
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

    @contextmanager
    def holding(self, take: Callable[[], T], give_back: Callable[[T], None]) -> Generator[T]:
        """Hold what `take` takes, once it can.

        take       takes all or, raising MemoryError, nothing; no other call's runs meanwhile. It
                   is tried again whenever a call has ended; alone its MemoryError is final
        give_back  of what was taken, when the call ends
        """
        taken = self._taken(take)
        try:
            yield taken
        finally:
            give_back(taken)
            with self._changed:
                self._holding -= 1
                self._ended += 1
                self._changed.notify_all()

    def _taken(self, take: Callable[[], T]) -> T:
        ticket = object()
        with self._changed:
            self._line.append(ticket)
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._line[0] is ticket)
            while True:
                with self._changed:
                    is_alone, ended = not self._holding, self._ended
                try:
                    taken = take()
                except MemoryError:
                    if is_alone:
                        raise
                else:
                    with self._changed:
                        self._holding += 1
                    return taken
                with self._changed:
                    self._changed.wait_for(lambda: self._ended != ended)  # noqa: B023 - at once
        finally:
            with self._changed:
                self._line.remove(ticket)
                self._changed.notify_all()
