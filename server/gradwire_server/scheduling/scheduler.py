"""Slots of computing threads, turns of evaluations, and work in turns."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from threading import Semaphore, Thread
from typing import Any, Generic, Self, TypeVar

from gradwire_server.plans.cancellation import AbandonedError, Check
from gradwire_server.scheduling.estimator import WorkPace
from gradwire_server.scheduling.fair_queue import FairQueue, QueueEntry

Grant = asyncio.Future[None]


class Slots:
    """A fixed number of slots. Used from one event loop only.

    taken     number of slots in use

    refusals  counts entries dropped because they are too late, as "late"
    """

    def __init__(self, count: int, *, clock: Callable[[], float], refusals: Counter[str]) -> None:
        self.count = count
        self._refusals = refusals
        self.clock = clock
        self._queue: FairQueue[Grant] = FairQueue()
        self.taken = 0

    def __len__(self) -> int:
        """Return the number of waiting entries."""
        return len(self._queue)

    def take_free(self, deadline: float) -> bool:
        """Take a slot if one is free; return whether one was.

        Raises TimeoutError if the deadline has passed.
        """
        if deadline <= self.clock():
            self._refusals["late"] += 1
            raise TimeoutError
        if self.taken < self.count and not self._queue:
            self.taken += 1
            return True
        return False

    async def take(self, place: QueueEntry[Grant]) -> None:
        """Wait for a slot.

        Raises TimeoutError if the deadline can no longer be met.
        """
        grant = place.item
        self._queue.push(place)
        try:
            await grant
        except asyncio.CancelledError:
            granted = grant.done() and not grant.cancelled() and grant.exception() is None
            if not self._queue.remove(place) and granted:
                self.free()
            raise

    def free(self) -> None:
        """Free a slot; the next entry gets it."""
        self.taken -= 1
        for place in self._queue.expire(self.clock()):
            self._refusals["late"] += 1
            if not place.item.done():
                place.item.set_exception(TimeoutError())
        while self._queue and self.taken < self.count:
            grant = self._queue.pop().item
            if not grant.done():
                self.taken += 1
                grant.set_result(None)

    def waiting(self, peer: Hashable) -> int:
        """Return the number of a caller's waiting entries."""
        return self._queue.waiting(peer)


