"""Who of those that wait is next: less work, less had, more hurry, and nobody waits for ever."""

from __future__ import annotations

from gradwire_server.scheduling.scheduler import Backlog
from support.hall import Hall, leave, on_event_loop, settle, waiting


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
    leave(slots[0])
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
    leave(slots[0])
    await again
    assert not oldest.done()


def test_a_caller_whose_calls_have_all_left_is_forgotten() -> None:
    backlog = Backlog()
    for seconds in (0.1, 0.2, 0.7):
        backlog.enter("one", large=False, seconds=seconds)
    for seconds in (0.7, 0.1, 0.2):
        assert backlog.of("one") > 0
        backlog.leave("one", large=False, seconds=seconds)
    assert backlog.of("one") == 0
    assert backlog.seconds == 0
