"""The compiled backend has the bits of NumPy's, by whatever way it goes."""

from __future__ import annotations

import threading
import zlib
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire_server import backends
from gradwire_server.backends import BindsArrays, NumpyCpu, TellsHeldBytes
from gradwire_server.plans import Plan
from support.kernels import kernel_maps as maps
from support.kernels import kernel_plans
from support.kernels.backend_calls import in_pieces
from support.kernels.kernel_table import Case, cases, check, numbers, some_formats
from support.kernels.numba_calls import (
    check_all,
    check_case,
    check_conversions,
    compiled,
    listed_ways,
    methods,
    needs_numba,
    small_shares,
    streaming,
)
from support.oracles import oracles

pytestmark = needs_numba


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_every_listed_case_has_the_bits_of_numpy(case: Case) -> None:
    check_case(compiled(1), case)


@pytest.mark.parametrize("case", cases()[::3], ids=lambda case: case.name)
def test_a_plan_bound_to_its_arrays_reads_them_anew_with_the_bits_of_numpy(case: Case) -> None:
    backend = compiled(1)
    assert isinstance(backend, BindsArrays)
    for arriving, leaving in some_formats(case):
        x, y = np.zeros(case.plan.input_shape, arriving), np.empty(case.plan.output_shape, leaving)
        run = backend.bound(case.plan, x, y)
        run()
        x[...] = numbers(case, arriving, special=False)
        expected = np.empty_like(y)
        NumpyCpu().apply(case.plan, x, expected)
        run()
        oracles.same_bits(y, expected)


@pytest.mark.parametrize("threads", [1, 2])
def test_results_written_past_the_caches_have_the_bits_of_numpy(threads: int) -> None:
    with small_shares(), streaming(threads) as backend:
        check_all(backend)


@given(
    before=st.integers(0, 80), rows=st.integers(1, 40), width=st.integers(1, 300), data=st.data()
)
def test_results_written_past_the_caches_may_stand_anywhere(
    before: int, rows: int, width: int, data: st.DataObject
) -> None:
    dtype = np.dtype(data.draw(st.sampled_from(oracles.STORAGE_TYPES)))
    plan = Plan.build([None, maps.linear(width, 2 * width + 1)], (rows, width))
    x = data.draw(kernel_plans.tensors((rows, width), dtype))
    expected = np.empty(plan.output_shape, dtype)
    NumpyCpu().apply(plan, x, expected)
    memory = np.full(before + expected.nbytes + 80, 0xA5, np.uint8)
    y = memory[before : before + expected.nbytes].view(dtype).reshape(expected.shape)
    with streaming(1) as backend:
        backend.apply(plan, x, y)
    oracles.same_bits(y, expected)
    assert (memory[:before] == 0xA5).all()
    assert (memory[before + expected.nbytes :] == 0xA5).all()


def test_the_listed_cases_go_every_way() -> None:
    ways = listed_ways()
    along_rows = methods() - {0}
    assert {way.method for way in ways} == methods()
    for compute in ("float32", "float64"):
        here = [way for way in ways if way.compute == compute]
        assert {way.method for way in here if way.staged} == along_rows
        assert {way.method for way in here if way.tiled} == methods()
    assert any(way.chunked for way in ways)
    assert {1, 2, 3} <= {way.jobs for way in ways}


def test_sixteen_bit_numbers_come_in_exactly_and_go_out_rounded_to_nearest_even() -> None:
    check_conversions(compiled(1))


@pytest.mark.parametrize("dtype", oracles.STORAGE_TYPES)
def test_numbers_may_stand_anywhere_in_memory(dtype: np.dtype[np.generic]) -> None:
    for case in cases()[::9]:
        x = numbers(case, dtype, special=True)
        memory = np.empty(x.nbytes + 1, np.uint8)
        moved = memory[1:].view(dtype).reshape(x.shape)
        moved[...] = x
        assert not moved.flags.aligned or dtype.alignment == 1
        check(compiled(1), case.plan, moved, dtype)


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    length=st.sampled_from(kernel_plans.LENGTHS),
    outer=st.integers(1, 3),
    inner=st.integers(1, 140),
    dtype=st.sampled_from([np.dtype(np.float32), np.dtype(np.float64)]),
)
def test_inputs_accumulated_in_any_pieces_have_the_bits_of_numpy(
    data: st.DataObject, length: int, outer: int, inner: int, dtype: np.dtype[np.generic]
) -> None:
    bands = data.draw(kernel_plans.bands(length, 300).filter(lambda one: one.is_increasing))
    x = data.draw(kernel_plans.tensors((outer, length, inner), dtype))
    inside = data.draw(st.lists(st.integers(0, length), max_size=4))
    cuts = sorted({0, length, *inside})
    expected = np.empty((outer, bands.outputs, inner), dtype)
    NumpyCpu().accumulate(bands, x, expected, axis=1, carried=0)
    oracles.same_bits(in_pieces(compiled(1), bands, x, cuts), expected)


def _new_threads(before: set[threading.Thread]) -> int:
    found = set(threading.enumerate()) - before
    return sum(one.name.startswith("gradwire-kernel") for one in found)


def test_large_tensors_are_shared_among_threads_and_small_ones_are_not() -> None:
    small = Plan.build([None, maps.linear(64, 128)], (64, 64))
    large = Plan.build([None, maps.linear(1024, 2048)], (2048, 1024))
    backend, _ = backends.choose("numba_cpu", threads=3)
    before = set(threading.enumerate())
    check(backend, small, np.ones(small.input_shape, np.float32), np.float32)
    assert not _new_threads(before)
    check(backend, large, np.ones(large.input_shape, np.float32), np.float32)
    assert 1 <= _new_threads(before) <= 2


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_repeated_slices_have_the_bits_of_copies(case: Case) -> None:
    choices = list(product([False, True], repeat=len(case.plan.input_shape)))
    first = zlib.crc32(case.name.encode())
    for number, (arriving, leaving) in enumerate(some_formats(case)):
        whole = numbers(case, arriving, special=True)
        some = choices[(first + 7 * number) % len(choices)]
        for repeated in (some, choices[len(choices) // 2], choices[-1]):
            once = whole[tuple(slice(1) if again else slice(None) for again in repeated)]
            check(compiled(1), case.plan, np.broadcast_to(once, whole.shape), leaving)


@pytest.mark.parametrize("threads", [1, 3])
def test_one_number_is_a_tensor_of_any_shape(threads: int) -> None:
    with small_shares():
        for shape in ((64, 96), (3, 64, 96), (2, 3, 40, 64, 96)):
            bands = [None] * (len(shape) - 2) + [maps.linear(64, 33), maps.linear(96, 50)]
            x = np.broadcast_to(np.float32(0.1), shape)
            check(compiled(threads), Plan.build(bands, shape), x, np.float32)


def test_only_a_row_is_held_of_an_input_that_repeats_it() -> None:
    plan = Plan.build([maps.linear(2048, 64), maps.linear(1024, 32)], (2048, 1024))
    backend = compiled(1)
    assert isinstance(backend, TellsHeldBytes)
    y = np.empty(plan.output_shape, np.float32)
    x = np.zeros(1024, np.float32)
    assert backend.held_bytes(plan, np.broadcast_to(x, plan.input_shape), y) == 0
    assert backend.held_bytes(plan, np.broadcast_to(x[:1], plan.input_shape), y) == x.nbytes
    column = np.zeros((2048, 1), np.float32)
    assert backend.held_bytes(plan, np.broadcast_to(column, plan.input_shape), y) == 4 << 21
    assert not isinstance(NumpyCpu(), TellsHeldBytes)
