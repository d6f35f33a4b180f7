"""Calls of the CUDA backend at once: they wait for memory and streams, and equal ones go together.

The simulated device's lock holds up whoever gives a stream a task.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

import cuda_device
import kernel_maps as maps
import oracles
from backend_calls import applied
from cuda_device import SimulatedDevice
from cuda_here import needs_simulator
from gradwire_server.backends import NumpyCpu
from gradwire_server.backends.cuda.backend import Cuda
from gradwire_server.backends.cuda.device import DeviceError, DeviceLostError
from gradwire_server.plans import Plan

pytestmark = needs_simulator

MIB = 1 << 20


def _device(*, capacity: int = 1 << 40) -> SimulatedDevice:
    return SimulatedDevice(cuda_device.compiled(), capacity=capacity)


def _plan(outer: int, side: int) -> Plan:
    up = maps.linear(side, 2 * side)
    return Plan.build([None, up, up], (outer, side, side)).adjoint()


def _check(backend: Cuda, plan: Plan, seed: int = 0) -> None:
    x = np.random.default_rng(seed).standard_normal(plan.input_shape).astype(np.float32)
    expected = applied(NumpyCpu(), plan, x, np.float32)
    oracles.same_bits(applied(backend, plan, x, np.float32), expected)


@contextmanager
def _waiting(
    device: SimulatedDevice, backend: Cuda, plans: Sequence[Plan]
) -> Generator[list[Future[None]]]:
    """Let the first plan have the only stream and the others wait for it, until the context ends.

    All have been computed before.
    """
    device.trace.clear()
    device.entered.clear()
    with ThreadPoolExecutor(len(plans)) as pool, device.lock:
        calls = [pool.submit(_check, backend, plans[0])]
        device.entered.wait()
        for seed, plan in enumerate(plans[1:], 1):
            calls.append(pool.submit(_check, backend, plan, seed))
            while backend.calls_waiting < seed:
                time.sleep(0.001)
        yield calls


def _launches(device: SimulatedDevice) -> int:
    return sum(what == "launch" for what, _ in device.trace)


def _backend(device: SimulatedDevice, *plans: Plan) -> Cuda:
    """Return one with a single stream, and the tables of some plans."""
    backend = Cuda(device, memory_bytes=64 * MIB, slots=1)
    for plan in plans:
        _check(backend, plan)
    return backend


@pytest.mark.parametrize("count", [2, 3, 9, 63])
def test_equal_small_calls_that_wait_are_computed_by_one_launch(count: int) -> None:
    device, plan, other = _device(), _plan(3, 9), _plan(3, 11)
    with _waiting(device, _backend(device, plan, other), [other, *[plan] * count]) as calls:
        pass
    assert not any(call.result() for call in calls)
    assert _launches(device) == 2


def test_calls_of_other_plans_wait_their_turn() -> None:
    device, plan, other = _device(), _plan(3, 9), _plan(3, 11)
    plans = [other, plan, other, plan, _plan(3, 9)]
    with _waiting(device, _backend(device, plan, other), plans) as calls:
        pass
    assert not any(call.result() for call in calls)
    assert _launches(device) == 4


def test_large_calls_are_computed_one_by_one() -> None:
    device, plan = _device(), _plan(1, 130)
    with _waiting(device, _backend(device, plan), [plan] * 4) as calls:
        pass
    assert not any(call.result() for call in calls)
    assert _launches(device) == 4


def test_calls_together_of_which_one_is_refused_are_tried_again_alone() -> None:
    device, plan = _device(), _plan(3, 9)
    with _waiting(device, _backend(device, plan), [plan] * 5) as calls:
        device.refused, device.accepted = "invalid argument", 3  # the first call's own
    assert not any(call.result() for call in calls)
    assert not device.refused
    assert _launches(device) == 5


def test_calls_together_share_the_loss_of_the_device() -> None:
    device, plan = _device(), _plan(3, 9)
    backend = _backend(device, plan)
    with _waiting(device, backend, [plan] * 5) as calls:
        device.broken = "an illegal memory access was encountered"
    for call in calls:
        with pytest.raises(DeviceLostError, match=device.broken):
            call.result()
    with pytest.raises(DeviceLostError, match=device.broken):
        _check(backend, plan)


def test_what_the_device_refuses_ends_one_call_and_no_other() -> None:
    device, plan = _device(), _plan(3, 9)
    backend = _backend(device, plan)
    device.refused = "invalid argument"
    with pytest.raises(DeviceError, match="invalid argument") as refused:
        _check(backend, plan)
    assert not isinstance(refused.value, DeviceLostError)
    _check(backend, plan)


@pytest.mark.parametrize("accepted", range(16))
def test_what_is_refused_leaves_nothing_pending(accepted: int) -> None:
    """Tables, a part that goes up in two pieces, its launch, its results; three parts at once."""
    device = _device()
    backend = Cuda(device, memory_bytes=64 * MIB, slots=3, staged_bytes=1 << 16)
    backend.warm_up()
    plan, other = _plan(16, 32), _plan(16, 31)
    x = np.ones(plan.input_shape, np.float32)
    y = np.empty(plan.output_shape, np.float32)
    device.refused, device.accepted = "invalid argument", accepted
    with pytest.raises(DeviceError, match="invalid argument"):
        backend.apply(plan, x, y)
    left = y.copy()
    for one in (other, plan):
        _check(backend, one)
    np.testing.assert_array_equal(y, left)


def test_a_large_call_leaves_streams_to_others_that_wait() -> None:
    device = _device()
    backend = Cuda(device, memory_bytes=64 * MIB, slots=2, staged_bytes=1 << 16)
    large, small = _plan(64, 32), _plan(1, 16)
    for plan in (large, small):
        _check(backend, plan)
    device.trace.clear()
    device.entered.clear()
    with ThreadPoolExecutor(2) as pool:
        with device.lock:
            first = pool.submit(_check, backend, large)
            device.entered.wait()
            second = pool.submit(_check, backend, small)
            while not backend.calls_waiting:
                time.sleep(0.001)
        assert first.result() is second.result() is None
    launches = [stream for what, stream in device.trace if what == "launch"]
    # The one on which nothing else of the large call is computed any more.
    assert sorted(map(launches.count, set(launches))) in ([1, 16], [2, 15], [3, 14])


@pytest.mark.parametrize("together", [2, 6])
def test_calls_wait_for_memory_that_others_have(together: int) -> None:
    device = _device()
    backend = Cuda(device, memory_bytes=2 * MIB, slots=4)
    plans = [_plan(1, side) for side in (250, 255, 260)]  # each takes five eighths

    def work(number: int) -> None:
        for turn in range(3):
            _check(backend, plans[(number + turn) % 3], seed=number)
            _check(backend, _plan(2, 9), seed=number)

    with ThreadPoolExecutor(together) as pool:
        list(pool.map(work, range(together)))
    assert device.most_taken <= 2 * MIB


def test_calls_wait_for_memory_on_a_device_that_has_less_than_it_may_take() -> None:
    device = _device(capacity=3 * MIB // 2)
    backend = Cuda(device, memory_bytes=1 << 30, slots=4)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(partial(_check, backend, _plan(1, 250)), range(8)))


def test_a_call_too_large_for_the_memory_fails_while_others_go_on() -> None:
    backend = Cuda(_device(), memory_bytes=4 * MIB, slots=3)
    large, small = _plan(1, 500), _plan(5, 40)

    def work(number: int) -> None:
        if number % 2:
            _check(backend, small, seed=number)
        else:
            with pytest.raises(MemoryError, match="cuda_memory_bytes is 4194304"):
                _check(backend, large, seed=number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(12)))
