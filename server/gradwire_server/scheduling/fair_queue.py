"""Fair queue over callers and request sizes, ordered by deadline.

Callers get equal shares of the seconds of work served; within one caller, small and large entries
get equal shares; within those, the entry due first is next. So many small entries and a few huge
ones pass each other, and none starves.

Shares follow start-time fair queueing (Goyal, Vin and Cheng, 1996): each flow has a virtual time at
which its next entry may start, serving an entry advances it by the entry's cost, and the flow with
the earliest start is next. An idle flow accumulates no credit.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

# Number of idle flows remembered; beyond it, those without a debt are forgotten.
_MOST_REMEMBERED = 128


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class QueueEntry(Generic[T]):
    """An entry of the queue.

    Entries of one flow are ordered by the first two fields.

    due       preferred time of completion
    number    of the call, by arrival: a call that has begun goes before later ones
    deadline  time after which it is too late; infinite for none
    cost_s    estimated seconds of work
    needs_s   estimated seconds of all work to be done by the deadline
    large     whether it shares with large entries
    """

    due: float
    number: int
    deadline: float = field(compare=False)
    item: T = field(compare=False)
    peer: Hashable = field(compare=False)
    cost_s: float = field(compare=False)
    needs_s: float = field(compare=False)
    large: bool = field(compare=False)

    @property
    def late(self) -> float:
        """The latest start that meets the deadline."""
        return self.deadline - self.needs_s


class FairQueue(Generic[T]):
    """Fair queue of waiting entries, without a limit or clock."""

    def __init__(self) -> None:
        self._peers: dict[Hashable, _Peer[T]] = {}
        self._shares: _Shares[Hashable] = _Shares()
        self._length = 0
        self._first_late = math.inf

    def __len__(self) -> int:
        return self._length

    def push(self, place: QueueEntry[T]) -> None:
        """Add an entry.

        Entries of one call have one number, and no two wait at once.
        """
        self._peers.setdefault(place.peer, _Peer()).push(place)
        self._first_late = min(self._first_late, place.late)
        self._length += 1

    def pop(self) -> QueueEntry[T]:
        """Remove and return the next entry.

        Raises IndexError if the queue is empty.
        """
        if not self._length:
            raise IndexError("the queue is empty")
        peer = self._shares.earliest(self._peers)
        place = self._peers[peer].pop()
        self._shares.charge(peer, place.cost_s)
        self._forget(place)
        return place

    def remove(self, place: QueueEntry[T]) -> bool:
        """Remove an entry at no cost to its flow.

        Returns whether it was still there.
        """
        peer = self._peers.get(place.peer)
        if peer is None or not peer.remove(place):
            return False
        self._forget(place)
        return True

    def expire(self, now: float) -> list[QueueEntry[T]]:
        """Remove and return the entries that can no longer meet their deadlines."""
        if now <= self._first_late:
            return []
        waiting = [place for peer in self._peers.values() for place in peer]
        late = [place for place in waiting if place.late < now]
        for place in late:
            self.remove(place)
        self._first_late = min(
            (place.late for place in waiting if place.late >= now), default=math.inf
        )
        return late

    def waiting(self, peer: Hashable) -> int:
        """Return the number of a caller's entries."""
        return len(self._peers[peer]) if peer in self._peers else 0

    def _forget(self, place: QueueEntry[T]) -> None:
        self._length -= 1
        if not self._peers[place.peer]:
            del self._peers[place.peer]
        if not self._length:
            self._shares = _Shares()


class _Peer(Generic[T]):
    """Waiting entries of one caller, small and large ones separately."""

    def __init__(self) -> None:
        self._flows: dict[bool, list[QueueEntry[T]]] = {}
        self._shares: _Shares[bool] = _Shares()

    def __len__(self) -> int:
        return sum(map(len, self._flows.values()))

    def __iter__(self) -> Iterator[QueueEntry[T]]:
        for flow in self._flows.values():
            yield from flow

    def push(self, place: QueueEntry[T]) -> None:
        insort(self._flows.setdefault(place.large, []), place)

    def pop(self) -> QueueEntry[T]:
        large = self._shares.earliest(self._flows)
        place = self._flows[large].pop(0)
        self._shares.charge(large, place.cost_s)
        self._forget(place)
        return place

    def remove(self, place: QueueEntry[T]) -> bool:
        flow = self._flows.get(place.large, [])
        index = bisect_left(flow, place)
        if index == len(flow) or flow[index] is not place:
            return False
        del flow[index]
        self._forget(place)
        return True

    def _forget(self, place: QueueEntry[T]) -> None:
        if not self._flows[place.large]:
            del self._flows[place.large]


class _Shares(Generic[K]):
    """Virtual times of flows with equal shares."""

    def __init__(self) -> None:
        self._now = 0.0
        self._next: dict[K, float] = {}

    def earliest(self, waiting: Iterable[K]) -> K:
        """Return the flow that may start first."""
        return min(waiting, key=self._start)

    def charge(self, key: K, cost_s: float) -> None:
        """Note that a flow was served."""
        self._now = self._start(key)
        self._next[key] = self._now + cost_s
        if len(self._next) > _MOST_REMEMBERED:
            self._next = {one: start for one, start in self._next.items() if start > self._now}

    def _start(self, key: K) -> float:
        return max(self._now, self._next.get(key, 0.0))
