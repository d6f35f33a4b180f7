"""A bounded memory of what was used last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

V = TypeVar("V")


class Recent(Generic[V]):
    """The values used last, at most `most` of them and at most `max_weight` in all. Thread-safe.

    hits, misses  how often get() had a value, and how often not
    """

    def __init__(self, *, most: int, max_weight: int) -> None:
        self._most = most
        self._max_weight = max_weight
        self._weight = 0
        self._values: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._lock = Lock()
        self.hits = 0
        self.misses = 0

    def __contains__(self, key: Hashable) -> bool:
        with self._lock:
            return key in self._values

    def get(self, key: Hashable) -> V | None:
        """Return the value of key and count it as used now; None where there is none."""
        with self._lock:
            kept = self._values.get(key)
            if kept is None:
                self.misses += 1
                return None
            self.hits += 1
            self._values.move_to_end(key)
            return kept[0]

    def note_hit(self) -> None:
        """Count a value that was at hand without get()."""
        with self._lock:
            self.hits += 1

    def keep(self, key: Hashable, value: V, *, weight: int) -> None:
        """Keep a value in place of what has this key; not if it is too heavy by itself."""
        if weight > self._max_weight:
            return
        with self._lock:
            _, before = self._values.pop(key, (None, 0))
            self._values[key] = value, weight
            self._weight += weight - before
            while self._weight > self._max_weight or len(self._values) > self._most:
                _, (_, lost) = self._values.popitem(last=False)
                self._weight -= lost
