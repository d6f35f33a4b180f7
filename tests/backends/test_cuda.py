"""The CUDA backend on a simulated device: memory, errors, and calls that the CPU computes.

That its bits are NumPy's is tested in test_every_backend.py, and row by row in tests/cuda.
"""

from __future__ import annotations

import gc
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gradwire import Client, OutOfMemoryError, RetryPolicy, UnavailableError, ops
from gradwire_server import LocalClient, backends
from gradwire_server.backends import NumpyCpu, call_deadline
from gradwire_server.backends.cuda.backend import Cuda
from gradwire_server.backends.cuda.device import DeviceError
from gradwire_server.errors import DeviceLostError
from gradwire_server.plans import BandedMap, Plan
from gradwire_server.rpc.warm_up import check_backend
from support.kernels import kernel_maps as maps
from support.kernels.backend_calls import applied
from support.kernels.cuda_backends import (
    ILLEGAL,
    MIB,
    check,
    needs_simulator,
    simulated,
    sliced_plan,
)
from support.oracles import oracles
from support.servers import serving

pytestmark = needs_simulator


def _whole(side: int) -> Plan:
    """Return a plan whose first axis moves too: it cannot be cut into parts."""
    up = maps.linear(side, 2 * side)
    return oracles.adjoint(Plan.build([up, up], (side, side)))


def test_threads_at_once_have_the_bits_of_numpy() -> None:
    backend = Cuda(simulated(), memory_bytes=256 * MIB, streams=2, buffer_bytes=4096)
    plans = [sliced_plan(2, side) for side in (5, 16, 33)]
    start = threading.Barrier(6)

    def work(number: int) -> None:
        start.wait()
        for turn in range(9):
            check(backend, plans[(number + turn) % len(plans)], seed=10 * number + turn)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))


def test_tables_stay_on_the_device_and_nothing_else_does() -> None:
    device = simulated()
    backend = Cuda(device, memory_bytes=64 * MIB)
    plan = sliced_plan(2, 40)
    check(backend, plan)
    lent, taken = device.lent, backend.memory_taken
    assert 0 < lent < taken
    for seed in range(3):
        device.trace.clear()
        check(backend, plan, seed)
        assert [what for what, _ in device.trace if what != "wait"] == ["up", "launch", "down"]
    assert (device.lent, backend.memory_taken) == (lent, taken)


def test_tables_of_many_plans_have_a_share_of_the_memory() -> None:
    device = simulated()
    backend = Cuda(device, memory_bytes=MIB)
    for side in range(100, 300, 2):
        up = maps.linear(side, 2 * side)
        check(backend, Plan.build([up], (side,)))
    assert MIB // 16 < device.lent <= MIB // 8
    assert device.most_taken <= MIB


def test_no_more_memory_is_taken_than_the_limit() -> None:
    device = simulated()
    backend = Cuda(device, memory_bytes=2 * MIB)
    with pytest.raises(MemoryError, match=r"cuda_memory_bytes is 2097152"):
        check(backend, _whole(600))
    assert device.most_taken <= 2 * MIB
    check(backend, _whole(20))


def test_tables_that_no_call_uses_are_released_for_a_call() -> None:
    device = simulated()
    backend = Cuda(device, memory_bytes=4 * MIB)
    for side in range(3000, 3010):
        check(backend, Plan.build([maps.linear(side, 2 * side)], (side,)))
    large = _whole(435)
    needed = 5 * math.prod(large.output_shape) * 4
    assert needed < 4 * MIB < needed + device.lent
    check(backend, large)


@pytest.mark.parametrize("capacity", [0, 200_000])
def test_a_device_without_memory_is_an_error_that_passes(capacity: int) -> None:
    device = simulated(capacity=capacity)
    backend = Cuda(device, memory_bytes=1 << 30)
    backend.warm_up()
    plan = _whole(200)
    with pytest.raises(MemoryError):
        check(backend, plan)
    device.capacity = 8 * MIB
    check(backend, plan)


