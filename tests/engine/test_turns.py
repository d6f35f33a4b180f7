"""Who of those that wait is next: less work, less had, more hurry, and nobody waits for ever."""

from __future__ import annotations

import asyncio

import pytest

from gradwire_server.errors import ServerFullError
from gradwire_server.scheduling.scheduler import Backlog
from hall import Hall, leave, settle, waiting


def test_a_caller_with_less_takes_the_place_of_the_last_of_the_one_with_most() -> None:
    async def scene() -> None:
        hall = Hall(max_queue=2)
        await hall.fill()
        greedy = [waiting(hall.hold()) for _ in range(2)]
        await settle()
        assert hall.refused().facts["limit"] == "max_queue"
        modest = waiting(hall.hold(peer="other"))
        await settle()
        with pytest.raises(ServerFullError, match="GRADWIRE_MAX_QUEUE"):
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


def test_a_caller_whose_calls_have_all_left_is_forgotten() -> None:
    backlog = Backlog()
    for seconds in (0.1, 0.2, 0.7):
        backlog.enter("one", large=False, seconds=seconds)
    for seconds in (0.7, 0.1, 0.2):
        assert backlog.heaviest() == "one"
        backlog.leave("one", large=False, seconds=seconds)
    assert backlog.heaviest() is None
    assert backlog.seconds == 0
