"""Who is let in to compute, who waits, who is refused, and that nothing is held for too long."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from gradwire_server.engine import Admission, Claim, Turns
from gradwire_server.engine.slots import Slot
from gradwire_server.errors import OverloadedError

WORK = 1000


class Hall:
    """An admission of one thread, with a clock to set.

    Work of 1000 is known to take a second.
    """

    def __init__(self, **limits: Any) -> None:
        self.now = 100.0
        settings: dict[str, Any] = {
            "max_memory_bytes": 100,
            "max_streams": 1,
            "retry_after_s": 0.5,
            "threads": 1,
            "max_standing_queue_s": 0.5,
            "clock": lambda: self.now,
            **limits,
        }
        self.admission = Admission(**settings)
        with self.admission.turns(Claim(work=WORK)) as turns:
            turns.spend(1.0)
        self._stack = ExitStack()

    def enter(self, *, work: int = WORK, **claim: Any) -> Turns:
        """Let an evaluation in for as long as the test takes."""
        return self._stack.enter_context(self.admission.turns(Claim(work=work, **claim)))

    async def hold(self, **claim: Any) -> Slot:
        """Let an evaluation in and give it a slot."""
        return await self.enter(**claim).slot()

    async def fill(self) -> list[Slot]:
        """Take the slot that computes and the one that is next."""
        return [await self.hold(), await self.hold()]

    def refused(self, **claim: Any) -> OverloadedError:
        """Return how an evaluation is refused."""
        with pytest.raises(OverloadedError) as caught:
            self.enter(**claim)
        return caught.value


def waiting(slot: Coroutine[Any, Any, Slot]) -> asyncio.Task[Slot]:
    return asyncio.create_task(slot)


async def settle() -> None:
    """Let every task come as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


def leave(slot: Slot) -> None:
    with slot:
        pass


def test_a_thread_has_one_that_computes_and_one_that_is_next_and_others_wait() -> None:
    async def scene() -> None:
        hall = Hall()
        slots = await hall.fill()
        third = waiting(hall.hold())
        await settle()
        assert (hall.admission.computing, hall.admission.queue_depth) == (2, 1)
        leave(slots[0])
        await third
        assert (hall.admission.computing, hall.admission.queue_depth) == (2, 0)

    asyncio.run(scene())


def test_who_would_wait_too_long_is_refused_and_told_when_all_will_be_done() -> None:
    async def scene() -> None:
        hall = Hall(max_queue_s=2.5)
        await hall.fill()
        third = waiting(hall.hold())
        await settle()
        refused = hall.refused()
        assert refused.facts["limit"] == "max_queue_s"
        assert "GRADWIRE_MAX_QUEUE_S" in refused.message
        # Three seconds of work, and then its own; whoever is next comes a second later.
        assert refused.retry_after_s == 4.0
        assert hall.refused().retry_after_s == 5.0
        assert hall.admission.refusals == {"max_queue_s": 2}
        assert hall.admission.backlog_s == 3.0
        third.cancel()

    asyncio.run(scene())


def test_small_work_is_let_in_beside_a_caller_with_much() -> None:
    async def scene() -> None:
        hall = Hall(max_queue_s=2.5)
        await hall.fill()
        third = waiting(hall.hold())
        await settle()
        hall.refused()
        other = waiting(hall.hold(peer="other"))
        small = waiting(hall.hold(work=1))
        await settle()
        assert hall.admission.queue_depth == 3
        for task in (third, other, small):
            task.cancel()

    asyncio.run(scene())


def test_what_a_turn_has_done_is_waited_for_no_more() -> None:
    async def scene() -> None:
        hall = Hall(max_queue_s=2.5)
        first = hall.enter()
        await first.slot()
        await hall.hold()
        third = waiting(hall.hold())
        await settle()
        hall.refused()
        first.spend(0.75)
        assert hall.admission.backlog_s == 2.25
        fourth = waiting(hall.hold())
        await settle()
        assert hall.admission.queue_depth == 2
        for task in (third, fourth):
            task.cancel()

    asyncio.run(scene())


def test_who_cannot_make_its_deadline_is_refused_before_it_waits() -> None:
    async def scene() -> None:
        hall = Hall()
        await hall.fill()
        refused = hall.refused(deadline=hall.now + 2.9)
        assert refused.facts["limit"] == "deadline"
        assert refused.retry_after_s == 3.0
        turns = hall.enter(deadline=hall.now + 3.1)
        assert not turns.seconds

    asyncio.run(scene())


def test_an_idle_server_refuses_nobody_for_an_estimate() -> None:
    hall = Hall(max_queue_s=0.001)
    hall.enter(work=1000 * WORK, deadline=hall.now + 0.001)


def test_who_is_late_is_dropped_while_it_waits() -> None:
    async def scene() -> None:
        hall = Hall()
        slots = await hall.fill()
        late = waiting(hall.hold(deadline=hall.now + 3.1))
        patient = waiting(hall.hold())
        await settle()
        hall.now += 3.0
        leave(slots[0])
        await patient
        with pytest.raises(TimeoutError):
            await late
        assert hall.admission.refusals == {"late": 1}

    asyncio.run(scene())


def test_a_turn_after_the_deadline_is_none() -> None:
    async def scene() -> None:
        hall = Hall()
        turns = hall.enter(deadline=hall.now + 1.5)
        leave(await turns.slot())
        hall.now += 2.0
        with pytest.raises(TimeoutError):
            await turns.slot()

    asyncio.run(scene())


