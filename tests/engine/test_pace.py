"""What is measured is what is told: seconds of work, of draining, and until the next try."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_server.scheduling.estimator import Appointments, Drain, QueueLimit, WorkPace


@given(st.integers(1, 1 << 40), st.floats(1e-6, 10.0))
def test_work_that_is_known_takes_what_it_took(work: int, seconds: float) -> None:
    pace = WorkPace()
    for _ in range(3):
        pace.note(work, seconds)
    assert pace.estimate_s(work) == pytest.approx(seconds)


def test_each_size_of_work_has_its_own_pace_and_another_size_the_nearest() -> None:
    pace = WorkPace()
    pace.note(1000, 1.0)
    pace.note(1_000_000, 2.0)
    assert pace.estimate_s(1000) == pytest.approx(1.0)
    assert pace.estimate_s(1_000_000) == pytest.approx(2.0)
    assert pace.estimate_s(4_000_000) == pytest.approx(8.0)
    assert pace.estimate_s(2000) == pytest.approx(2.0)


@given(st.floats(0.001, 10.0), st.floats(1.0, 1e9), st.integers(1, 20))
def test_a_steady_drain_is_told_as_it_is(each_s: float, amount: float, times: int) -> None:
    drain = Drain()
    assert drain.seconds_for(amount) is None
    now = 0.0
    drain.enter(now)
    for _ in range(times):
        now += each_s
        drain.leave(now, amount=amount, empty=False)
    assert drain.seconds_for(amount) == pytest.approx(each_s)
    assert drain.seconds_for(3 * amount) == pytest.approx(3 * each_s)


def test_idle_time_is_no_slow_draining() -> None:
    drain = Drain()
    for start in (0.0, 1000.0, 5000.0):
        drain.enter(start)
        drain.leave(start + 0.5, empty=True)
    assert drain.seconds_for() == pytest.approx(0.5)


@given(st.lists(st.floats(0, 0.05), min_size=2, max_size=20), st.floats(0.001, 0.1))
def test_those_who_are_refused_come_back_one_after_the_other(
    gaps: list[float], spacing_s: float
) -> None:
    appointments = Appointments()
    now, times = 0.0, list[float]()
    for gap in gaps:
        now += gap
        after_s = appointments.give_s(now, wait_s=0.25, spacing_s=spacing_s)
        # Rounded up, but for the last microsecond.
        assert after_s >= 0.25 + spacing_s - 2e-6
        times.append(now + after_s)
    # In whole milliseconds.
    assert all(later - sooner > spacing_s - 0.002 for sooner, later in pairwise(times))


def test_appointments_pass_with_time_and_are_never_far_away() -> None:
    appointments = Appointments()
    first = appointments.give_s(0.0, wait_s=0.1, spacing_s=0.1)
    for _ in range(1000):
        assert appointments.give_s(0.0, wait_s=0.1, spacing_s=0.1) <= 10.0
    assert appointments.give_s(100.0, wait_s=0.1, spacing_s=0.1) == first


BURST_S, STANDING_S, COST_S = 2.0, 0.25, 0.01


def limit() -> QueueLimit:
    return QueueLimit(max_queue_s=BURST_S, standing_s=STANDING_S)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20))
def test_who_waits_in_a_burst_is_done_a_while_after_it_began_and_then_the_queue_is_short(
    gaps: list[float],
) -> None:
    queue, began, now = limit(), 100.0, 100.0
    assert queue.allowed_s(now) == BURST_S
    for gap in gaps:
        now += gap
        assert queue.allowed_s(now) == max(STANDING_S, began + BURST_S - now)


def test_a_queue_that_was_empty_for_a_moment_between_refusals_stays_short() -> None:
    queue = limit()
    queue.allowed_s(0.0)
    queue.note_refusal(5.0)
    queue.rest(5.5)
    assert queue.allowed_s(6.0) == STANDING_S
    queue.rest(5.0 + BURST_S + 0.1)
    assert queue.allowed_s(8.0) == BURST_S


def test_a_burst_is_allowed_no_less_than_what_may_stand() -> None:
    queue = QueueLimit(max_queue_s=0.1, standing_s=10.0)
    assert [queue.allowed_s(now) for now in (0.0, 1.0)] == [0.1, 0.1]


def test_what_stands_still_is_not_told_to_drain_at_once() -> None:
    drain = Drain()
    drain.enter(0.0)
    drain.leave(0.001, empty=False)
    assert drain.seconds_for(now=0.001) == pytest.approx(0.001)
    assert drain.seconds_for(now=9.0) == pytest.approx(9.0, rel=1e-3)
    drain.leave(9.0, empty=True)
    assert drain.seconds_for(now=20.0) == drain.seconds_for()
