"""Keeps the plans of recent requests, since equal requests have equal tables."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock

from gradwire_server.plans import Plan


class PlanCache:
    """The most recently used plans, at most `max_entries` table entries in all. Thread-safe.

    Two threads that miss on one key at once both build; the plans are equal.
    """

    def __init__(self, *, max_entries: int) -> None:
        self._max_entries = max_entries
        self._entries = 0
        self._plans: OrderedDict[Hashable, Plan] = OrderedDict()
        self._lock = Lock()

    def __contains__(self, key: Hashable) -> bool:
        with self._lock:
            return key in self._plans

    def get(self, key: Hashable, build: Callable[[], Plan]) -> Plan:
        """Return the plan of key, building it where it is not kept."""
        with self._lock:
            if key in self._plans:
                self._plans.move_to_end(key)
                return self._plans[key]
        plan = build()
        self._keep(key, plan)
        return plan

    def _keep(self, key: Hashable, plan: Plan) -> None:
        if plan.table_entries > self._max_entries:
            return
        with self._lock:
            if key in self._plans:
                return
            self._plans[key] = plan
            self._entries += plan.table_entries
            while self._entries > self._max_entries:
                _, oldest = self._plans.popitem(last=False)
                self._entries -= oldest.table_entries
