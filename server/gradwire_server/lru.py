"""A bounded LRU cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

V = TypeVar("V")


class Recent(Generic[V]):
    """LRU cache with limits of count and of weight. Thread-safe.

    It holds at most `most` values, with at most `max_weight` in all.

    lookups  approximate numbers of get() calls with and without a value
    """

    def __init__(self, *, most: int, max_weight: int) -> None:
        self._most = most
        self._max_weight = max_weight
        self._weight = 0
        self._values: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._lock = Lock()
        self.lookups = [0, 0]

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

    def get(self, key: Hashable, *, counted: bool = True) -> V | None:
        """Return the value of key; None where there is none.

        A counted call adds to hits or misses, and the value is a recent one.
        """
        # No lock, which would take as long as the rest: counts are approximate.
        kept = self._values.get(key)
        if not counted:
            return None if kept is None else kept[0]
        self.lookups[kept is None] += 1
        if kept is None:
            return None
        try:  # noqa: SIM105 - suppress() takes longer
            self._values.move_to_end(key)
        except KeyError:
            pass  # another thread has removed it just now
        return kept[0]

    def clear(self) -> None:
        """Remove all values; the counts remain."""
        with self._lock:
            self._values.clear()
            self._weight = 0

    def keep(self, key: Hashable, value: V, *, weight: int) -> None:
        """Store a value under a key, replacing its old one.

        A value above max_weight is skipped.
        """
        if weight > self._max_weight:
            return
        with self._lock:
            _, before = self._values.pop(key, (None, 0))
            self._values[key] = value, weight
            self._weight += weight - before
            while self._weight > self._max_weight or len(self._values) > self._most:
                _, (_, lost) = self._values.popitem(last=False)
                self._weight -= lost
