"""Admission, order and refusal of calls, retry delays, and work on the event loop."""

import asyncio
import math
from collections import Counter
from collections.abc import Hashable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_server.backends import NumpyCpu
from gradwire_server.errors import RETRY_AFTER_S, ServerFullError
from gradwire_server.plans import Plan
from gradwire_server.scheduling.admission import Admission, InlineWork
from gradwire_server.scheduling.estimator import Appointments, Drain, QueueLimit, WorkPace
from gradwire_server.scheduling.scheduler import Claim, FairQueue
from support.evaluation_cases import Case

WORK = 1000


class Hall:
    """An admission of one thread, with a clock to set.

    Work of 1000 is known to take a second.
    """

    def __init__(self, **limits):
        self.now = 100.0
        settings = {"max_streams": 1, "standing_queue_s": 0.5, **limits}
        self.admission = Admission(max_memory_bytes=100, clock=lambda: self.now, **settings)
        with self.admission.turns(Claim(work=WORK)) as turns:
            turns.spend(1.0)
        self._stack = ExitStack()
        self._waiting = []

    def enter(self, *, work=WORK, **claim):
        return self._stack.enter_context(self.admission.turns(Claim(work=work, **claim)))

    async def hold(self, **claim):
        """Let an evaluation in and give it a slot."""
        return await self.enter(**claim).slot()

    async def queue(self, *, count=1, **claim):
        """Let evaluations in that wait for a slot; return the first of them."""
        self._waiting += [asyncio.create_task(self.hold(**claim)) for _ in range(count)]
        await settle()
        return self._waiting[-count]

    def refused(self, **claim):
        with pytest.raises(ServerFullError) as caught:
            self.enter(**claim)
        return caught.value


async def full(*, queued=0, **limits):
    """Return an admission whose slots are taken, where so many wait, and the slot that computes."""
    hall = Hall(**limits)
    first, _ = await hall.hold(), await hall.hold()
    if queued:
        await hall.queue(count=queued)
    return hall, first


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_thread_has_one_that_computes_and_one_that_is_next_and_others_wait():
    hall, first = await full()
    third = await hall.queue()
    assert (hall.admission.computing, hall.admission.queue_depth) == (2, 1)
    first.free()
    await third
    assert (hall.admission.computing, hall.admission.queue_depth) == (2, 0)


async def test_who_would_wait_too_long_is_refused_and_told_when_all_will_be_done():
    hall = Hall(max_queue_s=2.5)
    with hall.admission.turns(Claim(work=WORK)):
        pass
    first = hall.enter()
    await first.slot()
    await hall.hold()
    await hall.queue()
    refused = hall.refused()
    assert refused.facts["limit"] == "max_queue_s"
    assert "GRADWIRE_MAX_QUEUE_S" in refused.message
    # Three seconds of work, and then its own; whoever is next comes a second later.
    assert refused.retry_after_s == 4.0
    told = [hall.refused().retry_after_s for _ in range(10)]
    assert told == [5.0, 6.0, 7.0, 8.0, 9.0, *[10.0] * 5], "never later than that"
    assert hall.admission.refusals == {"max_queue_s": 11}
    # The estimate leaves out the part of a turn that is done.
    first.spend(0.75)
    await hall.queue()
    hall.refused()
    # Others' work and small work do not wait for all of that.
    await hall.queue(peer="other")
    await hall.queue(work=1)
    assert hall.admission.queue_depth == 4
    # Appointments pass with time.
    hall.now += 100.0
    assert hall.refused().retry_after_s == pytest.approx(5.25, abs=0.01)
    # Streams are refused no step.
    hall.enter(paced=True)


async def test_who_cannot_make_its_deadline_is_refused_before_it_waits():
    hall, _ = await full()
    refused = hall.refused(deadline=hall.now + 2.9)
    assert refused.facts["limit"] == "deadline"
    assert refused.retry_after_s == 3.0
    turns = hall.enter(deadline=hall.now + 3.1)
    assert not turns.seconds


def test_an_idle_server_refuses_nobody_for_an_estimate():
    hall = Hall(max_queue_s=0.001)
    hall.enter(work=1000 * WORK, deadline=hall.now + 0.001)


