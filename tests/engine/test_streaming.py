"""Whatever the slabs, chunks and layouts, an evaluation gives the bits of one apply()."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gradwire_server.backends.numpy_cpu import NumpyCpu
from gradwire_server.engine import (
    Evaluation,
    EvaluationRequest,
    InputAssembler,
    StepRunner,
    TensorSpec,
)
from gradwire_server.engine.layout import lay_out
from gradwire_server.engine.steps import walk_over
from gradwire_server.plans import BandedMap, Plan

BACKEND = NumpyCpu()
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Case:
    """A plan with tensors laid out some way; slab in elements."""

    plan: Plan
    source: TensorSpec
    result: TensorSpec
    slab: int

    def evaluation(self) -> Evaluation:
        """Prepare it, without any limits."""
        walk = walk_over(lay_out(self.source, self.result), self.plan, self.slab)
        request = EvaluationRequest("test", (), self.source, self.result)
        return Evaluation(request, self.result, self.plan, walk)


@st.composite
def maps(draw: st.DrawFn, inputs: int) -> BandedMap:
    """Monotone bands of any width, empty ones and reversed ones included."""
    outputs = draw(st.integers(1, 12))
    width = draw(st.integers(1, inputs))
    first = sorted(draw(st.lists(st.integers(0, inputs - 1), min_size=outputs, max_size=outputs)))
    if draw(st.booleans()):
        first.reverse()
    index = np.minimum(np.array(first)[:, None] + np.arange(width), inputs - 1)
    numbers = st.integers(-3, 3)
    weight = draw(st.lists(numbers, min_size=outputs * width, max_size=outputs * width))
    return BandedMap.from_taps(
        index, np.array(weight, np.float64).reshape(outputs, width) / 4, inputs=inputs
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rank = draw(st.integers(1, 4))
    sizes = tuple(draw(st.integers(1, 9)) for _ in range(rank))
    bands = [draw(st.none() | maps(size)) for size in sizes]
    plan = Plan.build(bands, sizes, fill=draw(st.sampled_from([0.0, 7.0])))
    dtype = np.dtype(draw(st.sampled_from([np.float32, np.float16, np.float64])))
    order = draw(st.permutations(range(rank)))
    same = draw(st.booleans())
    broadcast = {axis for axis in range(rank) if draw(st.integers(0, 3)) == 0}
    source = _spec(dtype, sizes, order, broadcast)
    result_order = order if same else draw(st.permutations(range(rank)))
    result = _spec(dtype, plan.output_shape, result_order, set())
    return Case(plan, source, result, draw(st.integers(1, 200)))


def _spec(
    dtype: np.dtype[np.generic], sizes: tuple[int, ...], order: list[int], broadcast: set[int]
) -> TensorSpec:
    strides = [0] * len(sizes)
    step = 1
    for axis in reversed(order):
        if axis not in broadcast:
            strides[axis] = step
            step *= sizes[axis]
    return TensorSpec(dtype, sizes, tuple(strides))


def data_for(spec: TensorSpec, seed: int = 0) -> Bytes:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=spec.wire_bytes // spec.dtype.itemsize).astype(spec.dtype)
    return values.view(np.uint8)


def strided(data: Bytes, spec: TensorSpec) -> NDArray[np.generic]:
    """See wire bytes as the logical array."""
    reach = 1 + sum((n - 1) * s for n, s in zip(spec.sizes, spec.strides, strict=True))
    values = data.view(spec.dtype)
    assert len(values) == reach
    strides = [stride * spec.dtype.itemsize for stride in spec.strides]
    return np.lib.stride_tricks.as_strided(values, spec.sizes, strides)


def expected(case: Case, data: Bytes) -> Bytes:
    result = BACKEND.apply(case.plan, strided(data, case.source), case.result.dtype)
    order = sorted(range(len(case.result.sizes)), key=lambda axis: -case.result.strides[axis])
    return np.ascontiguousarray(result.transpose(order)).reshape(-1).view(np.uint8)


def streamed(evaluation: Evaluation, data: Bytes, chunk: int, resume_from: int = 0) -> Bytes:
    run = StepRunner(evaluation.walk, BACKEND)
    assembler = InputAssembler(evaluation, resume_from=resume_from)
    pieces: list[Bytes] = []
    position = resume_from

    def take(chunk: Bytes) -> None:
        nonlocal position
        for step, rows in assembler.feed(chunk):
            low, high = evaluation.output_range(step)
            result = run(step, rows)
            assert len(result) == high - low
            skipped = max(0, position - low)
            if len(result) > skipped:
                assert low + skipped == position
                pieces.append(result[skipped:])
                position = high

    take(data[:0])
    for first in range(assembler.position, len(data), chunk):
        take(data[first : first + chunk])
    assert assembler.complete
    return np.concatenate(pieces)


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
    np.testing.assert_array_equal(np.concatenate(list(evaluation.run_all(data, BACKEND))), whole)


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
    case = Case(
        plan,
        TensorSpec.packed(np.dtype(np.float32), plan.input_shape),
        TensorSpec.packed(np.dtype(np.float32), plan.output_shape),
        slab,
    )
    evaluation = case.evaluation()
    assert evaluation.walk.mode == mode
    for step in evaluation.steps():
        low, high = evaluation.input_range(step)
        first, stop = evaluation.output_range(step)
        assert (high - low + stop - first) // 4 <= evaluation.walk.largest_step
    assert evaluation.walk.largest_step <= max(slab, 4 * width)


def test_a_copy_is_cut_into_slabs_whatever_its_shape() -> None:
    for sizes in [(1 << 20,), (1, 1, 1024, 1024), (64, 128, 128), (1 << 18, 2, 2)]:
        spec = TensorSpec.packed(np.dtype(np.float32), sizes)
        evaluation = Case(Plan.build([None] * len(sizes), sizes), spec, spec, 1 << 16).evaluation()
        steps = list(evaluation.steps())
        assert math.prod(sizes) // (1 << 16) <= len(steps) <= 4 * math.prod(sizes) // (1 << 16)
