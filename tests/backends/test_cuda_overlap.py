"""Large calls of the CUDA backend: cut, and copied while they are computed, in little memory.

The simulated device does nothing before somebody waits, or everything at once; it refuses to copy
from memory that is not pinned, and notes what its streams were given.
"""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cuda_device
import kernel_maps as maps
import oracles
from backend_calls import applied
from cuda_device import SimulatedDevice
from cuda_here import needs_simulator
from gradwire_server.backends import NumpyCpu
from gradwire_server.backends.cuda.backend import Cuda
from gradwire_server.plans import Plan

pytestmark = needs_simulator

MIB = 1 << 20


def _device(*, eager: bool = False, capacity: int = 1 << 40) -> SimulatedDevice:
    return SimulatedDevice(cuda_device.compiled(), eager=eager, capacity=capacity)


def _plan(outer: int, side: int) -> Plan:
    up = maps.linear(side, 2 * side)
    return Plan.build([None, up, up], (outer, side, side)).adjoint()


def _check(backend: Cuda, plan: Plan, x: oracles.Tensor | None = None) -> None:
    if x is None:
        x = np.random.default_rng(0).standard_normal(plan.input_shape).astype(np.float32)
    expected = applied(NumpyCpu(), plan, x, np.float32)
    oracles.same_bits(applied(backend, plan, x, np.float32), expected)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), plan=oracles.plans(), staged=st.sampled_from([2, 16, 50, 4096]))
def test_any_plan_in_parts_and_pieces_of_any_size_has_the_bits_of_numpy(
    data: st.DataObject, plan: Plan, staged: int
) -> None:
    device = _device(eager=data.draw(st.booleans()))
    slots = data.draw(st.integers(1, 4))
    backend = Cuda(device, memory_bytes=MIB, slots=slots, staged_bytes=staged)
    dtype = data.draw(st.sampled_from(oracles.STORAGE_TYPES))
    x = data.draw(oracles.tensors(plan.input_shape, dtype=dtype))
    expected = applied(NumpyCpu(), plan, x, dtype)
    oracles.same_bits(applied(backend, plan, x, dtype), expected)
    assert device.most_taken <= MIB


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("staged", [2, 100, 4096, 1 << 16])
def test_sums_in_parts_and_pieces_have_the_bits_of_numpy(
    eager: bool,  # noqa: FBT001
    staged: int,
) -> None:
    backend = Cuda(_device(eager=eager), memory_bytes=MIB, slots=3, staged_bytes=staged)
    rng, bands = np.random.default_rng(1), maps.linear(9, 12)
    for axis, x_shape, y_shape in ((1, (7, 9, 5), (7, 12, 5)), (0, (9, 35), (12, 35))):
        x = rng.standard_normal(x_shape).astype(np.float32)
        sums = rng.standard_normal((*y_shape[:-1], 2 * y_shape[-1])).astype(np.float32)[..., ::2]
        expected = sums.copy()
        backend.accumulate(bands, x, sums, axis=axis, carried=5)
        NumpyCpu().accumulate(bands, x, expected, axis=axis, carried=5)
        oracles.same_bits(sums.copy(), expected)


def _traced(
    slots: int, plan: Plan, *, staged: int, x: oracles.Tensor | None = None
) -> list[tuple[str, int]]:
    """Return what streams were given and who waited, for a plan whose tables are there."""
    device = _device()
    backend = Cuda(device, memory_bytes=64 * MIB, slots=slots, staged_bytes=staged)
    _check(backend, plan, x)
    device.trace.clear()
    _check(backend, plan, x)
    return device.trace


def test_three_parts_are_under_way_before_anybody_waits() -> None:
    trace = _traced(4, _plan(16, 32), staged=1 << 16)
    given_at_once = list(takewhile(lambda one: one[0] != "wait", trace))
    assert len({stream for _, stream in given_at_once}) == 3
    assert [what for what, _ in given_at_once] == ["up", "up", "launch", "down"] * 3
    # And the fourth goes up as soon as the first has come down.
    first = given_at_once[0][1]
    waits = list(takewhile(lambda one: one[0] == "wait", trace[len(given_at_once) :]))
    assert {stream for _, stream in waits} == {first}
    assert trace[len(given_at_once) + len(waits)] == ("up", first)


