"""Admission control of evaluations: event loop, memory budget, slots, queue, deadlines, streams.

- Short evaluations are computed on the event loop (InlineWork).
- Memory is budgeted over all evaluations in flight, including waiting ones. An evaluation that does
  not fit is refused.
- There are as many slots as computing threads, and one for the next evaluation, so that no thread
  waits for the event loop. An evaluation holds a slot for one turn and waits for the next turn in a
  fair queue (scheduler.py). So streams hold no slot while they read or write, and long work lets
  short work pass.
- The queue is bounded in time: a burst is admitted as far as it is done `max_queue_s` after it
  began. Under a lasting load a long queue serves no more calls than a short one and delays each of
  them: newcomers are refused if they would wait longer than STANDING_QUEUE_S and longer than a
  quarter of their own time. The distinction follows Nichols and Jacobson (2012, CoDel).
- It is also bounded in length. A caller may have as many calls waiting as it leaves places free, so
  that none fills the queue alone (dynamic thresholds: Choudhury and Hahne, 1998).
- Requests whose estimated completion exceeds the deadline are rejected, or dropped when their turn
  comes and the deadline can no longer be met. Cancelled requests leave at once.
- Opening a stream costs a caller a few bytes, so one caller has at most three quarters of all
  streams.
- Each request of one stream holds the memory it needs from its arrival on. A stream holds at most
  its share of the budget, and its next request waits (StreamMemory; rpc/batch.py).
- Long tables are built in threads of their own, with a queue of the same rules.

An evaluation that has had a turn is never refused. Every refusal carries a retry delay derived from
the rate at which the queue drains (estimator.py).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager

from gradwire_server.backends import Backend, most_inline_s, most_inline_step_s, most_inline_work
from gradwire_server.engine.prepared import Prepared
from gradwire_server.errors import RETRY_AFTER_S, ServerFullError, beyond
from gradwire_server.scheduling.estimator import (
    STANDING_QUEUE_S,
    Appointments,
    Drain,
    QueueLimit,
    WorkPace,
)
from gradwire_server.scheduling.scheduler import Claim, Slots, Turns

# One caller leaves 1 / _OTHERS_PART of all streams to the others.
_OTHERS_PART = 4
# Threads that build long tables.
TABLE_THREADS = 2
# Plain taps of a table, and the seconds to build them on a slow machine.
_TABLE_WORK = 1 << 16, 0.001
# Work may wait this part of its own time, however short the queue is kept.
_WAIT_SHARE = 0.25


class Admission:
    """Memory, slots and streams of all evaluations in flight.

    Used from one event loop only.

    entered           evaluations admitted so far
    max_memory_bytes  limit for all evaluations in flight
    memory_bytes      bytes they hold, including waiting ones
    lasting_bytes     part of them that stays taken when requests end
    refusals          so far, by cause: a setting; "deadline" if it could not be met; "late" if that
                      became clear while waiting
    """

    def __init__(
        self,
        *,
        max_memory_bytes: int,
        max_streams: int,
        threads: int = 1,
        max_queue: int = 1024,
        max_queue_s: float = math.inf,
        standing_queue_s: float = STANDING_QUEUE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_memory_bytes = max_memory_bytes
        self._max_streams = max_streams
        self._streams: Counter[Hashable] = Counter()
        self._max_queue = max_queue
        self._clock = clock
        self.refusals: Counter[str] = Counter()
        self._slots, self._table_slots = (
            Slots(
                count,
                QueueLimit(max_queue_s=max_queue_s, standing_s=standing_queue_s),
                clock,
                self.refusals,
                in_turns=in_turns,
            )
            for count, in_turns in ((threads, True), (TABLE_THREADS, False))
        )
        # Long tables are rare: the estimate for the first ones must not be zero.
        self._table_slots.pace.note(*_TABLE_WORK)
        self._memory_drain, self._stream_drain = Drain(), Drain()
        self._appointments = Appointments()
        self.entered = 0
        self.memory_bytes = 0
        self.lasting_bytes = 0

    def forget_times(self) -> None:
        """Forget measured times of evaluations: from now on another backend computes."""
        self._slots.pace = WorkPace()

    @property
    def queue_depth(self) -> int:
        """Number of evaluations that wait for a slot."""
        return len(self._slots.queue) + len(self._table_slots.queue)

    @property
    def computing(self) -> int:
        """Number of slots in use."""
        return self._slots.taken + self._table_slots.taken

    @contextmanager
    def memory(self, needed: int, *, measured: bool = True) -> Generator[None]:
        """Hold `needed` bytes of the budget.

        A request larger than the whole budget is admitted alone. Entering raises ServerFullError if
        there is no room.

        measured  whether retry delays count it
        """
        self.take_memory(needed)
        try:
            yield
        finally:
            self.free_memory(needed, measured=measured)

    def has_room(self, needed: int) -> bool:
        """Whether the budget has `needed` bytes left."""
        return self._is_idle or self.memory_bytes + needed <= self.max_memory_bytes

    @property
    def _is_idle(self) -> bool:
        """Whether no request holds memory."""
        return self.memory_bytes <= self.lasting_bytes

    def enter(self, needed: int) -> None:
        """Count a call, or raise ServerFullError if the budget lacks `needed` bytes."""
        if not self.has_room(needed):
            raise self.full_of_memory(
                f"requests in flight need {self.memory_bytes} bytes of memory, this one {needed}",
                missing=self.memory_bytes + needed - self.max_memory_bytes,
                amount=needed,
            )
        self.entered += 1

    def take_memory(self, needed: int) -> None:
        """Count a call and take `needed` bytes of the budget.

        Raises ServerFullError if they are not available.
        """
        self.enter(needed)
        self._memory_drain.enter(self._clock())
        self.memory_bytes += needed

    def free_memory(self, held: int, *, measured: bool = True) -> None:
        """Return bytes to the budget.

        measured  whether retry delays count it
        """
        self.memory_bytes -= held
        if measured:
            self._memory_drain.leave(self._clock(), amount=held, empty=self._is_idle)
        elif self._is_idle:
            self._memory_drain.stop()

    def full_of_memory(self, came: str, *, missing: int, amount: int) -> ServerFullError:
        """Return the error for a request without memory.

        The request needs `amount` bytes, of which `missing` are unavailable.
        """
        allowed, drain = self.max_memory_bytes, self._memory_drain
        return self._full(came, "max_memory_bytes", allowed, drain, missing=missing, amount=amount)

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return self._streams.total()

    @contextmanager
    def stream(self, caller: Hashable) -> Generator[None]:
        """Count a stream of a caller as open.

        Raises ServerFullError if there is no room.
        """
        most, drain = self._max_streams, self._stream_drain
        every, own, share = self.streams, self._streams[caller], most - most // _OTHERS_PART
        if every >= most:
            raise self._full(f"{every} streams are open", "max_streams", most, drain)
        if own >= share:
            came = f"this caller has {own} streams open, and {share} are its share"
            raise self._full(came, "max_streams", most, drain)
        drain.enter(self._clock())
        self._streams[caller] += 1
        try:
            yield
        finally:
            self._streams -= Counter({caller: 1})
            drain.leave(self._clock(), empty=not self._streams)

    def turns(self, claim: Claim, *, tables: bool = False) -> Turns:
        """Admit an evaluation, or the building of its tables, to the slots.

        Raises ServerFullError if it would wait too long, or has no place in the queue.
        """
        slots = self._table_slots if tables else self._slots
        turns = Turns(claim, slots)
        if not slots.queue:
            slots.limit.rest(self._clock())
        if slots.must_wait and not claim.paced:
            self._check_wait(turns, slots)
        return turns

    def _check_wait(self, turns: Turns, slots: Slots) -> None:
        claim, seconds, now = turns.claim, turns.left_s, self._clock()
        wait_s, left_s = slots.wait_s(turns), claim.deadline - now
        if wait_s + seconds > left_s:
            came = f"a call like this takes some {wait_s + seconds:.3g} s now"
            came = f"{came}, and its deadline is in {left_s:.3g} s"
            raise self._refuse(came, "deadline", wait_s, seconds / slots.threads)
        allowed_s = slots.limit.allowed_s(now)
        own = sum(slots.queue.waiting((claim.peer, large)) for large in (False, True))
        free = self._max_queue - len(slots.queue)
        if wait_s > max(allowed_s, seconds * _WAIT_SHARE):
            limit, came = "max_queue_s", f"a call like this waits for some {wait_s:.3g} s now"
            came = beyond(came, limit, f"{allowed_s:.3g} s")
        elif free < max(1, own):
            limit, came = "max_queue", f"{own} calls of this caller wait, and {free} more fit"
            came = beyond(came, limit, self._max_queue)
        else:
            return
        slots.limit.note_refusal(now)
        raise self._refuse(came, limit, wait_s, seconds / slots.threads)

    def _full(
        self,
        came: str,
        limit: str,
        allowed: int,
        drain: Drain,
        *,
        missing: float = 1,
        amount: float = 1,
    ) -> ServerFullError:
        wait_s = drain.seconds_for(missing, now=self._clock())
        wait_s = RETRY_AFTER_S if wait_s is None else wait_s
        spacing_s = drain.seconds_for(amount) or 0.0
        came = beyond(came, limit, allowed)
        return self._refuse(came, limit, wait_s, spacing_s, allowed=allowed)

    def _refuse(
        self, came: str, limit: str, wait_s: float, spacing_s: float, **facts: object
    ) -> ServerFullError:
        self.refusals[limit] += 1
        after_s = self._appointments.give_s(self._clock(), wait_s=wait_s, spacing_s=spacing_s)
        return ServerFullError(
            f"{came}; retry after {after_s} s", retry_after_s=after_s, limit=limit, **facts
        )


# One stream's share of the budget.
_SHARE = 1 / 8


class StreamMemory:
    """Memory that requests of one stream hold.

    Used from one event loop only.

    nbytes  bytes they hold
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._share_bytes = int(admission.max_memory_bytes * _SHARE)
        self.nbytes = 0

    def must_wait(self, needed: int) -> bool:
        """Return whether a request must wait for others of this stream.

        Those free memory when they are done.
        """
        is_due = self.nbytes + needed <= self._share_bytes and self._admission.has_room(needed)
        return self.nbytes > 0 and not is_due

    def take(self, needed: int) -> None:
        """Take bytes of the budget for a request.

        Raises ServerFullError as Admission does.
        """
        self._admission.take_memory(needed)
        self.nbytes += needed

    def free(self, held: int) -> None:
        """Free bytes, unless all are free."""
        if self.nbytes:
            self.nbytes -= held
            self._admission.free_memory(held)


