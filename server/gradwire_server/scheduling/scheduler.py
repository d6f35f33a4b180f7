"""Slots of threads, turns of evaluations in them, and their queue."""

from __future__ import annotations

import asyncio
import math
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Self

from gradwire_server.scheduling.estimator import QueueLimit, WorkPace

# The longest turn. Work of more than one turn counts as large.
TURN_S = 0.005
# How long entries with nearer deadlines may pass an entry.
_PATIENCE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An evaluation's claim on the slots.

    work      multiplications, or taps of tables
    peer      the caller
    deadline  on the monotonic clock
    paced     whether the caller sends the input step by step: it is never refused, and one turn
              counts as waiting
    """

    work: int
    peer: Hashable = None
    deadline: float = math.inf
    paced: bool = False


class FairQueue:
    """Fair queue over flows, ordered by deadline within each.

    It has no limit and no clock.

    A flow is the small or the large work of one caller. Flows get equal shares of the seconds of
    work served; within one, the entry due first is next. So many small entries and a few huge ones
    pass each other, and none starves.

    Shares follow start-time fair queueing (Goyal, Vin and Cheng, 1996): each flow has a virtual
    time at which its next entry may start, serving an entry advances it by the entry's cost, and
    the flow with the earliest start is next. An idle flow accumulates no credit.
    """

    def __init__(self) -> None:
        self._flows: dict[Hashable, list[Turns]] = {}
        # Virtual times: of now, and of each flow's next start, if that is later.
        self._now = 0.0
        self._starts: dict[Hashable, float] = {}

    def __len__(self) -> int:
        return sum(map(len, self._flows.values()))

    def waiting(self, flow: Hashable) -> int:
        """Return the number of a flow's entries."""
        return len(self._flows.get(flow, ()))

    def push(self, entry: Turns) -> None:
        """Add an entry behind those with the same due time."""
        insort(self._flows.setdefault(entry.flow, []), entry, key=attrgetter("due"))

    def pop(self) -> Turns:
        """Remove and return the next entry, at no cost to its flow.

        Raises ValueError if the queue is empty.
        """
        entry = self._flows[min(self._flows, key=self._start)][0]
        self.remove(entry)
        return entry

    def charge(self, entry: Turns) -> None:
        """Note that an entry is served."""
        if self._flows:
            self._now = max(self._now, self._start(entry.flow))
            self._starts[entry.flow] = self._now + entry.cost_s
            self._starts = {one: start for one, start in self._starts.items() if start > self._now}

    def remove(self, entry: Turns) -> None:
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


@dataclass(eq=False)
class Slots:
    """A fixed number of slots, and what was admitted to them.

    Used from one event loop only.

    threads   number of threads that work in them
    limit     longest wait of newcomers
    refusals  counts entries dropped because they are too late, as "late"
    in_turns  whether evaluations are done in short turns, with one slot more, so that no thread
              waits for the event loop; otherwise in one
    pace      measured times of work
    taken     number of slots in use
    admitted  the backlog
    """

    threads: int
    limit: QueueLimit
    clock: Callable[[], float]
    refusals: Counter[str]
    in_turns: bool

    def __post_init__(self) -> None:
        self.pace = WorkPace()
        self.queue = FairQueue()
        self.admitted: set[Turns] = set()
        self.taken = 0

    @property
    def _is_full(self) -> bool:
        return self.taken >= self.threads + self.in_turns

    @property
    def must_wait(self) -> bool:
        """Whether a newcomer has to wait for a slot."""
        return len(self.queue) > 0 or self._is_full

    def wait_s(self, turns: Turns) -> float:
        """Return the estimated seconds that a newcomer waits.

        With turns, no other flow is served more than its own until it is done. Deadlines are not
        considered.
        """
        left: defaultdict[Hashable, float] = defaultdict(float)
        for each in self.admitted:
            left[each.flow] += each.left_s
        own_s = left.pop(turns.flow, 0.0)
        fair_s = own_s + turns.left_s if self.in_turns else math.inf
        others_s = sum(min(other_s, fair_s) for other_s in left.values())
        return (own_s + others_s) / self.threads

    async def take(self, turns: Turns) -> None:
        """Wait for a slot.

        Raises TimeoutError if the deadline can no longer be met.
        """
        if turns.claim.deadline <= self.clock():
            self.refusals["late"] += 1
            raise TimeoutError
        if not self.must_wait:
            self.taken += 1
            return
        grant = turns.grant = asyncio.get_running_loop().create_future()
        self.queue.push(turns)
        try:
            await grant
        except asyncio.CancelledError:
            self.queue.remove(turns)
            if not grant.cancelled() and grant.exception() is None:
                self.free()
            raise

    def free(self) -> None:
        """Free a slot; the next entry gets it."""
        self.taken -= 1
        now = self.clock()
        while self.queue and not self._is_full:
            turns = self.queue.pop()
            if turns.grant.done():
                continue
            if turns.claim.deadline - turns.left_s < now:
                self.refusals["late"] += 1
                turns.grant.set_exception(TimeoutError())
                continue
            self.taken += 1
            self.queue.charge(turns)
            turns.grant.set_result(None)

    def free_after(self, work: Future[Any]) -> None:
        """Free a slot, if its thread still works once that is done.

        Its caller may no longer wait for it.
        """
        if work.done():
            self.free()
            return
        loop = asyncio.get_running_loop()

        def tell(_: Future[Any]) -> None:
            # A closed loop needs no slots.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self.free)

        work.add_done_callback(tell)


class Turns:
    """Turns of one evaluation, one after the other.

    They are a context that counts in the backlog.

    flow     caller, and whether it is large work
    seconds  spent so far
    left_s   estimated seconds that still wait for slots
    due      preferred time of the next turn
    cost_s   estimated seconds of a turn
    """

    grant: asyncio.Future[None]

    def __init__(self, claim: Claim, slots: Slots) -> None:
        seconds = slots.pace.estimate_s(claim.work)
        self.claim, self._slots = claim, slots
        self.flow: Hashable = (claim.peer, seconds > TURN_S)
        self.seconds = 0.0
        self.cost_s = min(seconds, TURN_S)
        self.left_s = self.cost_s if claim.paced else seconds
        self._stand()

    def __enter__(self) -> Self:
        self._slots.admitted.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._slots.admitted.discard(self)
        if self.seconds and kind is None:
            self._slots.pace.note(self.claim.work, self.seconds)

    def _stand(self) -> None:
        """Queue behind the present entries, unless the deadline is nearer than theirs."""
        self.due = min(self.claim.deadline, self._slots.clock() + _PATIENCE_S)

    async def slot(self) -> Slots:
        """Wait for a slot; the caller frees it in the returned Slots.

        Raises TimeoutError if the deadline can no longer be met.
        """
        if self.claim.paced:
            # Renewed for each step; otherwise the oldest stream would block the others.
            self._stand()
        await self._slots.take(self)
        return self._slots

    def spend(self, seconds: float) -> None:
        """Note how long a turn took."""
        self.seconds += seconds
        if not self.claim.paced:
            self.left_s = max(0.0, self.left_s - seconds)
