"""Steps on arrays give the bits of steps on their wire bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gradwire_server.engine import (
    Execution,
    Prepared,
    are_rows,
    rows_of,
)
from gradwire_server.plans import BandedMap, Plan
from support.evaluation_cases import (
    BACKEND,
    Bytes,
    Case,
    cases,
    computed,
    data_for,
    expected,
    strided,
)


def _result(evaluation: Prepared) -> tuple[Bytes, NDArray[np.generic]]:
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
    assume(are_rows(evaluation, source))
    x, y = rows_of(evaluation, source), rows_of(evaluation, result)
    execution = Execution(evaluation, BACKEND)
    for step in evaluation.steps():
        outer = slice(step.outer_first, step.outer_stop)
        rows = x[outer, step.in_first : step.in_stop]
        execution.rows(step, rows, y[outer, step.out_first : step.out_stop])
    np.testing.assert_array_equal(written, expected(case, data))


def _downsampling(slab: int) -> Prepared:
    bands = BandedMap.from_taps(np.arange(8).reshape(4, 2), np.full((4, 2), 0.5), inputs=8)
    plan = Plan.build([None, bands, bands], (3, 8, 8))
    return Case.packed(plan, slab).evaluation()


def test_a_slab_that_holds_all_makes_one_step_with_the_same_bits() -> None:
    evaluation = _downsampling(100)
    assert len(list(evaluation.steps())) > 1
    whole = evaluation.with_slab(1 << 62)
    data = data_for(evaluation.input)
    assert whole.only_step is not None
    assert computed(whole, data).tobytes() == computed(evaluation, data).tobytes()


def test_rows_are_views_of_arrays_of_the_type() -> None:
    x, y = np.ones((3, 8, 8), np.float32), np.empty((3, 4, 4), np.float32)
    evaluation = _downsampling(1 << 10)
    for array in (x, x[:, ::-1], y, y[::-1]):
        assert are_rows(evaluation, array)
        assert np.may_share_memory(rows_of(evaluation, array), array)
    assert not are_rows(evaluation, x.astype(">f4"))
    assert not are_rows(evaluation, y.astype(">f4"))
