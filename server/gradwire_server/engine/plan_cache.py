"""Keeps the plans of recent requests, since equal requests have equal tables."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from gradwire_server.plans import Plan
from gradwire_server.recent import Recent

# Plans without tables take memory too.
_MOST = 4096


class PlanCache:
    """The most recently used plans, at most `max_entries` table entries in all. Thread-safe.

    Two threads that miss on one key at once both build; the plans are equal.
    """

    def __init__(self, *, max_entries: int) -> None:
        self._recent: Recent[Plan] = Recent(most=_MOST, max_weight=max_entries)

    @property
    def lookups(self) -> tuple[int, int]:
        """How often get() had the plan, and how often it had it built."""
        return self._recent.hits, self._recent.misses

    def __contains__(self, key: Hashable) -> bool:
        return key in self._recent

    def get(self, key: Hashable, build: Callable[[], Plan]) -> Plan:
        """Return the plan of key, building it where it is not kept."""
        plan = self._recent.get(key)
        if plan is None:
            plan = build()
            self._recent.keep(key, plan, weight=plan.table_entries)
        return plan
