"""Short evaluations are computed on the event loop, for a millisecond in each of its turns."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gradwire_server.backends import Backend, NumpyCpu, most_inline_step_s
from gradwire_server.engine import Prepared
from gradwire_server.plans import Plan
from gradwire_server.scheduling.admission import InlineWork
from support.evaluation_cases import Case


def inline_work(backend: Any = None, threads: int = 2) -> InlineWork:
    inline = InlineWork()
    inline.limit(backend or NumpyCpu(), threads)
    return inline


def copy_of(elements: int) -> Prepared:
    return Case.packed(Plan((elements,), (elements,), ()), slab=100).evaluation()


def taking(seconds: float, elements: int = 1) -> Prepared:
    evaluation = copy_of(elements)
    evaluation.measured.note(seconds)
    return evaluation


def streamed(seconds_each: float) -> Prepared:
    evaluation = taking(1.0)
    evaluation.measured_steps.note(seconds_each)
    return evaluation


async def next_turn() -> None:
    await asyncio.sleep(0)


@pytest.mark.parametrize(("elements", "is_short"), [(1, True), (200_000, True), (200_001, False)])
def test_before_its_first_run_an_evaluation_takes_its_work_by_a_rate(
    elements: int, *, is_short: bool
) -> None:
    assert inline_work().is_short(copy_of(elements)) is is_short


def test_afterwards_it_takes_what_it_took() -> None:
    assert not inline_work().admits(taking(501e-6))
    assert inline_work().admits(taking(499e-6, elements=1_000_000))


def test_one_run_amid_other_work_makes_no_evaluation_long() -> None:
    inline, one = inline_work(), taking(20e-6)
    for seconds in (5.0, 5.0, 20e-6, 5.0, 5.0):
        one.measured.note(seconds)
        assert inline.admits(one)
    for _ in range(50):
        one.measured.note(5.0)
    assert not inline.admits(one)


def test_a_millisecond_is_computed_in_a_turn() -> None:
    async def run() -> None:
        inline, one = inline_work(), taking(150e-6)
        for _ in range(3):
            computed = 0
            while inline.admits(one):
                inline.spend(150e-6)
                computed += 1
            assert computed == 6
            await next_turn()

    asyncio.run(run())


def test_many_at_once_have_the_same_millisecond() -> None:
    async def run() -> None:
        inline, one = inline_work(), taking(99e-6)
        assert inline.most(one) == 10
        inline.spend(650e-6)
        assert inline.most(one) == 3
        inline.spend(300e-6)
        assert inline.most(one) == 0
        await next_turn()
        assert inline.most(one) == 10

    asyncio.run(run())


def test_nothing_is_computed_there_without_limits_or_beyond_a_backend_s_most() -> None:
    assert not InlineWork().admits(copy_of(1))
    device = SimpleNamespace(
        name="device", may_wait=True, cpu_work=101, computed_by={}, on_device=lambda: None
    )
    assert inline_work(device).admits(taking(1e-6, 100))
    assert not inline_work(device).admits(taking(1e-6, 101))


def test_short_steps_of_a_stream_are_computed_on_the_event_loop_once_measured() -> None:
    async def run() -> None:
        inline = inline_work()
        assert inline.step_s(taking(1e-6), 8) == 1e-6, "a short evaluation needs no measure"
        assert inline.step_s(taking(1.0), 100) is None
        stream = streamed(6e-6)
        seconds = inline.step_s(stream, 100)
        assert seconds == pytest.approx(600e-6)
        assert inline.step_s(stream, 200) is None
        inline.spend(600e-6)
        assert not inline.admits_step(600e-6)
        await next_turn()
        assert inline.admits_step(600e-6)

    asyncio.run(run())


def test_a_step_of_a_whole_turn_is_computed_though_a_little_time_is_carried_over() -> None:
    inline = inline_work()
    inline.spend(50e-6)
    assert inline.admits_step(990e-6)


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
def test_steps_stay_on_the_event_loop_where_few_threads_compute_on_no_device(threads: int) -> None:
    device = SimpleNamespace(name="device", may_wait=True)
    assert most_inline_step_s(cast("Backend", device), threads) == 0
    assert (most_inline_step_s(NumpyCpu(), threads) > 0) is (threads <= 2)
    assert (inline_work(threads=threads).step_s(streamed(1e-9), 1) is not None) is (threads <= 2)
