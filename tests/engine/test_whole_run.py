"""A run on the tensors themselves gives the bits of the steps on their bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from evaluation_cases import BACKEND, Bytes, Case, cases, data_for, expected, strided
from gradwire_server.engine import Evaluation, TensorSpec, WholeRun
from gradwire_server.plans import BandedMap, Plan


def _result(evaluation: Evaluation) -> tuple[Bytes, NDArray[np.generic]]:
    """Allocate the bytes of a result, and see them as a tensor."""
    data = np.full(evaluation.output.wire_bytes, 0xA5, np.uint8)
    return data, strided(data, evaluation.output)


@settings(max_examples=300, deadline=None)
@given(case=cases(), slab=st.sampled_from([1 << 4, 1 << 20]), backward=st.booleans())
def test_a_run_on_the_tensors_gives_the_bits_of_apply(
    case: Case, slab: int, *, backward: bool
) -> None:
    evaluation = replace(case, slab=slab).evaluation()
    data = data_for(case.source)
    source = strided(data, case.source)
    if backward:
        source = np.ascontiguousarray(source[::-1])[::-1]
    written, result = _result(evaluation)
    run = WholeRun.of(evaluation, source, result, spare_bytes=1 << 30)
    assume(run is not None)
    assert run is not None
    run(source, result, BACKEND)
    np.testing.assert_array_equal(written, expected(case, data))


def _downsampling(slab: int) -> Evaluation:
    bands = BandedMap.from_taps(np.arange(8).reshape(4, 2), np.full((4, 2), 0.5), inputs=8)
    plan = Plan.build([None, bands, bands], (3, 8, 8))
    float32 = np.dtype(np.float32)
    source, result = (
        TensorSpec.packed(float32, sizes) for sizes in (plan.input_shape, plan.output_shape)
    )
    return Case(plan, source, result, slab).evaluation()


def test_several_steps_are_one_where_results_of_two_passes_fit_in_memory() -> None:
    x, y = np.ones((3, 8, 8), np.float32), np.empty((3, 4, 4), np.float32)
    two_passes = 2 * 4 * (3 * 4 * 8)
    run = WholeRun.of(_downsampling(100), x, y, spare_bytes=two_passes)
    assert run is not None
    assert not run.one_step
    assert WholeRun.of(_downsampling(100), x, y, spare_bytes=two_passes - 1) is None


def test_it_needs_one_step_and_arrays_that_it_need_not_copy() -> None:
    x, y = np.ones((3, 8, 8), np.float32), np.empty((3, 4, 4), np.float32)
    one_step = _downsampling(1 << 10)
    assert WholeRun.of(one_step, x, y) is not None
    assert WholeRun.of(one_step, x[:, ::-1], y) is not None
    assert WholeRun.of(_downsampling(100), x, y) is None
    assert WholeRun.of(one_step, x, y[::-1]) is None
    assert WholeRun.of(one_step, x.astype(">f4"), y) is None
    assert WholeRun.of(one_step, x, y.astype(">f4")) is None
