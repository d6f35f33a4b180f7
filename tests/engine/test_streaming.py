"""Whatever the slabs, chunks and layouts, an evaluation gives the bits of one apply()."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gradwire_server.backends import Backend
from gradwire_server.engine import (
    Execution,
    InputAssembler,
    Prepared,
    TensorSpec,
    are_rows,
    in_memory,
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
from support.kernels import kernel_maps as maps
from support.kernels.numba_calls import compiled, needs_numba


class _Memory:
    """Places results in the middle of an array whose other bytes must stay."""

    def place(self, first: int, stop: int) -> Bytes:
        self._all = np.full(stop - first + 16, 0xA5, np.uint8)
        return self._all[8:-8]

    def checked(self) -> Bytes:
        assert (self._all[:8] == 0xA5).all()
        assert (self._all[-8:] == 0xA5).all()
        return self._all[8:-8]


def streamed(
    evaluation: Prepared,
    data: Bytes,
    chunk: int,
    resume_from: int = 0,
    stop_before: int | None = None,
) -> Bytes:
    execution, memory = Execution(evaluation, BACKEND), _Memory()
    assembler = InputAssembler(evaluation, resume_from=resume_from, stop_before=stop_before)
    pieces: list[Bytes] = []
    position = resume_from

    def take(chunk: Bytes) -> None:
        nonlocal position
        for step, rows in assembler.feed(chunk):
            low, high = evaluation.output_range(step)
            execution.step(step, rows, memory.place(low, high))
            result = memory.checked()
            skipped = max(0, position - low)
            if len(result) > skipped:
                assert low + skipped == position
                pieces.append(result[skipped:])
                position = high

    take(data[:0])
    for first in range(assembler.position, assembler.stop, chunk):
        take(data[first : min(first + chunk, assembler.stop)])
    assert assembler.complete
    given = np.concatenate(pieces)
    return given if stop_before is None else given[: stop_before - resume_from]


@settings(max_examples=400, deadline=None)
@given(case=cases(), chunk=st.integers(1, 80), where=st.floats(0, 1, exclude_max=True))
def test_any_slab_chunk_layout_and_resume_point_gives_the_same_bits(
    case: Case, chunk: int, where: float
) -> None:
    data = data_for(case.source)
    whole = expected(case, data)
    evaluation = case.evaluation()
    assert evaluation.output.wire_bytes == len(whole)
    np.testing.assert_array_equal(streamed(evaluation, data, chunk), whole)
    resume_from = int(where * len(whole))
    resumed = streamed(evaluation, data, chunk, resume_from)
    np.testing.assert_array_equal(resumed, whole[resume_from:])
    for one in (evaluation, evaluation.with_slab(1), evaluation.with_slab(1 << 62)):
        assert computed(one, data).tobytes() == whole.tobytes()


@settings(max_examples=400, deadline=None)
@given(
    case=cases(),
    chunk=st.integers(1, 80),
    cuts=st.lists(st.floats(0, 1, exclude_min=True, exclude_max=True), max_size=4),
)
def test_ranges_of_the_result_cut_anywhere_join_to_the_same_bits(
    case: Case, chunk: int, cuts: list[float]
) -> None:
    data = data_for(case.source)
    whole, evaluation = expected(case, data), case.evaluation()
    ends = sorted({0, len(whole), *(math.ceil(cut * len(whole)) for cut in cuts)})
    parts = [streamed(evaluation, data, chunk, *ends) for ends in pairwise(ends)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize(
    ("outputs", "inputs"), [(8, 4000), (4000, 8), (4000, 2000)], ids=["running", "up", "down"]
)
def test_a_range_needs_the_rows_of_its_bands_and_no_others(outputs: int, inputs: int) -> None:
    width, parts = 64, 4
    bands = (
        maps.corners(inputs, outputs) if outputs > 8 else maps.corners(outputs, inputs).adjoint()
    )
    plan = Plan.build([None, bands, None], (1, bands.inputs, width))
    evaluation = Case.packed(plan, 4096).evaluation()
    row = width * 4
    for part in range(parts):
        first, stop = (bands.outputs * at // parts for at in (part, part + 1))
        assembler = InputAssembler(evaluation, resume_from=first * row, stop_before=stop * row)
        assert assembler.position == (bands.start[first] * row if first else 0)
        needed = bands.stop[stop - 1] if part < parts - 1 else bands.inputs
        assert assembler.stop == needed * row


@pytest.mark.parametrize("empty", [[3, 4], [0, 3, 4], [1, 4]], ids=str)
@pytest.mark.parametrize(("slab", "mode"), [(1, "running"), (1 << 20, "slices")])
def test_ranges_that_end_with_an_empty_band_need_no_bytes_beyond_the_input(
    empty: list[int], slab: int, mode: str
) -> None:
    index = np.minimum(4 * np.arange(5)[:, None] + np.arange(4), 11)
    weight = np.ones((5, 4))
    weight[empty] = 0
    bands = BandedMap.from_taps(index, weight, inputs=12)
    plan = Plan.build([None, bands, None], (2, bands.inputs, 3))
    case = Case.packed(plan, slab)
    data, evaluation = data_for(case.source), case.evaluation()
    whole = expected(case, data)
    assert evaluation.walk.mode == mode
    assert bands.start[-1] == bands.inputs
    for first, stop in combinations(range(0, len(whole) + 1, 12), 2):
        assert evaluation.input_stop(stop) <= len(data)
        part = streamed(evaluation, data, 5, first, stop)
        np.testing.assert_array_equal(part, whole[first:stop])


@pytest.mark.parametrize(
    ("outputs", "inputs", "mode"),
    [(8, 4000, "running"), (4000, 8, "window"), (4000, 2000, "window")],
)
def test_a_steps_cost_does_not_grow_with_the_tensor(outputs: int, inputs: int, mode: str) -> None:
    slab, width = 4096, 64
    bands = maps.corners(8, 4000).adjoint() if mode == "running" else maps.corners(inputs, outputs)
    plan = Plan.build([None, bands, None], (3, inputs, width))
    evaluation = Case.packed(plan, slab).evaluation()
    assert evaluation.walk.mode == mode
    for step in evaluation.steps():
        low, high = evaluation.input_range(step)
        first, stop = evaluation.output_range(step)
        assert (high - low + stop - first) // 4 <= evaluation.walk.largest_step
    assert evaluation.walk.largest_step <= max(slab, 4 * width)


def test_the_largest_step_holds_all_results_that_an_input_row_reaches() -> None:
    width, bands = 64, maps.corners(8, 400).adjoint()
    reached = [
        int(((bands.start <= row) & (row < bands.stop)).sum()) for row in range(bands.inputs)
    ]
    plan = Plan.build([None, bands, None], (3, bands.inputs, width))
    walk = Case.packed(plan, 1).evaluation().walk
    assert walk.mode == "running"
    assert max(reached) > 1
    assert walk.largest_step == width * (1 + max(reached))


def test_a_copy_is_cut_into_slabs_whatever_its_shape() -> None:
    for sizes in [(1 << 20,), (1, 1, 1024, 1024), (64, 128, 128), (1 << 18, 2, 2)]:
        evaluation = Case.packed(Plan.build([None] * len(sizes), sizes), 1 << 16).evaluation()
        steps = list(evaluation.steps())
        assert math.prod(sizes) // (1 << 16) <= len(steps) <= 4 * math.prod(sizes) // (1 << 16)


def _run(evaluation: Prepared, data: Bytes, backend: Backend) -> tuple[Bytes, int]:
    result = np.full(evaluation.output.wire_bytes, 0xA5, np.uint8)
    steps = len(list(in_memory(evaluation, result, data, backend)))
    return result, steps


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
    halves = [maps.area(size, size // 2) for size in (64, 96)]
    plan, float32 = Plan.build(halves, (64, 96)), np.dtype(np.float32)
    source = TensorSpec(float32, plan.input_shape, strides)
    case = Case(plan, source, TensorSpec.packed(float32, plan.output_shape), 8 * 96 + 4 * 96)
    data = data_for(source)
    result, steps = _run(case.evaluation(), data, compiled(1))
    np.testing.assert_array_equal(result, expected(case, data))
    # Tensors with one number in a row would be written out row by row.
    assert (steps == 1) == (most == 1)
    assert len(list(case.evaluation().steps())) >= most


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
    written = np.full(evaluation.output.wire_bytes, 0xA5, np.uint8)
    result = strided(written, evaluation.output)
    assume(are_rows(evaluation, source))
    x, y = rows_of(evaluation, source), rows_of(evaluation, result)
    execution = Execution(evaluation, BACKEND)
    for step in evaluation.steps():
        outer = slice(step.outer_first, step.outer_stop)
        rows = x[outer, step.in_first : step.in_stop]
        execution.rows(step, rows, y[outer, step.out_first : step.out_stop])
    np.testing.assert_array_equal(written, expected(case, data))


def test_rows_are_views_of_arrays_of_the_type() -> None:
    x, y = np.ones((3, 8, 8), np.float32), np.empty((3, 4, 4), np.float32)
    bands = maps.area(8, 4)
    plan = Plan.build([None, bands, bands], (3, 8, 8))
    evaluation = Case.packed(plan, 1 << 10).evaluation()
    for array in (x, x[:, ::-1], y, y[::-1]):
        assert are_rows(evaluation, array)
        assert np.may_share_memory(rows_of(evaluation, array), array)
    assert not are_rows(evaluation, x.astype(">f4"))
    assert not are_rows(evaluation, y.astype(">f4"))


@settings(max_examples=100, deadline=None)
@given(case=cases(), chunk=st.integers(1, 80))
def test_the_input_of_steps_that_are_held_is_not_overwritten(case: Case, chunk: int) -> None:
    held = 2
    data, evaluation = data_for(case.source), case.evaluation()
    assembler = InputAssembler(evaluation)
    given: list[tuple[Bytes, slice]] = []
    for first in range(0, len(data), chunk):
        for step, rows in assembler.feed(data[first : first + chunk]):
            given = [*given, (rows, slice(*evaluation.input_range(step)))][-held:]
        # Even when the next step's bytes have begun to come.
        for rows, place in given:
            np.testing.assert_array_equal(rows, data[place])


@pytest.mark.parametrize(("slab", "most"), [(400, 2), (70, 3)])
def test_outer_slices_share_plans(slab: int, most: int) -> None:
    plan = Plan.build([None, maps.area(16, 8), None], (11, 16, 4))
    evaluation = Case.packed(plan, slab).evaluation()
    plans = evaluation.walk.step_plans
    assert plans is not None
    steps = list(evaluation.steps())
    used = [
        plans.window(
            step.outer_stop - step.outer_first,
            (step.in_first, step.in_stop),
            (step.out_first, step.out_stop),
        )
        for step in steps
    ]
    distinct = {id(plan) for plan in used}
    assert len(distinct) <= most < len(steps)
