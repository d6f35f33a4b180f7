"""Fair queue over flows, ordered by deadline within each.

A flow is the small or the large work of one caller. Flows get equal shares of the seconds of work
served; within one, the entry due first is next. So many small entries and a few huge ones pass each
other, and none starves.

Shares follow start-time fair queueing (Goyal, Vin and Cheng, 1996): each flow has a virtual time at
which its next entry may start, serving an entry advances it by the entry's cost, and the flow with
the earliest start is next. An idle flow accumulates no credit.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable
from operator import attrgetter
from typing import Generic, Protocol, TypeVar


class Entry(Protocol):
    """An entry of the queue; it waits once at a time.

    flow    its flow
    due     preferred time of completion
    cost_s  estimated seconds of work
    """

    flow: Hashable
    due: float
    cost_s: float


E = TypeVar("E", bound=Entry)


class FairQueue(Generic[E]):
    """Fair queue of waiting entries, without a limit or clock."""

    def __init__(self) -> None:
        self._flows: dict[Hashable, list[E]] = {}
        # Virtual times: of now, and of each flow's next start, if that is later.
        self._now = 0.0
        self._starts: dict[Hashable, float] = {}

    def __len__(self) -> int:
        return sum(map(len, self._flows.values()))

    def waiting(self, flow: Hashable) -> int:
        """Return the number of a flow's entries."""
        return len(self._flows.get(flow, ()))

    def push(self, entry: E) -> None:
        """Add an entry behind those with the same due time."""
        insort(self._flows.setdefault(entry.flow, []), entry, key=attrgetter("due"))

    def pop(self) -> E:
        """Remove and return the next entry, at no cost to its flow.

        Raises ValueError if the queue is empty.
        """
        entry = self._flows[min(self._flows, key=self._start)][0]
        self.remove(entry)
        return entry

    def charge(self, entry: E) -> None:
        """Note that an entry is served."""
        if self._flows:
            self._now = max(self._now, self._start(entry.flow))
            self._starts[entry.flow] = self._now + entry.cost_s
            self._starts = {one: start for one, start in self._starts.items() if start > self._now}

    def remove(self, entry: E) -> None:
        """Remove an entry, if it waits, at no cost to its flow."""
        waiting = self._flows.get(entry.flow, [])
        if entry not in waiting:
            return
        waiting.remove(entry)
        if not waiting:
            del self._flows[entry.flow]
        if not self._flows:
            self._starts.clear()

    def _start(self, flow: Hashable) -> float:
        return self._starts.get(flow, self._now)
