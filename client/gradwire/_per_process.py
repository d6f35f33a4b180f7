"""What each process has of its own, also one that was forked off."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar
from weakref import WeakSet

T = TypeVar("T")


class PerProcess(Generic[T]):
    """A value made on first use, and made anew in a process forked off.

    Neither locks nor channels of the parent can be used there, nor may channels be closed.
    """

    _all: ClassVar[WeakSet[PerProcess[Any]]] = WeakSet()

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._value: T | None = None
        self._of_parents: list[T] = []
        self.closed = False
        self._all.add(self)

    def get(self) -> T:
        """Return the value; raise RuntimeError after close()."""
        value = self._value
        if value is not None:
            return value
        with self._lock:
            if self.closed:
                raise RuntimeError("the client is closed; make another one")
            if self._value is None:
                self._value = self._make()
            return self._value

    def close(self) -> T | None:
        """Return the value for its owner to close, or None where none is open; allow no other."""
        with self._lock:
            self.closed = True
            value, self._value = self._value, None
            return value

    @classmethod
    def renew(cls) -> None:
        """Forget every value, in a process just forked off."""
        for one in cls._all:
            one._lock = threading.Lock()  # noqa: SLF001 - one's own
            if one._value is not None:  # noqa: SLF001
                one._of_parents.append(one._value)  # noqa: SLF001 - finalizing it would close it
                one._value = None  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=PerProcess.renew)