class Slot:
    """A held slot.

    It outlives its holder while a thread still works in it.
    """

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        self._work: Future[Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._work is None or self._work.done():
            self._leave()
            return
        loop = asyncio.get_running_loop()

        def tell(_: Future[Any]) -> None:
            # A closed loop needs no slots.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._leave)

        self._work.add_done_callback(tell)

    def until(self, work: Future[Any]) -> None:
        """Hold the slot until the work is done.

        It is held even after its caller stopped waiting.
        """
        self._work = work


# The longest turn. Work of more than one turn counts as large.
TURN_S = 0.005
# How long entries with nearer deadlines may pass an entry.
_PATIENCE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An evaluation's claim on the slots.

    work      multiplications
    part      part of the work in one step, at most 1
    peer      the caller: callers have equal shares
    deadline  on the monotonic clock
    paced     whether the caller sends the input step by step: it is never refused, and one step
              counts as waiting
    tables    whether tables are built, whose work is given in taps
    """

    work: int
    part: float = 1.0
    peer: Hashable = None
    deadline: float = math.inf
    paced: bool = False
    tables: bool = False


class Backlog:
    """Estimated seconds of admitted work that is not done yet.

    Divided as in fair_queue.py: by caller, and into small and large work.
    """

    def __init__(self) -> None:
        self._peers: dict[Hashable, list[float]] = {}
        self._calls: dict[Hashable, int] = {}

    def enter(self, peer: Hashable, *, large: bool, seconds: float) -> None:
        """Add work."""
        self._peers.setdefault(peer, [0.0, 0.0])[large] += seconds
        self._calls[peer] = self._calls.get(peer, 0) + 1

    def shrink(self, peer: Hashable, *, large: bool, seconds: float) -> None:
        """Note that a part of the work is done."""
        self._peers[peer][large] -= seconds

    def leave(self, peer: Hashable, *, large: bool, seconds: float) -> None:
        """Remove the rest of the work."""
        self._calls[peer] -= 1
        if self._calls[peer]:
            self.shrink(peer, large=large, seconds=seconds)
        else:
            del self._calls[peer], self._peers[peer]

    @property
    def seconds(self) -> float:
        """The sum over all callers."""
        return sum(map(sum, self._peers.values()))

    def of(self, peer: Hashable) -> float:
        """Return one caller's backlog."""
        return sum(self._peers.get(peer, ()))

    def ahead_s(self, peer: Hashable, *, seconds: float, large: bool) -> float:
        """Return the seconds of work done before a newcomer's.

        Deadlines are not considered.
        """
        shares = self._peers.get(peer, (0.0, 0.0))
        before = shares[large] + min(shares[not large], shares[large] + seconds)
        others = (self.of(name) for name in self._peers if name != peer)
        # Until the newcomer is done, no other caller is served more than its own caller.
        return before + sum(min(other, before + seconds) for other in others)


class Turns:
    """Turns of one evaluation, one after the other.

    They are a context that counts in the backlog.

    seconds  spent so far
    left_s   estimated seconds that still wait for slots
    large    whether the evaluation counts as large work
    """

    def __init__(
        self, claim: Claim, slots: Slots, numbers: Iterator[int], backlog: Backlog, pace: WorkPace
    ) -> None:
        seconds = pace.estimate_s(claim.work)
        self.claim = claim
        self.seconds = 0.0
        self.left_s = seconds * claim.part if claim.paced else seconds
        self.large = seconds > TURN_S
        self._slots, self._numbers, self._backlog, self._pace = slots, numbers, backlog, pace
        self._cost_s = min(self.left_s, TURN_S)
        self._stand()

    def __enter__(self) -> Self:
        self._backlog.enter(self.claim.peer, large=self.large, seconds=self.left_s)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._backlog.leave(self.claim.peer, large=self.large, seconds=self.left_s)
        if self.seconds and kind is None:
            self._pace.note(self.claim.work, self.seconds)

    def _stand(self) -> None:
        """Queue behind the present entries, unless the deadline is nearer than theirs."""
        self._number = next(self._numbers)
        self._due = min(self.claim.deadline, self._slots.clock() + _PATIENCE_S)

    async def slot(self) -> Slot:
        """Wait for a slot, and return it to be held.

        Raises TimeoutError if the deadline can no longer be met.
        """
        if self.claim.paced:
            # Renewed for each step; otherwise the oldest stream would block the others.
            self._stand()
        if not self._slots.take_free(self.claim.deadline):
            place = QueueEntry(
                number=self._number,
                due=self._due,
                deadline=self.claim.deadline,
                item=asyncio.get_running_loop().create_future(),
                peer=self.claim.peer,
                cost_s=self._cost_s,
                needs_s=self.left_s,
                large=self.large,
            )
            await self._slots.take(place)
        return Slot(self._slots.free)

    def spend(self, seconds: float) -> None:
        """Note how long a turn took."""
        self.seconds += seconds
        if not self.claim.paced:
            done = min(seconds, self.left_s)
            self.left_s -= done
            self._backlog.shrink(self.claim.peer, large=self.large, seconds=done)


T = TypeVar("T")


class TurnedWork(Generic[T]):
    """Work done turn by turn, in its own thread.

    The thread waits between turns. The caller of turn() waits meanwhile, so that no more threads
    run than call it. As a context manager it ends unfinished work.

    work    takes a check to be called repeatedly: it waits at the end of a turn, and raises
            AbandonedError if no other turn follows
    turn_s  seconds of a turn, which lasts to the next check
    """

    def __init__(self, work: Callable[[Check], T], *, turn_s: float) -> None:
        self._work = work
        self._turn_s = turn_s
        self._until = 0.0
        self._abandoned = False
        self._begins, self._ends = Semaphore(0), Semaphore(0)
        self._thread: Thread | None = None
        self._outcome: Future[T] = Future()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._abandoned = True
        self._begins.release()

    def turn(self) -> bool:
        """Run the work for one turn; return whether there is more."""
        self._until = time.perf_counter() + self._turn_s
        if self._thread is None:
            self._thread = Thread(target=self._run, name="gradwire-tables", daemon=True)
            self._thread.start()
        else:
            self._begins.release()
        self._ends.acquire()
        return not self._outcome.done()

    def result(self) -> T:
        """Return the result of the finished work, or raise its exception."""
        return self._outcome.result()

    def _run(self) -> None:
        try:
            self._outcome.set_result(self._work(self._check))
        except AbandonedError:
            # A new error: the traceback of the raised one would keep the tables alive.
            self._outcome.set_exception(AbandonedError())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            self._outcome.set_exception(error)
        finally:
            self._ends.release()

    def _check(self) -> None:
        if not self._abandoned and time.perf_counter() >= self._until:
            self._ends.release()
            self._begins.acquire()
        if self._abandoned:
            raise AbandonedError