async def test_who_is_late_is_dropped_while_it_waits():
    hall, first = await full()
    late = await hall.queue(deadline=hall.now + 3.1)
    patient = await hall.queue()
    hall.now += 3.0
    first.free()
    await patient
    with pytest.raises(TimeoutError):
        await late
    assert hall.admission.refusals == {"late": 1}


async def test_a_turn_after_the_deadline_is_none():
    hall = Hall()
    turns = hall.enter(deadline=hall.now + 1.5)
    (await turns.slot()).free()
    hall.now += 2.0
    with pytest.raises(TimeoutError):
        await turns.slot()


async def test_who_is_cancelled_leaves_the_queue_or_gives_its_turn_to_the_next():
    hall, first = await full()
    gone, late, patient = await hall.queue(), await hall.queue(), await hall.queue()
    gone.cancel()
    await settle()
    assert hall.admission.queue_depth == 2
    first.free()
    late.cancel()  # as its turn comes
    with suppress(asyncio.CancelledError):
        await late
    await patient
    assert (hall.admission.computing, hall.admission.queue_depth) == (2, 0)


async def test_a_slot_is_held_as_long_as_a_thread_is_at_work_in_it():
    hall = Hall()
    work = Future()
    (await hall.hold()).free_after(work)
    assert hall.admission.computing == 1
    work.set_result(None)
    await settle()
    assert hall.admission.computing == 0


def test_memory_is_given_back_however_a_request_ends_and_one_alone_may_exceed_the_budget():
    admission = Hall().admission
    with admission.memory(60):
        with pytest.raises(ServerFullError) as caught, admission.memory(50):
            pass
        assert caught.value.retry_after_s == RETRY_AFTER_S
        with pytest.raises(KeyError), admission.memory(40):
            raise KeyError
        assert admission.memory_bytes == 60
    assert admission.memory_bytes == 0
    with admission.memory(1000), pytest.raises(ServerFullError), admission.memory(1):
        pass
    assert admission.memory_bytes == 0


def test_memory_that_drains_tells_when_there_is_room():
    hall = Hall(max_queue_s=math.inf)

    def refused_s():
        with pytest.raises(ServerFullError) as caught, hall.admission.memory(60):
            pass
        return caught.value.retry_after_s

    with hall.admission.memory(60):
        with hall.admission.memory(40):
            hall.now += 2.0
        # 40 bytes went in 2 s: 20 are missing, and the next to come needs 60 more.
        assert refused_s() == 4.0
        # While nothing is freed, the estimate grows with time.
        hall.now += 5.0
        assert refused_s() == 8.0
    assert hall.admission.memory_bytes == 0
    assert hall.admission.entered == 2
    # Idle time is no slow draining.
    hall.now += 1000.0
    with hall.admission.memory(60):
        assert refused_s() < 5.0


async def test_a_standing_queue_refuses_newcomers_that_a_burst_lets_in():
    hall, first = await full(max_queue_s=4.5, standing_queue_s=0.5, queued=1)
    hall.now += 4.5
    refused = hall.refused()
    assert refused.facts["limit"] == "max_queue_s"
    assert "0.5 s (its setting GRADWIRE_MAX_QUEUE_S)" in refused.message
    # Nor does it become long by being empty for a moment, but by refusing nobody for a while.
    first.free()
    await settle()
    assert hall.admission.queue_depth == 0
    hall.refused()
    hall.now += 4.6
    await hall.queue()
    assert hall.admission.queue_depth == 1
    # No more may stand than a burst may bring.
    hall, _ = await full(max_queue_s=0.1, standing_queue_s=0.5)
    assert "0.1 s (its setting" in hall.refused().message


def test_a_caller_has_three_quarters_of_the_streams_and_all_of_a_few():
    admission = Hall(max_streams=8).admission
    with ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(admission.stream("caller"))
        own = pytest.raises(ServerFullError, match="this caller has 6 streams open, and 6")
        with own as refused, admission.stream("caller"):
            pass
        assert refused.value.facts["limit"] == "max_streams"
        assert refused.value.retry_after_s == RETRY_AFTER_S
        for _ in range(2):
            stack.enter_context(admission.stream("other"))
        with pytest.raises(ServerFullError, match="8 streams are open"), admission.stream("other"):
            pass
    assert (admission.streams, admission.refusals) == (0, {"max_streams": 2})
    few = Hall(max_streams=3).admission
    with few.stream("caller"), few.stream("caller"), few.stream("caller"):
        assert few.streams == 3


