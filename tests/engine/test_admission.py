"""Who is let in to compute, who waits, who is refused, and that nothing is held for too long."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import wraps
from typing import Any

import pytest

from gradwire_server.errors import RETRY_AFTER_S, ServerFullError
from gradwire_server.scheduling.admission import Admission
from gradwire_server.scheduling.scheduler import Claim, Slots, Turns

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
            "threads": 1,
            "standing_queue_s": 0.5,
            "clock": lambda: self.now,
            **limits,
        }
        self.admission = Admission(**settings)
        with self.admission.turns(Claim(work=WORK)) as turns:
            turns.spend(1.0)
        self._stack = ExitStack()
        self._waiting = list[asyncio.Task[Slots]]()

    def enter(self, *, work: int = WORK, **claim: Any) -> Turns:
        return self._stack.enter_context(self.admission.turns(Claim(work=work, **claim)))

    async def hold(self, **claim: Any) -> Slots:
        """Let an evaluation in and give it a slot."""
        return await self.enter(**claim).slot()

    async def fill(self) -> list[Slots]:
        """Take the slot that computes and the one that is next."""
        return [await self.hold(), await self.hold()]

    async def queue(self, **claim: Any) -> asyncio.Task[Slots]:
        """Let an evaluation in that waits for a slot as long as the test takes."""
        self._waiting.append(waiting(self.hold(**claim)))
        await settle()
        return self._waiting[-1]

    def open(self, caller: str) -> None:
        self._stack.enter_context(self.admission.stream(caller))

    def no_stream(self, caller: str) -> ServerFullError:
        with pytest.raises(ServerFullError) as caught:
            self.open(caller)
        return caught.value

    def close(self) -> None:
        self._stack.close()

    def refused(self, **claim: Any) -> ServerFullError:
        with pytest.raises(ServerFullError) as caught:
            self.enter(**claim)
        return caught.value


def on_event_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test on an event loop of its own, whose end cancels the tasks that are left."""

    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


def waiting(slot: Coroutine[Any, Any, Slots]) -> asyncio.Task[Slots]:
    return asyncio.create_task(slot)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@on_event_loop
async def test_a_thread_has_one_that_computes_and_one_that_is_next_and_others_wait() -> None:
    hall = Hall()
    slots = await hall.fill()
    third = await hall.queue()
    assert (hall.admission.computing, hall.admission.queue_depth) == (2, 1)
    slots[0].free()
    await third
    assert (hall.admission.computing, hall.admission.queue_depth) == (2, 0)


@on_event_loop
async def test_who_would_wait_too_long_is_refused_and_told_when_all_will_be_done() -> None:
    hall = Hall(max_queue_s=2.5)
    with hall.admission.turns(Claim(work=WORK)):
        pass
    await hall.fill()
    await hall.queue()
    refused = hall.refused()
    assert refused.facts["limit"] == "max_queue_s"
    assert "GRADWIRE_MAX_QUEUE_S" in refused.message
    # Three seconds of work, and then its own; whoever is next comes a second later.
    assert refused.retry_after_s == 4.0
    assert hall.refused().retry_after_s == 5.0
    assert hall.admission.refusals == {"max_queue_s": 2}


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
    slots[0].free()
    await patient
    with pytest.raises(TimeoutError):
        await late
    assert hall.admission.refusals == {"late": 1}


@on_event_loop
async def test_a_turn_after_the_deadline_is_none() -> None:
    hall = Hall()
    turns = hall.enter(deadline=hall.now + 1.5)
    (await turns.slot()).free()
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
    slots[0].free()
    await patient
    assert hall.admission.computing == 2


@on_event_loop
async def test_who_is_cancelled_as_its_turn_comes_gives_it_to_the_next() -> None:
    hall = Hall()
    slots = await hall.fill()
    gone, patient = waiting(hall.hold()), waiting(hall.hold())
    await settle()
    slots[0].free()
    gone.cancel()
    with suppress(asyncio.CancelledError):
        await gone
    await patient
    assert (hall.admission.computing, hall.admission.queue_depth) == (2, 0)


@on_event_loop
async def test_a_slot_is_held_as_long_as_a_thread_is_at_work_in_it() -> None:
    hall = Hall()
    work: Future[None] = Future()
    (await hall.hold()).free_after(work)
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


def test_a_caller_has_three_quarters_of_the_streams() -> None:
    hall = Hall(max_streams=8)
    for _ in range(6):
        hall.open("caller")
    refused = hall.no_stream("caller")
    assert "this caller has 6 streams open, and 6 are its share" in refused.message
    assert refused.facts["limit"] == "max_streams"
    assert refused.retry_after_s == RETRY_AFTER_S
    for _ in range(2):
        hall.open("other")
    assert "8 streams are open" in hall.no_stream("other").message
    hall.close()
    assert hall.admission.streams == 0
    assert hall.admission.refusals == {"max_streams": 2}


@pytest.mark.parametrize("most", [1, 2, 3])
def test_of_few_streams_a_caller_may_have_all(most: int) -> None:
    hall = Hall(max_streams=most)
    for _ in range(most):
        hall.open("caller")
    assert hall.admission.streams == most


@on_event_loop
async def test_one_caller_leaves_as_many_places_free_as_it_takes() -> None:
    hall = Hall(max_queue=5)
    await hall.fill()
    calls = [waiting(hall.hold()) for _ in range(3)]
    await settle()
    assert hall.refused().facts["limit"] == "max_queue"
    calls += [waiting(hall.hold(peer="other")) for _ in range(2)]
    await settle()
    assert hall.admission.queue_depth == 5
    for peer in ("other", "third"):
        refused = hall.refused(peer=peer)
        assert refused.facts["limit"] == "max_queue"
        assert "GRADWIRE_MAX_QUEUE)" in refused.message


@on_event_loop
async def test_who_is_in_a_hurry_goes_first_but_passes_nobody_for_long() -> None:
    hall = Hall()
    slots = await hall.fill()
    patient = await hall.queue()
    hurried = [waiting(hall.hold(work=0, deadline=hall.now + 0.5))]
    hall.now += 2.0
    hurried.append(waiting(hall.hold(work=0, deadline=hall.now + 0.5)))
    await settle()
    slots[0].free()
    await patient
    assert not hurried[1].done()


@on_event_loop
async def test_streams_take_turns_with_their_steps() -> None:
    hall = Hall()
    older, newer = hall.enter(paced=True), hall.enter(paced=True)
    slots = [await older.slot(), await newer.slot()]
    again = waiting(newer.slot())
    await settle()
    oldest = waiting(older.slot())
    await settle()
    slots[0].free()
    await again
    assert not oldest.done()
