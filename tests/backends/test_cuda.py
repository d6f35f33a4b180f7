"""The CUDA backend's host side, on a simulated device: memory, threads, errors.

That its bits are NumPy's is said in test_every_backend.py, and row by row in tests/cuda.
"""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

import cuda_device
import kernel_maps as maps
import oracles
from backend_calls import applied
from cuda_device import SimulatedDevice
from cuda_here import needs_simulator
from gradwire import Client, OutOfMemoryError, ServerError, ops
from gradwire_server import LocalClient
from gradwire_server.backends import NumpyCpu
from gradwire_server.backends.cuda.backend import Cuda
from gradwire_server.backends.cuda.device import DeviceLostError
from gradwire_server.backends.cuda.memory import size_class
from gradwire_server.plans import Plan
from serving import serving

pytestmark = needs_simulator

MIB = 1 << 20


def _device(*, capacity: int = 1 << 40) -> SimulatedDevice:
    return SimulatedDevice(cuda_device.compiled(), capacity=capacity)


def _plan(side: int) -> Plan:
    up = maps.linear(side, 2 * side)
    return Plan.build([None, up, up], (2, side, side)).adjoint()


def _check(backend: Cuda, plan: Plan, seed: int = 0) -> None:
    x = np.random.default_rng(seed).standard_normal(plan.input_shape).astype(np.float32)
    expected = applied(NumpyCpu(), plan, x, np.float32)
    oracles.same_bits(applied(backend, plan, x, np.float32), expected)


def test_threads_at_once_have_the_bits_of_numpy() -> None:
    backend = Cuda(_device(), memory_bytes=256 * MIB, slots=2, staged_bytes=4096)
    plans = [_plan(side) for side in (5, 16, 33)]
    start = threading.Barrier(6)

    def work(number: int) -> None:
        start.wait()
        for turn in range(9):
            _check(backend, plans[(number + turn) % len(plans)], seed=10 * number + turn)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))


@pytest.mark.parametrize("staged", [1, 100, 4096, 1 << 20])
def test_what_exceeds_pinned_memory_goes_through_it_in_parts(staged: int) -> None:
    backend = Cuda(_device(), memory_bytes=64 * MIB, slots=1, staged_bytes=staged)
    _check(backend, _plan(9))
    sums = np.ones((1, 12, 6), np.float32)[:, :, ::2]
    expected = sums.copy()
    bands = maps.linear(9, 12)
    x = np.random.default_rng(1).standard_normal((1, 9, 3)).astype(np.float32)
    backend.accumulate(bands, x, sums, axis=1, carried=12)
    NumpyCpu().accumulate(bands, x, expected, axis=1, carried=12)
    oracles.same_bits(sums.copy(), expected)


def test_memory_and_tables_are_kept_and_taken_once() -> None:
    device = _device()
    backend = Cuda(device, memory_bytes=64 * MIB, slots=1)
    plan = _plan(40)
    _check(backend, plan)
    taken = backend.memory_taken
    assert 0 < taken == device.lent
    for seed in range(3):
        _check(backend, plan, seed)
    assert backend.memory_taken == taken


def test_calls_find_slabs_that_were_taken_before_they_came() -> None:
    device = _device()
    backend = Cuda(device, memory_bytes=64 * MIB, slots=3)
    backend.warm_up()
    assert device.sizes.count(16 * MIB) == 3
    before = len(device.sizes)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(partial(_check, backend, _plan(9)), range(9)))
    assert sum(device.sizes[before:]) < MIB


def test_tables_of_many_plans_leave_room_for_slabs() -> None:
    device = _device()
    backend = Cuda(device, memory_bytes=4 * MIB, slots=1)
    for side in range(50, 300):
        up = maps.linear(side, 2 * side)
        _check(backend, Plan.build([up], (side,)))
    # A quarter of the memory is left to tables; those of all plans take more.
    assert device.sizes.count(3 * MIB) == 1
    assert sum(device.sizes) > 4 * MIB
    assert device.most_taken <= 4 * MIB


def test_no_more_memory_is_taken_than_the_limit() -> None:
    device = _device()
    backend = Cuda(device, memory_bytes=2 * MIB, slots=1)
    with pytest.raises(MemoryError, match=r"cuda_memory_bytes is 2097152"):
        _check(backend, _plan(600))
    assert device.lent <= 2 * MIB
    _check(backend, _plan(20))