async def test_one_caller_leaves_as_many_places_free_as_it_takes():
    hall, _ = await full(max_queue=5, queued=3)
    assert hall.refused().facts["limit"] == "max_queue"
    await hall.queue(count=2, peer="other")
    assert hall.admission.queue_depth == 5
    for peer in ("other", "third"):
        refused = hall.refused(peer=peer)
        assert refused.facts["limit"] == "max_queue"
        assert "GRADWIRE_MAX_QUEUE)" in refused.message


async def test_streams_take_turns_with_their_steps():
    hall = Hall()
    older, newer = hall.enter(paced=True), hall.enter(paced=True)
    first, _ = await older.slot(), await newer.slot()
    again = asyncio.create_task(newer.slot())
    await settle()
    oldest = asyncio.create_task(older.slot())
    await settle()
    first.free()
    await again
    assert not oldest.done()


COSTS = st.floats(0.001, 1.0)


@dataclass(eq=False)
class Piece:
    """Something to queue."""

    flow: Hashable
    cost_s: float
    due: float = math.inf


PIECES = st.lists(
    st.builds(Piece, st.sampled_from("abc"), COSTS, st.just(math.inf) | st.floats(0, 10))
)


def next_of(queue):
    entry = queue.pop()
    queue.charge(entry)
    return entry


def filled(pieces):
    queue = FairQueue()
    for piece in pieces:
        queue.push(piece)
    return queue


def drained(queue):
    return [next_of(queue) for _ in range(len(queue))]


@given(PIECES, st.data())
def test_what_is_queued_comes_out_once_unless_it_is_taken_out(pieces, data):
    queue = filled(pieces)
    gone = {piece for piece in pieces if data.draw(st.booleans())}
    for piece in [*gone, *gone]:
        queue.remove(piece)
    left = Counter(piece.flow for piece in pieces if piece not in gone)
    assert {flow: queue.waiting(flow) for flow in "abc"} == {flow: left[flow] for flow in "abc"}
    assert Counter(drained(queue)) == Counter(piece for piece in pieces if piece not in gone)
    with pytest.raises(ValueError, match="empty"):
        next_of(queue)


@given(PIECES)
def test_in_a_flow_what_is_due_first_goes_first_then_who_came_first(pieces):
    order = drained(filled(pieces))
    for flow in "abc":
        own = [piece for piece in pieces if piece.flow == flow]
        assert [one for one in order if one.flow == flow] == sorted(own, key=lambda one: one.due)


@given(st.lists(st.lists(COSTS, min_size=1, max_size=20), min_size=2, max_size=4))
def test_flows_share_the_work_alike_as_long_as_they_want_any(costs):
    pieces = [Piece(flow, cost) for flow, own in enumerate(costs) for cost in own]
    waiting = Counter(piece.flow for piece in pieces)
    served = dict.fromkeys(waiting, 0.0)
    for piece in drained(filled(pieces)):
        served[piece.flow] += piece.cost_s
        # Start-time fair queueing promises two flows that both wait shares that differ by no more
        # than the largest piece of each.
        for one, other in combinations(served, 2):
            if waiting[one] and waiting[other]:
                most = sum(max(p.cost_s for p in pieces if p.flow == f) for f in (one, other))
                assert abs(served[one] - served[other]) <= most + 1e-9
        waiting[piece.flow] -= 1


@given(st.lists(COSTS, min_size=5, max_size=40))
def test_who_comes_late_does_not_wait_for_all_of_a_greedy_flow(costs):
    queue = filled([Piece("greedy", cost) for cost in costs])
    next_of(queue)
    modest = Piece("modest", 1.0)
    queue.push(modest)
    assert modest in {next_of(queue), next_of(queue)}


