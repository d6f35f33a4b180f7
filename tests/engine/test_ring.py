"""Buffers of a ring stay as they are while they are in use."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire_server.engine import InputAssembler, Ring
from support.evaluation_cases import Bytes, Case, cases, data_for


@given(count=st.integers(1, 4), sizes=st.lists(st.integers(0, 40), max_size=30))
def test_a_buffer_is_given_out_again_only_after_all_others(count: int, sizes: list[int]) -> None:
    ring, held = Ring(count), list[tuple[Bytes, int]]()
    for number, size in enumerate(sizes):
        buffer = ring.take(size)
        assert len(buffer) == size
        buffer[:] = number % 256
        # One without bytes holds nothing, and may not make others give up what they hold.
        held = [*held, *[(buffer, number % 256)] * bool(size)][-count:]
        for taken, value in held:
            assert (taken == value).all()


def test_a_buffer_is_new_memory_only_where_the_old_is_too_small() -> None:
    ring = Ring(2)
    first, _, third = ring.take(10), ring.take(10), ring.take(7)
    assert np.shares_memory(first, third)
    assert not np.shares_memory(first, ring.take(11))


@settings(max_examples=100, deadline=None)
@given(case=cases(), chunk=st.integers(1, 80))
def test_the_input_of_steps_that_are_held_is_not_overwritten(case: Case, chunk: int) -> None:
    held = 2
    data, evaluation = data_for(case.source), case.evaluation()
    assembler = InputAssembler(evaluation, held=held)
    given: list[tuple[Bytes, slice]] = []
    for first in range(0, len(data), chunk):
        for step, rows in assembler.feed(data[first : first + chunk]):
            given = [*given, (rows, slice(*evaluation.input_range(step)))][-held:]
        # Even when the next step's bytes have begun to come.
        for rows, place in given:
            np.testing.assert_array_equal(rows, data[place])