def test_who_is_cancelled_leaves_the_queue_at_once() -> None:
    async def scene() -> None:
        hall = Hall()
        slots = await hall.fill()
        gone, patient = waiting(hall.hold()), waiting(hall.hold())
        await settle()
        gone.cancel()
        await settle()
        assert hall.admission.queue_depth == 1
        leave(slots[0])
        await patient
        assert hall.admission.computing == 2

    asyncio.run(scene())


def test_who_is_cancelled_as_its_turn_comes_gives_it_to_the_next() -> None:
    async def scene() -> None:
        hall = Hall()
        slots = await hall.fill()
        gone, patient = waiting(hall.hold()), waiting(hall.hold())
        await settle()
        leave(slots[0])
        gone.cancel()
        with suppress(asyncio.CancelledError):
            await gone
        await patient
        assert (hall.admission.computing, hall.admission.queue_depth) == (2, 0)

    asyncio.run(scene())


def test_a_slot_is_held_as_long_as_a_thread_is_at_work_in_it() -> None:
    async def scene() -> None:
        hall = Hall()
        work: Future[None] = Future()
        with await hall.hold() as slot:
            slot.until(work)
        assert hall.admission.computing == 1
        work.set_result(None)
        await settle()
        assert hall.admission.computing == 0

    asyncio.run(scene())


def test_a_caller_with_less_takes_the_place_of_the_last_of_the_one_with_most() -> None:
    async def scene() -> None:
        hall = Hall(max_queue=2)
        await hall.fill()
        greedy = [waiting(hall.hold()) for _ in range(2)]
        await settle()
        assert hall.refused().facts["limit"] == "max_queue"
        modest = waiting(hall.hold(peer="other"))
        await settle()
        with pytest.raises(OverloadedError, match="GRADWIRE_MAX_QUEUE"):
            await greedy[1]
        assert hall.admission.queue_depth == 2
        for task in (greedy[0], modest):
            task.cancel()

    asyncio.run(scene())


def test_who_has_had_a_turn_keeps_its_place() -> None:
    async def scene() -> None:
        hall = Hall(max_queue=1)
        begun = hall.enter()
        leave(await begun.slot())
        await hall.fill()
        again = waiting(begun.slot())
        await settle()
        assert hall.refused(peer="other").facts["limit"] == "max_queue"
        assert not again.done()
        again.cancel()

    asyncio.run(scene())


def test_who_began_first_goes_on_first_of_a_callers_equals() -> None:
    async def scene() -> None:
        hall = Hall()
        begun = hall.enter()
        slot = await begun.slot()
        await hall.hold()
        other = waiting(hall.hold())
        await settle()
        again = waiting(begun.slot())
        await settle()
        leave(slot)
        await again
        assert not other.done()
        other.cancel()

    asyncio.run(scene())


def test_who_is_in_a_hurry_goes_first_but_passes_nobody_for_long() -> None:
    async def scene() -> None:
        hall = Hall()
        slots = await hall.fill()
        patient = waiting(hall.hold())
        await settle()
        hurried = waiting(hall.hold(work=0, deadline=hall.now + 0.5))
        hall.now += 2.0
        late = waiting(hall.hold(work=0, deadline=hall.now + 0.5))
        await settle()
        leave(slots[0])
        await patient
        assert not late.done()
        for task in (hurried, late):
            task.cancel()

    asyncio.run(scene())


def test_streams_take_turns_with_their_steps() -> None:
    async def scene() -> None:
        hall = Hall()
        older, newer = hall.enter(paced=True), hall.enter(paced=True)
        slots = [await older.slot(), await newer.slot()]
        again = waiting(newer.slot())
        await settle()
        oldest = waiting(older.slot())
        await settle()
        leave(slots[0])
        await again
        assert not oldest.done()
        oldest.cancel()

    asyncio.run(scene())


def test_a_paced_evaluation_is_never_refused_and_waits_step_by_step() -> None:
    async def scene() -> None:
        hall = Hall(max_queue=1, max_queue_s=0.001)
        await hall.fill()
        first = waiting(hall.hold(paced=True, part=0.125))
        second = waiting(hall.hold(paced=True, part=0.125))
        await settle()
        assert hall.admission.queue_depth == 2
        assert hall.admission.backlog_s == 2.25
        for task in (first, second):
            task.cancel()

    asyncio.run(scene())


def test_memory_that_drains_tells_when_there_is_room() -> None:
    hall = Hall(max_queue_s=math.inf)
    with hall.admission.memory(60):
        with hall.admission.memory(40):
            hall.now += 2.0
        with pytest.raises(OverloadedError) as caught, hall.admission.memory(60):
            pass
        # 40 bytes went in 2 s: 20 are missing, and the next to come needs 60 more.
        assert caught.value.retry_after_s == 4.0
    assert hall.admission.memory_bytes == 0
    assert hall.admission.entered == 2


def test_while_the_queue_stands_newcomers_are_refused_that_a_burst_would_have_let_in() -> None:
    async def scene() -> None:
        hall = Hall(max_queue_s=4.5, max_standing_queue_s=0.5)
        await hall.fill()
        third = waiting(hall.hold())
        await settle()
        hall.now += 4.5
        refused = hall.refused()
        assert refused.facts["limit"] == "max_standing_queue_s"
        assert "GRADWIRE_MAX_STANDING_QUEUE_S" in refused.message
        third.cancel()

    asyncio.run(scene())