def test_who_was_idle_has_saved_nothing_up():
    queue = filled([Piece("busy", 1.0) for _ in range(100)])
    for _ in range(50):
        next_of(queue)
    for _ in range(20):
        queue.push(Piece("idle", 1.0))
    first = [next_of(queue).flow for _ in range(20)]
    assert abs(first.count("busy") - first.count("idle")) <= 1


@given(st.integers(1, 1 << 40), st.floats(1e-6, 10.0))
def test_work_that_is_known_takes_what_it_took(work, seconds):
    pace = WorkPace()
    for _ in range(3):
        pace.note(work, seconds)
    # Each size has its own pace, and another one that of the nearest.
    pace.note(work << 10, seconds)
    for shift, factor in ((0, 1), (10, 1), (12, 4)):
        assert pace.estimate_s(work << shift) == pytest.approx(factor * seconds)


async def test_short_evaluations_are_computed_on_the_event_loop_a_millisecond_in_a_turn():
    inline = InlineWork()
    inline.limit(NumpyCpu(), 2)
    new, long, short, one = (
        Case.packed(Plan((size,)), slab=100).evaluation() for size in (200_000, 200_001, 10**6, 1)
    )
    assert [inline.is_short(each) for each in (new, long)] == [True, False]
    # A measured evaluation takes its measured time, whatever its size; one slow run says little.
    for evaluation, times_s in ((short, [99e-6]), (one, [5.0, 5.0, 99e-6, 5.0, 5.0])):
        for seconds in times_s:
            evaluation.measured.note(seconds)
    assert inline.most(one)
    assert inline.most(short) == 10
    inline.spend(650e-6)
    assert inline.most(short) == 3
    inline.spend(300e-6)
    assert inline.most(short) == 0
    await asyncio.sleep(0)
    assert inline.most(short) == 10
    for _ in range(50):
        one.measured.note(5.0)
    assert not inline.most(one)


async def test_who_is_in_a_hurry_goes_first_but_passes_nobody_for_long():
    hall, first = await full()
    patient = await hall.queue()
    await hall.queue(work=0, deadline=hall.now + 0.5)
    hall.now += 2.0
    hurried = await hall.queue(work=0, deadline=hall.now + 0.5)
    first.free()
    await patient
    assert not hurried.done()


def test_what_is_dropped_costs_its_flow_nothing():
    late = [Piece("a", 1.0, due=number) for number in range(40)]
    queue = filled([*late, Piece("a", 1.0), *(Piece("b", 1.0) for _ in range(50))])
    served = []
    while len(served) < 2:
        entry = queue.pop()
        if entry not in late:
            queue.charge(entry)
            served.append(entry.flow)
    assert "a" in served


@given(st.floats(0.001, 10.0), st.floats(1.0, 1e9), st.integers(1, 20))
def test_a_steady_drain_is_told_as_it_is(each_s, amount, times):
    drain = Drain()
    assert drain.seconds_for(amount) is None
    now = 0.0
    drain.enter(now)
    for _ in range(times):
        now += each_s
        drain.leave(now, amount=amount, empty=False)
    assert drain.seconds_for(amount) == pytest.approx(each_s)
    assert drain.seconds_for(3 * amount) == pytest.approx(3 * each_s)


@given(st.lists(st.floats(0, 0.05), min_size=2, max_size=20), st.floats(0.001, 0.1))
def test_those_who_are_refused_come_back_one_after_the_other(gaps, spacing_s):
    appointments = Appointments()
    now, times = 0.0, []
    for gap in gaps:
        now += gap
        after_s = appointments.give_s(now, wait_s=0.25, spacing_s=spacing_s)
        # Rounded up, but for the last microsecond.
        assert after_s >= 0.25 + spacing_s - 2e-6
        times.append(now + after_s)
    # In whole milliseconds.
    assert all(later - sooner > spacing_s - 0.002 for sooner, later in pairwise(times))


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20))
def test_who_waits_in_a_burst_is_done_a_while_after_it_began_and_then_the_queue_is_short(gaps):
    burst_s, standing_s = 2.0, 0.25
    queue = QueueLimit(max_queue_s=burst_s, standing_s=standing_s)
    began = now = 100.0
    assert queue.allowed_s(now) == burst_s
    for gap in gaps:
        now += gap
        assert queue.allowed_s(now) == max(standing_s, began + burst_s - now)