def test_what_is_kept_is_given_back_for_what_is_needed() -> None:
    device = _device(capacity=7 * MIB)
    backend = Cuda(device, memory_bytes=1 << 30, slots=2)
    both = threading.Barrier(2)

    def once(_number: int) -> None:
        both.wait()
        _check(backend, _plan(200))

    with ThreadPoolExecutor(2) as pool:
        for _ in range(4):
            list(pool.map(once, range(2)))
    large = _plan(320)
    _check(backend, large)
    assert device.lent <= 7 * MIB


def test_a_slot_gives_its_buffer_back_for_tables() -> None:
    device = _device()
    backend = Cuda(device, memory_bytes=3 * MIB, slots=1)
    _check(backend, _plan(200))
    assert backend.memory_taken > 2 * MIB
    up = maps.linear(35_000, 70_000)
    _check(backend, Plan.build([up], (35_000,)))
    assert max(set(device.sizes) - {9 * MIB // 4}) > 3 * MIB - 9 * MIB // 4


def test_tables_are_given_back_for_a_large_slab() -> None:
    device = _device()
    backend = Cuda(device, memory_bytes=4 * MIB, slots=1)
    for side in range(3000, 3010):
        _check(backend, Plan.build([maps.linear(side, 2 * side)], (side,)))
    tables = backend.memory_taken - 3 * MIB
    large = _plan(435)
    assert 5 * np.prod(large.output_shape[1:]) * 4 + tables > 4 * MIB
    _check(backend, Plan.build([one.map for one in large.passes], large.input_shape[1:]))


def test_a_device_without_memory_is_an_error_that_passes() -> None:
    device = _device(capacity=0)
    backend = Cuda(device, memory_bytes=1 << 30)
    plan = _plan(20)
    with pytest.raises(MemoryError):
        _check(backend, plan)
    device.capacity = 8 * MIB
    _check(backend, plan)


def test_memory_goes_with_the_backend() -> None:
    device = _device()
    backend = Cuda(device, memory_bytes=64 * MIB)
    _check(backend, _plan(20))
    assert device.lent
    del backend
    gc.collect()
    assert not device.lent


def test_a_lost_device_stays_lost_and_says_why() -> None:
    device = _device()
    backend = Cuda(device, memory_bytes=64 * MIB)
    plan, other = _plan(20), _plan(21)
    _check(backend, plan)
    device.broken = "an illegal memory access was encountered"
    with pytest.raises(DeviceLostError, match=device.broken):
        _check(backend, plan)
    device.broken = ""
    for one in (plan, other):
        with pytest.raises(DeviceLostError, match="an illegal memory access"):
            _check(backend, one)


@pytest.mark.parametrize("nbytes", [0, 1, MIB, MIB + 1, 5 * MIB, 9 * MIB, 3 << 30, (3 << 30) + 1])
def test_a_block_is_hardly_larger_than_what_it_holds(nbytes: int) -> None:
    assert nbytes <= size_class(nbytes) <= max(MIB, 1.25 * nbytes + MIB)


def test_a_server_answers_with_it_and_survives_want_of_memory() -> None:
    device = _device(capacity=0)
    backend = Cuda(device, memory_bytes=1 << 30)
    operator = ops.InterpolateBackward(mode="linear", data_format="NCX")
    gradient = np.random.default_rng(0).standard_normal((1, 3, 34, 66)).astype(np.float32)
    shape = (1, 3, 17, 33)
    expected = LocalClient("numpy_cpu").evaluate(operator, gradient, output_shape=shape)
    with serving(backend=backend) as server, Client(server.address) as client:
        with pytest.raises(OutOfMemoryError):
            client.evaluate(operator, gradient, output_shape=shape)
        device.capacity = 64 * MIB
        result = client.evaluate(operator, gradient, output_shape=shape)
        assert client.server_info().backend == "cuda"
        device.broken = "an illegal memory access was encountered"
        with pytest.raises(ServerError) as lost:
            client.evaluate(operator, gradient, output_shape=shape)
    assert lost.value.reason == "INTERNAL"
    oracles.same_bits(result, expected)