# While the event loop computes, no other call is served.
_MOST_OF_A_TURN_S = 1e-3
_CARRIED_S = 100e-6
# Multiplications in a second, until an evaluation has been measured: compiled ones do more.
_RATE = 4e8


class InlineWork:
    """Admission of short evaluations to the event loop.

    They take at most a millisecond per loop iteration ("turn"). Until limit() is called none is
    admitted.
    """

    def __init__(self) -> None:
        self._most_s = self._most_step_s = self._most_work = 0.0
        self._spent_s = 0.0

    def limit(self, backend: Backend, threads: int) -> None:
        """Set the limits for a backend and a number of computing threads."""
        self._most_s = most_inline_s(backend)
        self._most_step_s = most_inline_step_s(backend, threads)
        self._most_work = most_inline_work(backend)

    def estimate_s(self, prepared: Prepared) -> float:
        """Return the estimated seconds of one evaluation.

        Until it was measured, its work gives the estimate.
        """
        measured = prepared.measured
        if measured.seconds is None:
            measured.seconds = prepared.inline_work / _RATE
        return measured.seconds

    def is_short(self, prepared: Prepared) -> bool:
        """Return whether an evaluation is computed on the event loop.

        It may be in this or a later turn.
        """
        is_small = prepared.inline_work <= self._most_work
        return is_small and self.estimate_s(prepared) <= self._most_s

    def most(self, prepared: Prepared) -> int:
        """Return the number of evaluations to compute in this turn.

        0 for none.
        """
        if not self.is_short(prepared):
            return 0
        left = (_MOST_OF_A_TURN_S - self._spent_s) / max(self.estimate_s(prepared), 1e-9)
        # Computed together, they are one call of the backend.
        return int(min(left, self._most_work / max(1, prepared.inline_work)))

    def step_s(self, prepared: Prepared, nbytes: int) -> float | None:
        """Return the estimated seconds of a stream's step on the event loop.

        None if it is not computed there. The first step of a long evaluation is not: it has not
        been measured.

        nbytes  bytes of its input and result
        """
        measured, is_short = prepared.measured_steps.seconds, self.is_short(prepared)
        if measured is None:
            return self.estimate_s(prepared) if is_short else None
        seconds = measured * nbytes
        return seconds if is_short or seconds <= self._most_step_s else None

    def admits_step(self, seconds: float) -> bool:
        """Whether such a step is computed in this turn."""
        # Carried seconds are never reset by waiting.
        return self._spent_s < _CARRIED_S or self._spent_s + seconds <= _MOST_OF_A_TURN_S

    def spend(self, seconds: float) -> None:
        """Count seconds of computation in this turn."""
        before = self._spent_s
        self._spent_s = before + seconds
        # Small amounts carry over to later turns: scheduling a reset takes microseconds.
        if before < _CARRIED_S <= self._spent_s:
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._spent_s = 0.0