def test_one_half_of_pinned_memory_is_filled_while_the_other_is_copied() -> None:
    """One slice of eight pieces, which cannot be cut into parts."""
    trace = _traced(1, _plan(1, 64), staged=1 << 14)
    assert sum(what == "up" for what, _ in trace) == 8
    up = "".join({"up": "u", "wait": "w"}.get(what, " ") for what, _ in trace).split()[0]
    assert up == "uu" + 6 * "wu"


def test_a_small_call_is_one_part() -> None:
    trace = _traced(4, _plan(16, 32), staged=4 * MIB)
    assert len({stream for _, stream in trace}) == 1
    assert [what for what, _ in trace if what != "wait"] == ["up", "launch", "down"]


@pytest.mark.parametrize("capacity", [1 << 40, 3 * MIB])
def test_a_call_takes_slabs_and_not_the_whole_tensor(capacity: int) -> None:
    device = _device(capacity=capacity)
    backend = Cuda(device, memory_bytes=4 * MIB, slots=3, staged_bytes=1 << 18)
    plan = _plan(128, 64)
    assert np.prod(plan.input_shape) * 4 == 8 * MIB
    _check(backend, plan)
    assert device.most_taken <= min(capacity, 4 * MIB)


def test_a_device_with_less_memory_than_a_slab_computes_smaller_parts() -> None:
    device = _device(capacity=MIB // 2)
    backend = Cuda(device, memory_bytes=64 * MIB)
    _check(backend, _plan(64, 32))
    assert 0 < device.most_taken <= MIB // 2


def _registered(nbytes: int) -> oracles.Tensor:
    made: oracles.Tensor = np.frombuffer(bytearray(nbytes), np.uint8)
    return made


@pytest.mark.parametrize("eager", [False, True])
def test_tensors_in_registered_memory_are_copied_from_where_they_are(
    eager: bool,  # noqa: FBT001
) -> None:
    device, plan = _device(eager=eager), _plan(1, 64)
    backend = Cuda(device, memory_bytes=4 * MIB, staged_bytes=4096)
    memory = _registered(128 << 10)
    backend.register(memory)
    x = memory[: 64 << 10].view(np.float32).reshape(plan.input_shape)
    y = memory[64 << 10 :][: 16 << 10].view(np.float32).reshape(plan.output_shape)
    rng = np.random.default_rng(2)
    for _ in range(2):
        x[...] = rng.standard_normal(x.shape)
        device.trace.clear()
        backend.apply(plan, x, y)
        oracles.same_bits(y, applied(NumpyCpu(), plan, x, np.float32))
    assert [what for what, _ in device.trace] == ["up", "launch", "down", "wait"]


def test_memory_stays_registered_while_a_call_uses_it() -> None:
    device, plan = _device(), _plan(1, 16)
    backend = Cuda(device, memory_bytes=4 * MIB)
    _check(backend, plan)
    buffer = bytearray(32 * 32 * 4)
    memory = np.frombuffer(buffer, np.uint8)
    there = weakref.ref(memory)
    backend.register(memory)
    x = np.frombuffer(buffer, np.float32).reshape(plan.input_shape)
    device.entered.clear()
    with ThreadPoolExecutor(1) as pool:
        with device.lock:
            call = pool.submit(_check, backend, plan, x)
            device.entered.wait()
            del memory
            assert there() is not None
        call.result()
    assert there() is None


def test_tensors_partly_in_registered_memory_or_with_gaps_are_staged() -> None:
    plan = _plan(2, 16)
    memory = _registered(64 << 10)
    numbers = memory.view(np.float32)
    numbers[:] = np.random.default_rng(3).standard_normal(numbers.shape)
    backend = Cuda(_device(), memory_bytes=4 * MIB, staged_bytes=4096)
    backend.register(memory[: 32 << 10])
    size = 2 * 32 * 32
    for x in (
        numbers[7000:][:size].reshape(plan.input_shape),
        numbers[: 2 * size].reshape(2, 32, 64)[:, :, ::2],
        numbers[:size].reshape(2, 32, 32).transpose(0, 2, 1),
    ):
        _check(backend, plan, x)


def test_memory_that_cannot_be_pinned_serves_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    device, plan = _device(), _plan(1, 16)
    backend = Cuda(device, memory_bytes=4 * MIB)
    memory = _registered(32 * 32 * 4)
    device.refused = "the memory is registered already"
    backend.register(memory)
    assert "not pinned" in caplog.text
    x = memory.view(np.float32).reshape(plan.input_shape)
    _check(backend, plan, x)
