"""Lets evaluations in while there is room for them, and refuses the rest at once.

- Memory, of all evaluations in flight, those that wait included: what does not fit is refused.
- Slots: as many as threads that compute, and one for what is next, so that no thread waits for the
  event loop. An evaluation takes a slot for a turn at a time and waits for the next one in a fair
  queue (fair_queue.py). So streams hold no slot while they read or write, and long work lets short
  work pass.
- The queue is short in time: where all slots are taken, a newcomer that would wait longer than
  `max_queue_s`, and longer than it takes itself, is refused. That, and not how many wait, keeps the
  latency of those who are let in near that of an idle server.
- Who could not be done by its deadline is refused before it waits, and dropped where that turns out
  while it waits. Who is cancelled leaves at once.

Who has had a turn is never refused. Every refusal says when to come back, by how fast things drain
here (pace.py).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from itertools import count

from gradwire_server.engine.backlog import Backlog
from gradwire_server.engine.pace import Appointments, Drain, WorkPace
from gradwire_server.engine.slots import Slots
from gradwire_server.engine.turns import Claim, Turns
from gradwire_server.errors import OverloadedError

# The slot for what is next.
_NEXT = 1


class Admission:
    """What all evaluations in flight hold. Used from one event loop only.

    entered       evaluations that were let in so far
    memory_bytes  held by evaluations in flight, those that wait included
    streams       open
    refusals      so far, by what stood in the way: a setting; "deadline", which could not be met;
                  "late", which turned out while waiting; "unread", which intake.py counts
    """

    def __init__(
        self,
        *,
        max_memory_bytes: int,
        max_streams: int,
        retry_after_s: float,
        threads: int = 1,
        max_queue: int = 256,
        max_queue_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_memory_bytes = max_memory_bytes
        self._max_streams = max_streams
        self._retry_after_s = retry_after_s
        self._max_queue = max_queue
        self._max_queue_s = max_queue_s
        self._threads = threads
        self._clock = clock
        self.refusals: Counter[str] = Counter()
        self._slots = Slots(threads + _NEXT, clock=clock, refusals=self.refusals)
        self._backlog = Backlog()
        self._pace = WorkPace()
        self._drains = {"max_memory_bytes": Drain(), "max_streams": Drain()}
        self._appointments = Appointments()
        self._numbers = count()
        self.entered = 0
        self.memory_bytes = 0
        self.streams = 0

    @property
    def queue_depth(self) -> int:
        """Evaluations that wait for a slot."""
        return len(self._slots)

    @property
    def computing(self) -> int:
        """Slots in which something computes."""
        return self._slots.taken

    @property
    def backlog_s(self) -> float:
        """Estimated seconds until all that was let in is done."""
        return self._backlog.seconds / self._threads

    @contextmanager
    def memory(self, needed: int) -> Generator[None]:
        """Hold `needed` bytes of the budget; a request larger than all of it is let in alone."""
        if self.memory_bytes and self.memory_bytes + needed > self._max_memory_bytes:
            raise self._full(
                f"requests in flight need {self.memory_bytes} bytes of memory, this one {needed}",
                "max_memory_bytes",
                self._max_memory_bytes,
                missing=self.memory_bytes + needed - self._max_memory_bytes,
                amount=needed,
            )
        drain = self._drains["max_memory_bytes"]
        drain.enter(self._clock())
        self.memory_bytes += needed
        self.entered += 1
        try:
            yield
        finally:
            self.memory_bytes -= needed
            drain.leave(self._clock(), amount=needed, empty=not self.memory_bytes)

    @contextmanager
    def stream(self) -> Generator[None]:
        """Hold one of the places for streams."""
        if self.streams >= self._max_streams:
            came = f"{self.streams} streams are open"
            raise self._full(came, "max_streams", self._max_streams, missing=1, amount=1)
        drain = self._drains["max_streams"]
        drain.enter(self._clock())
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1
            drain.leave(self._clock(), empty=not self.streams)

    @contextmanager
    def turns(self, claim: Claim) -> Generator[Turns]:
        """Let an evaluation in to compute, or raise OverloadedError."""
        seconds = self._pace.estimate_s(claim.work)
        if not claim.paced:
            self._make_room(claim, seconds)
        turns = Turns(claim, self._slots, self._numbers, seconds=seconds)
        with self._backlog.holding(turns):
            yield turns
        if turns.seconds:
            self._pace.note(claim.work, turns.seconds)

    def _make_room(self, claim: Claim, seconds: float) -> None:
        """Find a newcomer a place, or refuse it."""
        slots = self._slots
        if slots.taken < slots.count and not slots:
            return
        wait_s = self._backlog.ahead_s(claim.peer, seconds=seconds) / self._threads
        left_s = claim.deadline - self._clock()
        if wait_s + seconds > left_s:
            came = f"a call like this takes some {wait_s + seconds:.3g} s now"
            raise self._refuse(
                f"{came}, and its deadline is in {left_s:.3g} s", "deadline", wait_s, seconds
            )
        if wait_s > max(self._max_queue_s, seconds):
            came = f"a call like this waits for some {wait_s:.3g} s now"
            came = _beyond(came, "max_queue_s", self._max_queue_s)
            raise self._refuse(came, "max_queue_s", wait_s, seconds)
        if len(slots) >= self._max_queue:
            came = _beyond(f"{len(slots)} calls wait", "max_queue", self._max_queue)
            refused = self._refuse(came, "max_queue", wait_s, seconds)
            if not self._displace(claim.peer, seconds, refused):
                raise refused

    def _displace(self, peer: Hashable, seconds: float, refused: OverloadedError) -> bool:
        """Refuse the last of the caller with most work instead, if that is not this caller."""
        heaviest = self._backlog.heaviest()
        if self._backlog.of(heaviest) <= self._backlog.of(peer) + seconds:
            return False
        return self._slots.drop(heaviest, refused)

    def _full(
        self, came: str, limit: str, allowed: int, *, missing: int, amount: int
    ) -> OverloadedError:
        """Refuse what does not fit: so much is missing of the amount it needs."""
        drain = self._drains[limit]
        wait_s, spacing_s = drain.seconds_for(missing), drain.seconds_for(amount)
        wait_s = self._retry_after_s if wait_s is None else wait_s
        came = _beyond(came, limit, allowed)
        return self._refuse(came, limit, wait_s, spacing_s or 0.0, allowed=allowed)

    def _refuse(
        self, came: str, limit: str, wait_s: float, spacing_s: float, **facts: object
    ) -> OverloadedError:
        self.refusals[limit] += 1
        spacing_s /= self._threads
        after_s = self._appointments.give_s(self._clock(), wait_s=wait_s, spacing_s=spacing_s)
        return OverloadedError(
            f"{came}; retry after {after_s} s", retry_after_s=after_s, limit=limit, **facts
        )


def _beyond(came: str, limit: str, allowed: float) -> str:
    return f"{came}; this server allows {allowed} (its setting GRADWIRE_{limit.upper()})"
