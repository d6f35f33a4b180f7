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

from gradwire_server.backends import Backend, NumpyCpu
from gradwire_server.engine import (
    Workbench,
    together,
)
from gradwire_server.plans import Plan
from support.evaluation_cases import BACKEND, Case, cases, data_for, expected
from support.kernels import kernel_maps as maps
from support.kernels.numba_calls import compiled, needs_numba

BACKENDS = ["numpy_cpu", pytest.param("numba_cpu", marks=needs_numba)]


class Counted(NumpyCpu):
    """Keeps the plans that it applied."""

    def __init__(self) -> None:
        self.plans: list[Plan] = []

    def apply(self, plan: Plan, x: NDArray[Any], y: NDArray[Any]) -> None:
        self.plans.append(plan)
        super().apply(plan, x, y)


def backend_of(name: str) -> Backend:
    return BACKEND if name == "numpy_cpu" else compiled(1)


def in_bfloat16(case: Case) -> Case:
    source, result = (
        replace(spec, dtype=np.dtype(ml_dtypes.bfloat16)) for spec in (case.source, case.result)
    )
    return replace(case, source=source, result=result)


ANY = cases() | cases().map(in_bfloat16)


def moved(data: NDArray[np.uint8], by: int) -> memoryview:
    """Copy bytes to an address that may be odd."""
    return memoryview(bytes(by) + data.tobytes())[by:]


@pytest.mark.parametrize("name", BACKENDS)
@settings(max_examples=120, deadline=None)
@given(case=ANY, roomy=st.booleans(), count=st.integers(1, 70), shift=st.integers(0, 7))
def test_a_batch_gives_the_bits_of_each_by_itself(
    name: str, case: Case, *, roomy: bool, count: int, shift: int
) -> None:
    evaluation = replace(case, slab=1 << 20 if roomy else case.slab).evaluation()
    assume(evaluation.most_at_once)
    inputs = [data_for(case.source, seed) for seed in range(min(count, evaluation.most_at_once))]
    results = together(evaluation, [moved(each, shift) for each in inputs], backend_of(name))
    np.testing.assert_array_equal(results, [expected(case, each) for each in inputs])


def halves(side: int, *, slab: int = 1 << 20) -> Case:
    half = maps.area(side, side // 2)
    return Case.packed(Plan.build([None, half, half], (3, side, side)), slab)


def test_a_batch_is_one_call_of_the_backend_and_few_plans_serve_all_sizes() -> None:
    evaluation = halves(8).evaluation()
    backend, data = Counted(), data_for(evaluation.input).data
    for count in range(1, 65):
        together(evaluation, [data] * count, backend)
        assert len(backend.plans) == count
    assert len({id(plan) for plan in backend.plans}) == 4


def test_what_takes_several_steps_or_is_held_whole_is_in_no_batch() -> None:
    case = halves(8, slab=1 << 10)
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
@given(chosen=st.lists(ANY, min_size=1, max_size=3), dirt=st.integers(0, 255))
def test_any_layout_has_its_bits_again_and_again(name: str, chosen: list[Case], dirt: int) -> None:
    bench = workbench(name)
    evaluations = [(case, case.evaluation()) for case in chosen]
    for seed in range(2):
        for case, evaluation in evaluations:
            if not bench.takes(evaluation):
                continue
            data = data_for(case.source, seed)
            result = bench.run(evaluation, moved(data, dirt % 8))
            assert bytes(result) == expected(case, data).tobytes()
            np.frombuffer(result, np.uint8)[...] = dirt


def test_a_large_evaluation_is_refused() -> None:
    bench, large = workbench("numpy_cpu"), halves(256).evaluation()
    assert bench.takes(halves(8).evaluation())
    assert not bench.takes(large)
    with pytest.raises(ValueError, match="too large"):
        bench.run(large, bytes(large.input.wire_bytes))
