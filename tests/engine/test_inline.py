"""Short evaluations are computed on the event loop, for a millisecond in each of its turns."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from gradwire_server.backends import Backend, NumpyCpu, most_inline_step_s
from gradwire_server.engine import Prepared
from gradwire_server.plans import Plan
from gradwire_server.scheduling.admission import InlineWork
from support.evaluation_cases import Case

# Multiplications a second: a number takes a microsecond.
RATE = 1e6
MOST_S = 500e-6


class Turns:
    """Turns of an event loop, one at a time."""

    def __init__(self) -> None:
        self._due: list[Callable[[], None]] = []

    def ask(self, action: Callable[[], None]) -> None:
        """Call a function in the next turn."""
        self._due.append(action)

    def next(self) -> None:
        """Begin the next turn."""
        due, self._due = self._due, []
        for action in due:
            action()


def inline_work(turns: Turns | None = None, *, rate: float = RATE, **limits: float) -> InlineWork:
    return InlineWork(rate, most_s=MOST_S, next_turn=(turns or Turns()).ask, **limits)


def copy_of(elements: int) -> Prepared:
    return Case.packed(Plan((elements,), (elements,), ()), slab=100).evaluation()


@pytest.mark.parametrize(("elements", "most"), [(1, 1000), (500, 2), (501, 0)])
def test_before_its_first_run_an_evaluation_takes_its_work_by_the_rate(
    elements: int, most: int
) -> None:
    inline = inline_work()
    assert inline.is_short(copy_of(elements)) is (most > 0)
    assert inline.most(copy_of(elements)) == most


def test_afterwards_it_takes_what_it_took() -> None:
    inline = inline_work()
    short, long = copy_of(1), copy_of(10_000)
    short.measured.note(501e-6)
    long.measured.note(499e-6)
    assert not inline.admits(short)
    assert inline.admits(long)


def test_one_run_amid_other_work_makes_no_evaluation_long() -> None:
    inline = inline_work()
    one = copy_of(20)
    assert inline.admits(one)
    for seconds in (5.0, 5.0, 20e-6, 5.0, 5.0):
        one.measured.note(seconds)
        assert inline.admits(one)
    for _ in range(50):
        one.measured.note(5.0)
    assert not inline.admits(one)


def test_a_millisecond_is_computed_in_a_turn() -> None:
    turns = Turns()
    inline = inline_work(turns)
    one = copy_of(150)
    for _ in range(3):
        computed = 0
        while inline.admits(one):
            inline.spend(150e-6)
            computed += 1
        assert computed == 6
        turns.next()


def test_many_at_once_have_the_same_millisecond() -> None:
    turns = Turns()
    inline = inline_work(turns)
    one = copy_of(100)
    assert inline.most(one) == 10
    inline.spend(650e-6)
    assert inline.most(one) == 3
    inline.spend(300e-6)
    assert inline.most(one) == 0
    turns.next()
    assert inline.most(one) == 10


def test_nothing_is_computed_there_without_a_rate_or_beyond_a_backend_s_most() -> None:
    assert not inline_work(rate=0).admits(copy_of(1))
    some = inline_work(most_work=100)
    assert some.admits(copy_of(100))
    assert not some.admits(copy_of(101))


def test_short_steps_of_a_stream_are_computed_on_the_event_loop_once_measured() -> None:
    turns = Turns()
    inline = inline_work(turns, most_step_s=1e-3)
    assert inline.admits_step(copy_of(1), 8), "a short evaluation needs no measure"
    stream = copy_of(10_000)
    assert not inline.is_short_step(stream, 100)
    stream.measured_steps.note(6e-6)  # for each byte
    assert inline.is_short_step(stream, 100)
    assert not inline.is_short_step(stream, 200)
    assert inline.admits_step(stream, 100)
    inline.spend(600e-6)
    assert not inline.admits_step(stream, 100)
    turns.next()
    assert inline.admits_step(stream, 100)


def test_a_step_of_a_whole_turn_is_computed_though_a_little_time_is_carried_over() -> None:
    turns = Turns()
    inline = inline_work(turns, most_step_s=1e-3)
    stream = copy_of(10_000)
    stream.measured_steps.note(9.9e-6)
    inline.spend(50e-6)
    turns.next()
    assert inline.is_short_step(stream, 100)
    assert inline.admits_step(stream, 100)


@pytest.mark.parametrize(
    ("rate", "most_step_s", "most_work"), [(RATE, 0.0, 100), (RATE, 0.0, math.inf), (0, 1e-3, 100)]
)
def test_no_step_of_a_long_evaluation_is_short_without_a_limit_or_a_rate(
    rate: float, most_step_s: float, most_work: float
) -> None:
    inline = InlineWork(rate, most_s=MOST_S, most_step_s=most_step_s, most_work=most_work)
    stream = copy_of(10_000)
    stream.measured_steps.note(1e-9)
    assert not inline.is_short_step(stream, 1)


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
def test_steps_stay_on_the_event_loop_where_few_threads_compute_on_no_device(threads: int) -> None:
    device = SimpleNamespace(name="device", may_wait=True)
    assert most_inline_step_s(cast("Backend", device), threads) == 0
    assert (most_inline_step_s(NumpyCpu(), threads) > 0) is (threads <= 2)