def test_a_device_with_less_memory_than_a_part_computes_smaller_parts() -> None:
    device = simulated(capacity=MIB // 2)
    backend = Cuda(device, memory_bytes=64 * MIB)
    check(backend, sliced_plan(64, 32))
    assert device.sizes.count(max(device.sizes)) < 3
    assert 0 < device.most_taken <= MIB // 2


def test_memory_goes_with_the_backend() -> None:
    device = simulated()
    backend = Cuda(device, memory_bytes=64 * MIB)
    check(backend, sliced_plan(2, 20))
    assert device.lent
    del backend
    gc.collect()
    assert not device.lent


def test_a_lost_device_fails_every_later_call_at_once() -> None:
    device = simulated()
    backend = Cuda(device, memory_bytes=64 * MIB)
    plan, other = sliced_plan(2, 20), sliced_plan(2, 21)
    check(backend, plan)
    device.broken = ILLEGAL
    with pytest.raises(DeviceLostError, match=ILLEGAL):
        check(backend, plan)
    device.broken = ""
    device.trace.clear()
    for one in (plan, other, Plan((2,), (2,), ())):
        with pytest.raises(DeviceLostError, match=ILLEGAL):
            check(backend, one)
    ones = np.ones((1, 4), np.float32)
    with pytest.raises(DeviceLostError, match=ILLEGAL):
        backend.accumulate(maps.linear(4, 4), ones, ones.copy(), axis=1, carried=0)
    assert not device.trace


def test_a_device_that_is_lost_while_it_gets_ready_stays_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lose(_: object) -> None:
        raise DeviceLostError(ILLEGAL)

    device = simulated()
    backend = Cuda(device, memory_bytes=64 * MIB)
    with monkeypatch.context() as patch:
        patch.setattr(device, "load", lose)
        with pytest.raises(DeviceLostError, match=ILLEGAL):
            backend.warm_up()
    with pytest.raises(DeviceLostError, match=ILLEGAL):
        backend.warm_up()


def test_a_refused_call_ends_alone() -> None:
    device = simulated()
    backend = Cuda(device, memory_bytes=64 * MIB)
    check(backend, sliced_plan(2, 9))
    device.refused = "invalid argument"
    with pytest.raises(DeviceError, match="invalid argument"):
        check(backend, sliced_plan(2, 9))
    check(backend, sliced_plan(2, 9))


@pytest.mark.parametrize("accepted", range(13))
def test_a_refused_task_leaves_nothing_pending(accepted: int) -> None:
    """Tasks are uploads of tables, then of a part in two pieces, a launch, a result; and again."""
    device = simulated()
    backend = Cuda(device, memory_bytes=64 * MIB, streams=1, buffer_bytes=1 << 13)
    backend.warm_up()
    plan, other = sliced_plan(3, 32), sliced_plan(3, 31)
    lent = device.lent
    x = np.ones(plan.input_shape, np.float32)
    y = np.empty(plan.output_shape, np.float32)
    device.refused, device.accepted = "invalid argument", accepted
    with pytest.raises(DeviceError, match="invalid argument"):
        backend.apply(plan, x, y)
    assert device.lent == lent
    left = y.copy()
    for one in (other, plan):
        check(backend, one)
    np.testing.assert_array_equal(y, left)


class Counting(NumpyCpu):
    """NumPy's backend, which counts the calls of apply(), and those of accumulate()."""

    def __init__(self) -> None:
        self.applied = self.accumulated = 0

    def apply(self, plan: Plan, x: oracles.Tensor, y: oracles.Tensor) -> None:
        """Count and compute."""
        self.applied += 1
        super().apply(plan, x, y)

    def accumulate(
        self, bands: BandedMap, x: oracles.Tensor, y: oracles.Tensor, *, axis: int, carried: int
    ) -> None:
        """Count and compute."""
        self.accumulated += 1
        super().accumulate(bands, x, y, axis=axis, carried=carried)


@pytest.mark.parametrize("dtype", oracles.STORAGE_TYPES, ids=str)
@pytest.mark.parametrize("more", [0, 2])
@pytest.mark.parametrize("side", [13, 320])
def test_calls_of_few_multiplications_for_their_bytes_are_computed_by_the_cpu(
    side: int, more: int, dtype: np.dtype[np.generic]
) -> None:
    plan, cpu = sliced_plan(2, side), Counting()
    device = simulated()
    elements = math.prod(plan.input_shape) + math.prod(plan.output_shape)
    most = plan.work / (1 + elements * dtype.itemsize / (800 << 10))
    backend = Cuda(device, memory_bytes=64 * MIB, cpu=cpu, cpu_work=int(most) + more)
    backend.warm_up()
    device.trace.clear()
    rng = np.random.default_rng(3)
    with np.errstate(all="ignore"):
        x = rng.choice(np.array(oracles.VALUES).astype(dtype), plan.input_shape)
    oracles.same_bits(applied(backend, plan, x, dtype), applied(NumpyCpu(), plan, x, dtype))
    assert cpu.applied == (more > 0)
    assert bool(device.trace) == (not more)
    assert backend.computed_by == {cpu.name if more else "cuda": 1}


@pytest.mark.parametrize("on_cpu", [0, 1])
def test_a_call_bound_to_its_arrays_reads_them_anew(on_cpu: int) -> None:
    compiled = pytest.importorskip("gradwire_server.backends.numba_cpu", exc_type=ImportError)
    plan, cpu = sliced_plan(1, 16), compiled.NumbaCpu()
    backend = Cuda(simulated(), memory_bytes=MIB, cpu=cpu, cpu_work=on_cpu << 20)
    x, y = np.ones(plan.input_shape, np.float32), np.empty(plan.output_shape, np.float32)
    run = backend.bound(plan, x, y)
    for number in (1, 2):
        x[...] = np.random.default_rng(number).standard_normal(x.shape)
        run()
        oracles.same_bits(y, applied(NumpyCpu(), plan, x, np.float32))
    assert backend.computed_by == {cpu.name if on_cpu else "cuda": 2}


@pytest.mark.parametrize("more", [0, 2])
def test_sums_below_a_number_of_multiplications_are_computed_by_the_cpu(more: int) -> None:
    bands, cpu = maps.linear(9, 12), Counting()
    rng = np.random.default_rng(5)
    x = rng.standard_normal((4, 9, 5)).astype(np.float32)
    sums = rng.standard_normal((4, 12, 5)).astype(np.float32)
    expected = sums.copy()
    most = bands.nnz * 4 * 5 / (1 + (x.nbytes + sums.nbytes) / (800 << 10))
    backend = Cuda(simulated(), memory_bytes=64 * MIB, cpu=cpu, cpu_work=int(most) + more)
    backend.accumulate(bands, x, sums, axis=1, carried=5)
    assert cpu.accumulated == (more > 0)
    NumpyCpu().accumulate(bands, x, expected, axis=1, carried=5)
    oracles.same_bits(sums, expected)


@pytest.mark.parametrize("work", [0, 1, 1 << 18])
def test_only_calls_that_the_cpu_computes_may_be_computed_on_an_event_loop(work: int) -> None:
    backend = Cuda(simulated(), memory_bytes=MIB, cpu_work=work)
    assert backends.most_inline_work(backend) == work - 1


def test_numpy_computes_small_calls_where_the_compiled_backend_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(Counting):
        def warm_up(self) -> None:
            raise KeyError("LOOP_VECTORIZE")

    cpu, plan = Failing(), sliced_plan(2, 5)
    backend = Cuda(simulated(), memory_bytes=MIB, cpu=cpu, cpu_work=plan.work + 1)
    backend.warm_up()
    assert "slower backend" in caplog.text
    check(backend, plan)
    assert not cpu.applied


def test_a_call_waits_for_memory_until_its_deadline_at_most() -> None:
    assert call_deadline.wait_s(30.0) == 30.0
    with call_deadline.computing_until(time.monotonic() - 1.0):
        assert call_deadline.wait_s(30.0) == 0.0
    now = time.monotonic()
    with call_deadline.computing_until(now + 5.0):
        assert call_deadline.wait_s(1.0) == 1.0
        assert 0.0 < call_deadline.wait_s(30.0) <= 5.0
    assert call_deadline.wait_s(30.0) == 30.0


def test_plans_without_passes_need_no_device() -> None:
    device = simulated()
    backend = Cuda(device, memory_bytes=64 * MIB)
    backend.warm_up()
    device.trace.clear()
    x = np.arange(1000, dtype=np.float32)
    oracles.same_bits(
        applied(backend, Plan((1000,), (1000,), ()), x, np.float16), x.astype(np.float16)
    )
    assert not device.trace


def test_a_server_answers_with_it_and_survives_a_device_out_of_memory() -> None:
    device = simulated(capacity=0)
    backend = Cuda(device, memory_bytes=1 << 30)
    operator = ops.InterpolateBackward(mode="linear", data_format="NCX")
    gradient = np.random.default_rng(0).standard_normal((1, 3, 34, 66)).astype(np.float32)
    shape = (1, 3, 17, 33)
    expected = LocalClient("numpy_cpu").evaluate(operator, gradient, output_shape=shape)
    once = RetryPolicy(max_attempts=1)
    with serving(backend=backend) as server, Client(server.address, retry=once) as client:
        with pytest.raises(OutOfMemoryError):
            client.evaluate(operator, gradient, output_shape=shape)
        device.capacity = 64 * MIB
        result = client.evaluate(operator, gradient, output_shape=shape)
        assert client.server_info().backend == "cuda"
        device.broken = "an illegal memory access was encountered"
        with pytest.raises(UnavailableError) as lost:
            client.evaluate(operator, gradient, output_shape=shape)
    assert lost.value.reason == "DEVICE_LOST"
    oracles.same_bits(result, expected)


def test_an_error_for_want_of_memory_keeps_none_while_it_is_kept() -> None:
    device = simulated(capacity=1 << 13)
    backend = Cuda(device, memory_bytes=MIB)
    backend.warm_up()
    # x and y fit, and their tables do not.
    plan = _whole(20)
    assert 4 * (math.prod(plan.input_shape) + math.prod(plan.output_shape)) < device.capacity
    with pytest.raises(MemoryError) as kept:
        check(backend, plan)
    assert kept.value
    assert not device.lent


def test_a_warm_up_compares_the_device_and_what_is_left_to_the_cpu() -> None:
    device = simulated()
    backend = Cuda(device, memory_bytes=64 * MIB, cpu_work=1 << 18)
    check_backend(backend)
    # The CPU is timed besides.
    assert 0 < backend.computed_by["cuda"] <= backend.computed_by["numpy_cpu"]
    assert backend.cpu_work == 1 << 18
