"""An evaluation in memory gives the bits of one apply(), in few steps where the backend allows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire_server.backends import Backend
from gradwire_server.engine import Prepared, TensorSpec, in_memory
from gradwire_server.plans import BandedMap, Plan
from support.evaluation_cases import BACKEND, Bytes, Case, cases, data_for, expected
from support.kernels.numba_calls import compiled, needs_numba


def _run(evaluation: Prepared, data: Bytes, backend: Backend) -> tuple[Bytes, int]:
    result = np.full(evaluation.output.wire_bytes, 0xA5, np.uint8)
    steps = len(list(in_memory(evaluation, result, data, backend)))
    return result, steps


@settings(max_examples=200, deadline=None)
@given(case=cases(), slab=st.sampled_from([1, 1 << 4, 1 << 20]))
def test_it_gives_the_bits_of_apply(case: Case, slab: int) -> None:
    data = data_for(case.source)
    result, _ = _run(replace(case, slab=slab).evaluation(), data, BACKEND)
    np.testing.assert_array_equal(result, expected(case, data))


@needs_numba
@settings(max_examples=200, deadline=None)
@given(case=cases(), slab=st.sampled_from([1, 1 << 4, 1 << 20]))
def test_it_gives_the_same_bits_in_large_steps(case: Case, slab: int) -> None:
    data = data_for(case.source)
    result, steps = _run(replace(case, slab=slab).evaluation(), data, compiled(2))
    np.testing.assert_array_equal(result, expected(case, data))
    assert steps <= len(list(replace(case, slab=slab).evaluation().steps()))


@needs_numba
@pytest.mark.parametrize(("strides", "most"), [((0, 0), 1), ((1, 0), 8), ((96, 1), 1)])
def test_large_steps_hold_no_more_memory_than_small_ones(
    strides: tuple[int, int], most: int
) -> None:
    halves = [
        BandedMap.from_taps(np.arange(n).reshape(-1, 2), np.full((n // 2, 2), 0.5), inputs=n)
        for n in (64, 96)
    ]
    plan, float32 = Plan.build(halves, (64, 96)), np.dtype(np.float32)
    source = TensorSpec(float32, plan.input_shape, strides)
    case = Case(plan, source, TensorSpec.packed(float32, plan.output_shape), 8 * 96 + 4 * 96)
    data = data_for(source)
    result, steps = _run(case.evaluation(), data, compiled(1))
    np.testing.assert_array_equal(result, expected(case, data))
    # What has the same number all along a row would be written out row by row.
    assert (steps == 1) == (most == 1)
    assert len(list(case.evaluation().steps())) >= most
