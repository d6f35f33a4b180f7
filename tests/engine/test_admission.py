"""Who is let in to compute, who waits, who is refused, and that nothing is held for too long."""

from __future__ import annotations

import asyncio
import math
from concurrent.futures import Future
from contextlib import suppress

import pytest

from engine.hall import WORK, Hall, leave, on_event_loop, settle, waiting
from gradwire_server.errors import ServerFullError


@on_event_loop
async def test_a_thread_has_one_that_computes_and_one_that_is_next_and_others_wait() -> None:
    hall = Hall()
    slots = await hall.fill()
    third = await hall.queue()
    assert (hall.admission.computing, hall.admission.queue_depth) == (2, 1)
    leave(slots[0])
    await third
    assert (hall.admission.computing, hall.admission.queue_depth) == (2, 0)


@on_event_loop
async def test_who_would_wait_too_long_is_refused_and_told_when_all_will_be_done() -> None:
    hall = Hall(max_queue_s=2.5)
    await hall.fill()
    await hall.queue()
    refused = hall.refused()
    assert refused.facts["limit"] == "max_queue_s"
    assert "GRADWIRE_MAX_QUEUE_S" in refused.message
    # Three seconds of work, and then its own; whoever is next comes a second later.
    assert refused.retry_after_s == 4.0
    assert hall.refused().retry_after_s == 5.0
    assert hall.admission.refusals == {"max_queue_s": 2}
    assert hall.admission.backlog_s == 3.0


@on_event_loop
async def test_small_work_is_let_in_beside_a_caller_with_much() -> None:
    hall = Hall(max_queue_s=2.5)
    await hall.fill()
    await hall.queue()
    hall.refused()
    await hall.queue(peer="other")
    await hall.queue(work=1)
    assert hall.admission.queue_depth == 3


@on_event_loop
async def test_what_a_turn_has_done_is_waited_for_no_more() -> None:
    hall = Hall(max_queue_s=2.5)
    first = hall.enter()
    await first.slot()
    await hall.hold()
    await hall.queue()
    hall.refused()
    first.spend(0.75)
    assert hall.admission.backlog_s == 2.25
    await hall.queue()
    assert hall.admission.queue_depth == 2


@on_event_loop
async def test_who_cannot_make_its_deadline_is_refused_before_it_waits() -> None:
    hall = Hall()
    await hall.fill()
    refused = hall.refused(deadline=hall.now + 2.9)
    assert refused.facts["limit"] == "deadline"
    assert refused.retry_after_s == 3.0
    turns = hall.enter(deadline=hall.now + 3.1)
    assert not turns.seconds


def test_an_idle_server_refuses_nobody_for_an_estimate() -> None:
    hall = Hall(max_queue_s=0.001)
    hall.enter(work=1000 * WORK, deadline=hall.now + 0.001)


@on_event_loop
async def test_who_is_late_is_dropped_while_it_waits() -> None:
    hall = Hall()
    slots = await hall.fill()
    late = waiting(hall.hold(deadline=hall.now + 3.1))
    patient = await hall.queue()
    hall.now += 3.0
    leave(slots[0])
    await patient
    with pytest.raises(TimeoutError):
        await late
    assert hall.admission.refusals == {"late": 1}


@on_event_loop
async def test_a_turn_after_the_deadline_is_none() -> None:
    hall = Hall()
    turns = hall.enter(deadline=hall.now + 1.5)
    leave(await turns.slot())
    hall.now += 2.0
    with pytest.raises(TimeoutError):
        await turns.slot()


@on_event_loop
async def test_who_is_cancelled_leaves_the_queue_at_once() -> None:
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


@on_event_loop
async def test_who_is_cancelled_as_its_turn_comes_gives_it_to_the_next() -> None:
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


@on_event_loop
async def test_a_slot_is_held_as_long_as_a_thread_is_at_work_in_it() -> None:
    hall = Hall()
    work: Future[None] = Future()
    with await hall.hold() as slot:
        slot.until(work)
    assert hall.admission.computing == 1
    work.set_result(None)
    await settle()
    assert hall.admission.computing == 0


def test_memory_that_drains_tells_when_there_is_room() -> None:
    hall = Hall(max_queue_s=math.inf)
    with hall.admission.memory(60):
        with hall.admission.memory(40):
            hall.now += 2.0
        with pytest.raises(ServerFullError) as caught, hall.admission.memory(60):
            pass
        # 40 bytes went in 2 s: 20 are missing, and the next to come needs 60 more.
        assert caught.value.retry_after_s == 4.0
    assert hall.admission.memory_bytes == 0
    assert hall.admission.entered == 2


@on_event_loop
async def test_a_standing_queue_refuses_newcomers_that_a_burst_lets_in() -> None:
    hall = Hall(max_queue_s=4.5, standing_queue_s=0.5)
    await hall.fill()
    await hall.queue()
    hall.now += 4.5
    refused = hall.refused()
    assert refused.facts["limit"] == "max_queue_s"
    assert "0.5 s under a lasting load (its setting GRADWIRE_MAX_QUEUE_S)" in refused.message
