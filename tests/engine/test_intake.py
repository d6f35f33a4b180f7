"""While the loop is behind, as many requests are taken in as it is through with in time."""

from __future__ import annotations

from collections import Counter

import pytest

from gradwire_server.engine import Intake
from gradwire_server.engine.intake import LEAST

LATE_S = 0.05


class Gate:
    """An intake with a clock to set."""

    def __init__(self, *, max_queue_s: float = 1.0) -> None:
        self.refusals: Counter[str] = Counter()
        self.intake = Intake(max_queue_s=max_queue_s, refusals=self.refusals)
        self.now = 0.0
        self._calls = 0

    def be_late(self) -> None:
        """Have the loop late for a while."""
        for _ in range(50):
            self.intake.note_lag(LATE_S)

    def enter(self, peer: str = "one") -> int | None:
        """Return the number of the call that is taken in; None where it is refused."""
        self._calls += 1
        call = self._calls
        return call if self.intake.enter(call, peer=peer, now=self.now) else None

    def pace(self, each_s: float) -> None:
        """Have calls taken in at this pace for a while."""
        calls = [self.enter() for _ in range(20)]
        for call in calls:
            self.now += each_s
            self.intake.leave(call, now=self.now)


def test_a_loop_in_time_takes_everything_in() -> None:
    gate = Gate()
    assert None not in [gate.enter() for _ in range(1000)]
    assert not gate.refusals


def test_a_loop_is_behind_while_it_is_late_and_not_for_being_late_once() -> None:
    intake = Gate().intake
    intake.note_lag(0.004)
    assert not intake.is_behind
    for _ in range(50):
        intake.note_lag(0.004)
    assert intake.is_behind
    assert intake.lag_s == pytest.approx(0.004, rel=0.01)
    intake.note_lag(0.0)
    assert intake.is_behind
    for _ in range(50):
        intake.note_lag(0.0)
    assert not intake.is_behind


def test_a_loop_that_is_behind_takes_in_what_it_is_through_with_in_time() -> None:
    gate = Gate(max_queue_s=1.0)
    gate.pace(0.0625)
    gate.be_late()
    assert gate.intake.most == 16
    taken = [gate.enter() for _ in range(23)]
    assert taken.index(None) == 16
    assert gate.refusals == {"unread": 7}
    # All that is here, and then its own.
    assert gate.intake.retry_after_s(gate.now) == pytest.approx(1.0625, abs=0.001)
    assert gate.intake.retry_after_s(gate.now) == pytest.approx(1.125, abs=0.001)
    gate.intake.leave(taken[0], now=gate.now)
    assert gate.enter() is not None


def test_however_slow_it_is_some_are_taken_in() -> None:
    gate = Gate(max_queue_s=0.001)
    gate.be_late()
    gate.pace(10.0)
    taken = [gate.enter() for _ in range(2 * LEAST)]
    assert taken.index(None) == LEAST


def test_nobody_is_refused_before_anything_was_measured() -> None:
    gate = Gate(max_queue_s=0.001)
    gate.be_late()
    assert None not in [gate.enter() for _ in range(1000)]


def test_a_caller_with_less_than_its_share_is_taken_in_beside_a_greedy_one() -> None:
    gate = Gate(max_queue_s=1.0)
    gate.pace(0.0625)
    gate.be_late()
    while gate.enter("greedy") is not None:
        pass
    modest = [gate.enter("modest") for _ in range(10)]
    assert modest.index(None) == 8
    # However many callers there are, it stays within bounds.
    for number in range(100):
        gate.enter(str(number))
    assert len(gate.intake) == 32


def test_a_call_set_aside_keeps_nobody_out_and_is_in_again_afterwards() -> None:
    gate = Gate(max_queue_s=0.001)
    gate.pace(1.0)
    gate.be_late()
    calls = [gate.enter() for _ in range(LEAST)]
    assert gate.enter() is None
    with gate.intake.aside(calls[0], clock=lambda: gate.now):
        calls.append(gate.enter())
        assert calls[-1] is not None
        assert gate.enter() is None
    assert len(gate.intake) == LEAST + 1
    for call in calls:
        gate.intake.leave(call, now=gate.now)
    assert len(gate.intake) == 0
