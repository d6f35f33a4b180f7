"""Evaluations computed together, or in the same memory, have the bits of separate ones."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gradwire import ops
from gradwire_server.backends import Backend, NumpyCpu
from gradwire_server.engine import (
    EvaluationRequest,
    Limits,
    Prepared,
    Preparer,
    TableCache,
    TensorSpec,
    Workbench,
    together,
)
from gradwire_server.plans import Plan
from support.evaluation_cases import BACKEND, Case, cases, computed, data_for, expected
from support.kernels import kernel_maps as maps
from support.kernels.numba_calls import compiled, needs_numba

BACKENDS = ["numpy_cpu", pytest.param("numba_cpu", marks=needs_numba)]
Sizes = tuple[int, ...]
NCX: tuple[Sizes, Sizes] = (1, 3, 8, 10), (1, 3, 4, 5)
NXC: tuple[Sizes, Sizes] = (1, 8, 10, 3), (1, 4, 5, 3)
# Each with the sizes of its input and its result.
OPERATORS: list[tuple[ops.Operator, tuple[Sizes, Sizes]]] = [
    (ops.InterpolateBackward(mode="bilinear", data_format="NCX"), NCX),
    (ops.InterpolateBackward(mode="nearest", data_format="NXC"), NXC),
    (
        ops.Interpolate(
            mode="linear", coordinate_transformation_mode="align_corners", sizes=(4, 5)
        ),
        NXC,
    ),
    (ops.DmlResampleGrad(interpolation_mode="linear"), NXC),
    (ops.DmlResample(interpolation_mode="nearest", input_pixel_offsets=(0.25,) * 4), NCX),
]
DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16, np.float64]


class Counted(NumpyCpu):
    """Keeps the plans that it applied."""

    def __init__(self) -> None:
        self.plans: list[Plan] = []

    def apply(self, plan: Plan, x: NDArray[Any], y: NDArray[Any]) -> None:
        self.plans.append(plan)
        super().apply(plan, x, y)


def backend_of(name: str) -> Backend:
    return BACKEND if name == "numpy_cpu" else compiled(1)


@settings(max_examples=120, deadline=None)
@given(case=cases(), roomy=st.booleans(), count=st.integers(1, 70))
def test_a_batch_gives_the_bits_of_each_by_itself(case: Case, *, roomy: bool, count: int) -> None:
    evaluation = replace(case, slab=1 << 20 if roomy else case.slab).evaluation()
    assume(evaluation.most_at_once)
    inputs = [data_for(case.source, seed) for seed in range(min(count, evaluation.most_at_once))]
    results = together(evaluation, [each.data for each in inputs], BACKEND)
    np.testing.assert_array_equal(results, [expected(case, each) for each in inputs])


@pytest.mark.parametrize("name", BACKENDS)
@settings(max_examples=40, deadline=None)
@given(
    case=st.sampled_from(OPERATORS),
    dtype=st.sampled_from(DTYPES),
    count=st.integers(1, 64),
    shift=st.integers(0, 7),
)
def test_batches_of_real_operators_have_equal_bits_wherever_their_bytes_lie(
    name: str, case: tuple[ops.Operator, tuple[Sizes, Sizes]], dtype: type, count: int, shift: int
) -> None:
    evaluation = prepared(case, np.dtype(dtype))
    assert evaluation.most_at_once == 64
    backend = backend_of(name)
    inputs = [data_for(evaluation.input, seed) for seed in range(count)]
    moved = [memoryview(bytes(shift) + each.tobytes())[shift:] for each in inputs]
    results = together(evaluation, moved, backend)
    assert [each.tobytes() for each in results] == [
        computed(evaluation, each).tobytes() for each in inputs
    ]


def prepared(
    case: tuple[ops.Operator, tuple[Sizes, Sizes]], dtype: np.dtype[np.generic]
) -> Prepared:
    operator, both = case
    source, result = (TensorSpec.packed(dtype, sizes) for sizes in both)
    preparer = Preparer(Limits(), TableCache(max_entries=1 << 16))
    return preparer.prepare(EvaluationRequest(operator.name, operator, source, result))


def test_a_batch_is_one_call_of_the_backend_and_few_plans_serve_all_sizes() -> None:
    evaluation = prepared(OPERATORS[0], np.dtype(np.float32))
    backend, data = Counted(), data_for(evaluation.input).data
    for count in range(1, 65):
        together(evaluation, [data] * count, backend)
        assert len(backend.plans) == count
    assert len({id(plan) for plan in backend.plans}) == 4


def test_what_takes_several_steps_or_is_held_whole_is_in_no_batch() -> None:
    bands = maps.area(8, 4)
    plan = Plan.build([None, bands, bands], (3, 8, 8))
    case = Case.packed(plan, 1 << 10)
    turned = replace(case.result, strides=(1, 3, 12))
    assert case.evaluation().most_at_once > 0
    assert replace(case, slab=100).evaluation().most_at_once == 0
    assert replace(case, result=turned).evaluation().most_at_once == 0


def test_a_batch_fits_into_a_slab() -> None:
    bands = maps.area(8, 4)
    plan = Plan.build([bands], (8,))
    most = {}
    for slab in (12, 47, 48, 12 * 64, 1 << 20):
        most[slab] = Case.packed(plan, slab).evaluation().most_at_once
    assert most == {12: 1, 47: 1, 48: 4, 12 * 64: 64, 1 << 20: 64}


@cache
def workbench(name: str) -> Workbench:
    return Workbench(backend_of(name))


@pytest.mark.parametrize("name", BACKENDS)
@settings(max_examples=100, deadline=None)
@given(chosen=st.lists(cases(), min_size=1, max_size=3), dirt=st.integers(0, 255))
def test_any_layout_has_its_bits_again_and_again(name: str, chosen: list[Case], dirt: int) -> None:
    bench = workbench(name)
    evaluations = [(case, case.evaluation()) for case in chosen]
    for seed in range(2):
        for case, evaluation in evaluations:
            if not bench.takes(evaluation):
                continue
            data = data_for(case.source, seed)
            result = bench.run(evaluation, data.data)
            assert bytes(result) == expected(case, data).tobytes()
            np.frombuffer(result, np.uint8)[...] = dirt


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", OPERATORS, ids=lambda case: str(case[0]))
def test_real_operators_have_equal_bits(
    name: str, dtype: type, case: tuple[ops.Operator, tuple[Sizes, Sizes]]
) -> None:
    evaluation = prepared(case, np.dtype(dtype))
    for seed in range(3):
        data = data_for(evaluation.input, seed)
        result = workbench(name).run(evaluation, memoryview(b"..." + data.tobytes())[3:])
        assert bytes(result) == computed(evaluation, data).tobytes()


def large() -> Prepared:
    return prepared((OPERATORS[0][0], ((1, 3, 256, 256), (1, 3, 128, 128))), np.dtype(np.float32))


def test_a_large_evaluation_is_refused() -> None:
    bench = workbench("numpy_cpu")
    assert bench.takes(prepared((OPERATORS[0][0], NCX), np.dtype(np.float32)))
    assert not bench.takes(large())
    with pytest.raises(ValueError, match="too large"):
        bench.run(large(), bytes(large().input.wire_bytes))
