"""Whatever the slabs, chunks and layouts, an evaluation gives the bits of one apply()."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire_server.engine import (
    Execution,
    InputAssembler,
    Prepared,
)
from gradwire_server.plans import BandedMap, Plan
from support.evaluation_cases import BACKEND, Bytes, Case, cases, computed, data_for, expected


class _Memory:
    """Places results in the middle of an array whose other bytes must stay."""

    def place(self, first: int, stop: int) -> Bytes:
        """Return memory for a result."""
        self._all = np.full(stop - first + 16, 0xA5, np.uint8)
        return self._all[8:-8]

    def checked(self) -> Bytes:
        """Return the result."""
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
    assert computed(evaluation, data).tobytes() == whole.tobytes()


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
    ("nbytes", "slices"),
    [(7 * 256, 7), (7 * 256 + 4, None), (4 * 256, None), (12 * 256, 10)],
    ids=["ends with a slice", "within a slice", "less than half a step", "more than a step"],
)
def test_a_step_of_slices_may_end_with_the_chunk(nbytes: int, slices: int | None) -> None:
    # Slices of 8 x 8 elements become 4 x 8; a step has ten of them.
    plan = Plan.build([None, _linear(4, 8), None], (16, 8, 8))
    evaluation = Case.packed(plan, 10 * (64 + 32)).evaluation()
    data = data_for(evaluation.request.input)
    chunk = data[:nbytes]
    assembler = InputAssembler(evaluation)
    steps = list(assembler.feed(chunk))
    assert [step.outer_stop for step, _ in steps][:1] == ([] if slices is None else [slices])
    assert all(np.shares_memory(piece, chunk) for _, piece in steps)
    steps += assembler.feed(data[nbytes:])
    assert b"".join(piece.tobytes() for _, piece in steps) == data.tobytes()


@pytest.mark.parametrize(
    ("outputs", "inputs"), [(8, 4000), (4000, 8), (4000, 2000)], ids=["running", "up", "down"]
)
def test_a_range_needs_the_rows_of_its_bands_and_no_others(outputs: int, inputs: int) -> None:
    width, parts = 64, 4
    bands = _linear(outputs, inputs) if outputs > 8 else _linear(inputs, outputs).adjoint()
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


def _linear(outputs: int, inputs: int) -> BandedMap:
    position = np.linspace(0, inputs - 1, outputs)
    first = np.minimum(position.astype(np.int64), inputs - 2)
    share = position - first
    return BandedMap.from_taps(
        np.stack([first, first + 1], 1), np.stack([1 - share, share], 1), inputs=inputs
    )


@pytest.mark.parametrize(
    ("outputs", "inputs", "mode"),
    [(8, 4000, "running"), (4000, 8, "window"), (4000, 2000, "window")],
)
def test_a_steps_cost_does_not_grow_with_the_tensor(outputs: int, inputs: int, mode: str) -> None:
    slab, width = 4096, 64
    bands = _linear(4000, 8).adjoint() if mode == "running" else _linear(outputs, inputs)
    assert (bands.outputs, bands.inputs) == (outputs, inputs)
    plan = Plan.build([None, bands, None], (3, inputs, width))
    evaluation = Case.packed(plan, slab).evaluation()
    assert evaluation.walk.mode == mode
    for step in evaluation.steps():
        low, high = evaluation.input_range(step)
        first, stop = evaluation.output_range(step)
        assert (high - low + stop - first) // 4 <= evaluation.walk.largest_step
    assert evaluation.walk.largest_step <= max(slab, 4 * width)


def test_the_largest_step_holds_all_results_that_an_input_row_reaches() -> None:
    width, bands = 64, _linear(400, 8).adjoint()
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
