"""Weight tables of recent axes: equal axes of whatever requests share one table."""

from __future__ import annotations

from collections.abc import Hashable

from gradwire_server.dialects.dialect import Axis
from gradwire_server.lru import Recent
from gradwire_server.plans import BandedMap

# Axes without taps take memory too.
_MOST = 4096


class TableCache:
    """The tables used last, at most `max_entries` entries in all. Thread-safe.

    Two threads that miss on one axis at once both build it; the tables are equal.
    """

    def __init__(self, *, max_entries: int) -> None:
        self._recent: Recent[BandedMap] = Recent(most=_MOST, max_weight=max_entries)

    @property
    def lookups(self) -> tuple[int, int]:
        """How often a table was there, and how often it was built."""
        return self._recent.hits, self._recent.misses

    def holds(self, axis: Axis, *, gradient: bool) -> bool:
        """Whether the table is there."""
        return _key(axis, gradient=gradient) in self._recent

    def get(self, axis: Axis, *, gradient: bool) -> BandedMap:
        """Return the table of an axis's forward, or of its gradient, building it if need be."""
        key = _key(axis, gradient=gradient)
        table = self._recent.get(key)
        if table is None:
            table = axis.table(gradient=gradient)
            self._recent.keep(key, table, weight=table.nnz + table.inputs + table.outputs)
        return table


def _key(axis: Axis, *, gradient: bool) -> Hashable:
    """Tell axes apart; arguments spelled out, because 0.0 and -0.0 are equal."""
    return axis, repr(axis.arguments), gradient
