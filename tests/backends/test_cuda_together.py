"""Calls of the CUDA backend at once: they wait in order for a stream and for memory.

The simulated device's lock holds up every call that gives a stream a task.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Event

import pytest

from gradwire_server.backends.cuda.backend import Cuda
from gradwire_server.backends.cuda.staging import CallQueue
from gradwire_server.errors import DeviceLostError
from gradwire_server.plans import Plan
from support.kernels.cuda_backends import (
    ILLEGAL,
    MIB,
    check,
    needs_simulator,
    simulated,
    sliced_plan,
)
from support.kernels.cuda_device import SimulatedDevice

pytestmark = needs_simulator


class Store:
    """A number of things, of which calls take some."""

    def __init__(self, things: int) -> None:
        self.left = things

    def take(self, count: int) -> Share:
        """Take a number of things, or none and raise MemoryError."""
        if self.left < count:
            raise MemoryError(count)
        self.left -= count
        return Share(self, count)


class Share:
    """Things that a call holds."""

    def __init__(self, store: Store, count: int) -> None:
        self._store, self._count = store, count

    def release(self) -> None:
        """Give the things back."""
        self._store.left += self._count


@pytest.mark.parametrize("streams", [1, 4])
def test_calls_wait_while_others_hold_what_they_need(streams: int) -> None:
    queue, store = CallQueue(range(streams)), Store(10)
    used = set[int]()

    def call(size: int) -> None:
        with queue.turn(partial(store.take, size), wait_s=60) as (stream, _):
            assert stream not in used
            used.add(stream)
            time.sleep(0)
            used.remove(stream)

    sizes = [1 + (7 * number) % 10 for number in range(200)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(call, sizes))
    assert (store.left, queue.waiting) == (10, 0)


def test_a_call_that_needs_more_than_there_is_fails_at_once_when_it_is_alone() -> None:
    queue, store = CallQueue([0]), Store(10)
    with (
        pytest.raises(MemoryError),
        queue.turn(partial(store.take, 11), wait_s=float("inf")),
    ):
        raise AssertionError("not reached")
    assert (store.left, queue.waiting) == (10, 0)


def test_a_call_waits_for_memory_no_longer_than_it_may() -> None:
    queue, store = CallQueue([0, 1]), Store(10)
    with (
        queue.turn(partial(store.take, 1), wait_s=60),
        pytest.raises(MemoryError),
        queue.turn(partial(store.take, 10), wait_s=0.01),
    ):
        raise AssertionError("not reached")
    with queue.turn(partial(store.take, 10), wait_s=0):
        assert not store.left
    assert (store.left, queue.waiting) == (10, 0)


def test_a_call_that_needs_everything_is_not_overtaken_by_one_that_needs_little() -> None:
    queue, store = CallQueue(range(3)), Store(2)
    asked, order = Event(), list[int]()

    def take(count: int) -> Share:
        asked.set()
        return store.take(count)

    def call(count: int) -> None:
        with queue.turn(partial(take, count), wait_s=60):
            order.append(count)

    with ThreadPoolExecutor(2) as pool:
        with queue.turn(partial(store.take, 1), wait_s=60):
            large = pool.submit(call, 2)
            asked.wait()
            small = pool.submit(call, 1)
            while queue.waiting < 2:
                time.sleep(0.001)
        large.result()
        small.result()
    assert order == [2, 1]


def test_an_error_ends_one_call_and_leaves_its_stream_and_memory_to_others() -> None:
    queue, store = CallQueue([0]), Store(1)

    def fails() -> Share:
        raise ValueError("taking")

    with pytest.raises(ValueError, match="taking"), queue.turn(fails, wait_s=60):
        pass
    with (
        pytest.raises(ValueError, match="using"),
        queue.turn(partial(store.take, 1), wait_s=60),
    ):
        raise ValueError("using")
    with queue.turn(partial(store.take, 1), wait_s=60):
        pass
    assert store.left == 1


def _submitted(
    pool: ThreadPoolExecutor, device: SimulatedDevice, backend: Cuda, plans: list[Plan]
) -> list[Future[None]]:
    """Let the first plan have the only stream and the others wait for it; the lock is held."""
    device.trace.clear()
    device.entered.clear()
    calls = [pool.submit(check, backend, plans[0])]
    device.entered.wait()
    for seed, plan in enumerate(plans[1:], 1):
        calls.append(pool.submit(check, backend, plan, seed))
        while backend.queue.waiting < seed:
            time.sleep(0.001)
    return calls


def test_calls_wait_in_order_and_the_loss_of_the_device_ends_them_all() -> None:
    device, plan = simulated(), sliced_plan(3, 9)
    backend = Cuda(device, memory_bytes=64 * MIB, streams=1)
    check(backend, plan)
    with ThreadPoolExecutor(5) as pool:
        with device.lock:
            calls = _submitted(pool, device, backend, [plan] * 5)
            device.broken = ILLEGAL
        for call in calls:
            with pytest.raises(DeviceLostError, match=ILLEGAL):
                call.result()
    # The waiting calls gave the device nothing to do.
    assert [what for what, _ in device.trace].count("launch") == 1
    assert backend.queue.waiting == 0


def test_waiting_calls_hold_no_memory() -> None:
    device, plan = simulated(), sliced_plan(3, 9)
    backend = Cuda(device, memory_bytes=64 * MIB, streams=1)
    check(backend, plan)
    with ThreadPoolExecutor(9) as pool:
        with device.lock:
            alone = _submitted(pool, device, backend, [plan])
            lent = device.lent
        alone[0].result()
        with device.lock:
            calls = _submitted(pool, device, backend, [plan] * 9)
            assert device.lent == lent
        assert not any(call.result() for call in calls)


@pytest.mark.parametrize("calls", [2, 16])
@pytest.mark.parametrize("capacity", [1 << 40, 3 * MIB // 2])
def test_calls_at_once_wait_for_memory_and_all_end(calls: int, capacity: int) -> None:
    """Each of the large ones takes five eighths of the limit, and two tables go with it."""
    device = simulated(capacity=capacity)
    backend = Cuda(device, memory_bytes=2 * MIB, streams=4)
    plans = [sliced_plan(1, side) for side in (250, 255, 260)]

    def work(number: int) -> None:
        for turn in range(2):
            check(backend, plans[(number + turn) % 3], seed=number)
            check(backend, sliced_plan(2, 9), seed=number)

    with ThreadPoolExecutor(calls) as pool:
        list(pool.map(work, range(calls)))
    assert device.most_taken <= min(2 * MIB, capacity)


def test_calls_too_large_for_the_memory_fail_while_others_go_on() -> None:
    backend = Cuda(simulated(), memory_bytes=4 * MIB, streams=3)
    large, small = sliced_plan(1, 500), sliced_plan(5, 40)

    def work(number: int) -> None:
        if number % 2:
            check(backend, small, seed=number)
        else:
            with pytest.raises(MemoryError, match="cuda_memory_bytes is 4194304"):
                check(backend, large, seed=number)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(32)))


def test_16_calls_on_a_device_without_memory_all_fail_and_later_ones_do_not() -> None:
    device, plan = simulated(capacity=0), sliced_plan(2, 9)
    backend = Cuda(device, memory_bytes=4 * MIB)

    def work(number: int) -> None:
        with pytest.raises(MemoryError):
            check(backend, plan, seed=number)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    device.capacity = 4 * MIB
    check(backend, plan)
