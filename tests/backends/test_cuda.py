"""The CUDA backend on a simulated device: memory, errors, parts, calls at once and on the CPU.

The device does nothing before somebody waits, or everything at once; it copies from pinned memory
only, refuses to use released memory, and records the tasks of its streams. That the backend's bits
are NumPy's is tested in test_every_backend.py, and row by row in tests/cuda.
"""

import gc
import math
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event
from types import ModuleType
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_server import backends
from gradwire_server.backends import NumpyCpu, call_deadline
from gradwire_server.backends.cuda import backend as backend_module
from gradwire_server.backends.cuda import staging
from gradwire_server.backends.cuda.backend import Cuda
from gradwire_server.backends.cuda.device import DeviceError
from gradwire_server.backends.cuda.programs import X
from gradwire_server.errors import DeviceLostError
from gradwire_server.plans import Plan
from gradwire_server.rpc.warm_up import check_backend
from support.examples import examples
from support.kernels import kernel_maps as maps
from support.kernels import kernel_table
from support.kernels.backend_calls import applied
from support.kernels.cuda_device import simulated
from support.kernels.cuda_table import needs_simulator
from support.oracles import oracles
from support.raw_calls import wait_until

pytestmark = needs_simulator


ILLEGAL = "an illegal memory access was encountered"
MIB = 1 << 20


@pytest.fixture
def device():
    return simulated()


def sliced_plan(outer, side):
    """Return a plan that halves two axes of each slice; slices can be computed in parts."""
    up = maps.linear(side, 2 * side)
    return oracles.adjoint(Plan.build([None, up, up], (outer, side, side)))


def check(backend, plan, seed=0):
    x = np.random.default_rng(seed).standard_normal(plan.input_shape).astype(np.float32)
    kernel_table.check(backend, plan, x, np.float32)


_SLICES = sliced_plan(3, 9)


def _whole(side):
    """Return a plan whose first axis moves too: it cannot be cut into parts."""
    up = maps.linear(side, 2 * side)
    return oracles.adjoint(Plan.build([up, up], (side, side)))


def test_tables_stay_on_the_device_and_nothing_else_does_and_all_goes_with_the_backend(device):
    backend, plan = Cuda(device, memory_bytes=64 * MIB), sliced_plan(2, 40)
    check(backend, plan)
    lent, taken = device.lent, backend.memory_taken
    assert 0 < lent < taken
    for seed in range(3):
        device.trace.clear()
        check(backend, plan, seed)
        assert [what for what in device.trace if what != "wait"] == ["up", "launch", "down"]
    assert (device.lent, backend.memory_taken) == (lent, taken)
    del backend
    gc.collect()
    assert not device.lent


def test_tables_have_a_share_of_the_memory_and_leave_it_where_a_call_needs_it(device):
    backend = Cuda(device, memory_bytes=4 * MIB)
    for side in range(3000, 3060):
        check(backend, Plan.build([maps.linear(side, 2 * side)], (side,)))
    assert 4 * MIB // 16 < device.lent <= 4 * MIB // 8
    large = _whole(435)
    needed = 5 * math.prod(large.output_shape) * 4
    assert needed < 4 * MIB < needed + device.lent
    check(backend, large)
    assert device.most_taken <= 4 * MIB


# Of 8 KiB x and y of the third plan take a part, and its tables do not fit.
@pytest.mark.parametrize(
    ("limit", "capacity", "side"),
    [(MIB, 1 << 30, 400), (1 << 30, 0, 200), (1 << 30, 200_000, 200), (1 << 30, 1 << 13, 20)],
)
def test_without_memory_a_call_has_an_error_that_passes_and_keeps_none(limit, capacity, side):
    device = simulated(capacity=capacity)
    backend = Cuda(device, memory_bytes=limit)
    with pytest.raises(MemoryError, match=f"cuda_memory_bytes is {limit}") as kept:
        check(backend, _whole(side))
    assert kept.value
    assert not device.lent
    assert device.most_taken <= min(limit, capacity)
    device.capacity = 8 * MIB
    check(backend, _whole(20))


def test_a_large_call_takes_the_memory_of_a_part(device):
    """Parts are smaller where the limit is smaller than some of them."""
    for limit, taken in ((64 * MIB, MIB), (MIB // 2, MIB // 2)):
        device.most_taken = 0
        backend = Cuda(device, memory_bytes=limit, buffer_bytes=1 << 18)
        check(backend, sliced_plan(128, 64))
        assert 0 < device.most_taken < taken
        del backend
        gc.collect()


def test_a_lost_device_fails_every_later_call_at_once(device):
    backend, plan = Cuda(device, memory_bytes=64 * MIB), sliced_plan(2, 20)
    check(backend, plan)
    device.broken = ILLEGAL
    with pytest.raises(DeviceLostError, match=ILLEGAL):
        check(backend, plan)
    device.broken = ""
    device.trace.clear()
    for one in (plan, sliced_plan(2, 21), Plan((2,))):
        with pytest.raises(DeviceLostError, match=ILLEGAL):
            check(backend, one)
    ones = np.ones((1, 4), np.float32)
    with pytest.raises(DeviceLostError, match=ILLEGAL):
        backend.accumulate(maps.linear(4, 4), ones, ones.copy(), axis=1, carried=0)
    assert not device.trace


@pytest.mark.parametrize("refused", range(1, 14))
def test_a_refused_task_ends_its_call_alone_and_leaves_nothing_pending(device, refused):
    """Tasks are uploads of tables, then of a part in two pieces, a launch, a result; and again."""
    backend = Cuda(device, memory_bytes=64 * MIB, streams=1, buffer_bytes=1 << 13)
    backend.warm_up()
    plan, other = sliced_plan(3, 32), sliced_plan(3, 31)
    lent = device.lent
    x = np.ones(plan.input_shape, np.float32)
    y = np.empty(plan.output_shape, np.float32)
    device.refused = refused
    with pytest.raises(DeviceError):
        backend.apply(plan, x, y)
    assert device.lent == lent
    left = y.copy()
    for one in (other, plan):
        check(backend, one)
    np.testing.assert_array_equal(y, left)


@pytest.mark.parametrize("on_cpu", [0, 1])
def test_a_call_bound_to_its_arrays_reads_them_anew(device, on_cpu):
    compiled = pytest.importorskip("gradwire_server.backends.numba_cpu", exc_type=ImportError)
    plan, cpu = sliced_plan(1, 16), compiled.NumbaCpu()
    device.cpu_work = on_cpu << 20
    backend = Cuda(device, memory_bytes=MIB, cpu=cpu)
    x, y = np.ones(plan.input_shape, np.float32), np.empty(plan.output_shape, np.float32)
    run = backend.bound(plan, x, y)
    for number in (1, 2):
        x[...] = np.random.default_rng(number).standard_normal(x.shape)
        run()
        oracles.same_bits(y, applied(NumpyCpu(), plan, x, np.float32))
    sums = np.zeros((4, 12, 5), np.float32)
    backend.accumulate(maps.linear(9, 12), np.ones((4, 9, 5), np.float32), sums, axis=1, carried=5)
    assert sums.any()
    assert backend.computed_by == {cpu.name: 3} if on_cpu else {"cuda": 2, cpu.name: 1}


@examples(60)
@given(data=st.data(), plan=oracles.plans(), buffer=st.sampled_from([1, 16, 50, 4096]))
def test_any_plan_in_parts_and_pieces_of_any_size_has_the_bits_of_numpy(data, plan, buffer):
    device = simulated(eager=data.draw(st.booleans()))
    backend = Cuda(device, memory_bytes=MIB, streams=2, buffer_bytes=buffer)
    dtype = data.draw(st.sampled_from(oracles.STORAGE_TYPES))
    x = data.draw(oracles.tensors(plan.input_shape, dtype=dtype))
    expected = applied(NumpyCpu(), plan, x, dtype)
    oracles.same_bits(applied(backend, plan, x, dtype), expected)
    assert device.most_taken <= MIB


def test_a_call_waits_for_memory_until_its_deadline_at_most(device):
    backend = Cuda(device, memory_bytes=MIB, streams=2)
    begin = time.monotonic()
    with backend.queue.turn(lambda: {X: device.allocate(MIB)}, wait_s=0):
        for left_s in (-1.0, 0.01):
            with call_deadline.computing_until(begin + left_s), pytest.raises(MemoryError):
                check(backend, _SLICES)
    assert time.monotonic() - begin < 10
    check(backend, _SLICES)
    assert not backend.queue.line


def test_a_call_that_needs_everything_is_not_overtaken_by_one_that_needs_little(device):
    queue = Cuda(device, memory_bytes=2, streams=3).queue
    asked, order = Event(), []

    def take(nbytes):
        asked.set()
        return {X: device.allocate(nbytes)}

    def call(nbytes):
        with queue.turn(partial(take, nbytes), wait_s=60):
            order.append(nbytes)

    with ThreadPoolExecutor(2) as pool:
        with queue.turn(lambda: {X: device.allocate(1)}, wait_s=60):
            large = pool.submit(call, 2)
            asked.wait()
            small = pool.submit(call, 1)
            wait_until(lambda: len(queue.line) == 2)
        large.result()
        small.result()
    assert order == [2, 1]


def test_waiting_calls_hold_no_memory_and_the_loss_of_the_device_ends_them_all(device):
    backend = Cuda(device, memory_bytes=64 * MIB, streams=1)
    check(backend, _SLICES)
    device.trace.clear()
    device.entered.clear()
    with ThreadPoolExecutor(5) as pool:
        with device.lock:
            calls = [pool.submit(check, backend, _SLICES)]
            device.entered.wait()
            lent = device.lent
            calls += [pool.submit(check, backend, _SLICES) for _ in range(4)]
            wait_until(lambda: len(backend.queue.line) == 4)
            assert device.lent == lent
            device.broken = ILLEGAL
        for call in calls:
            with pytest.raises(DeviceLostError, match=ILLEGAL):
                call.result()
    # The waiting calls gave the device nothing to do.
    assert device.trace.count("launch") == 1
    assert not backend.queue.line


@pytest.mark.parametrize("calls", [2, 16])
@pytest.mark.parametrize("capacity", [1 << 40, 3 * MIB // 2])
def test_calls_at_once_wait_for_memory_and_all_end(calls, capacity):
    """Each of the large ones takes five eighths of the limit, and two tables go with it.

    Calls too large for all of the memory fail amid them.
    """
    device = simulated(capacity=capacity)
    backend = Cuda(device, memory_bytes=2 * MIB, streams=4)
    plans = [sliced_plan(1, side) for side in (250, 255, 260)]

    def work(number):
        for turn in range(2):
            check(backend, plans[(number + turn) % 3], seed=number)
            check(backend, sliced_plan(2, 9), seed=number)
        with pytest.raises(MemoryError):
            check(backend, sliced_plan(1, 500))
        check(backend, sliced_plan(5, 40), seed=number)

    with ThreadPoolExecutor(calls) as pool:
        list(pool.map(work, range(calls)))
    assert device.most_taken <= min(2 * MIB, capacity)


def _loaded(monkeypatch, module, before, after):
    """Return a module in which a text, which is there once, is another."""
    path = Path(str(module.__file__))
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1
    made = ModuleType(module.__name__)
    made.__file__ = module.__file__
    monkeypatch.setitem(sys.modules, module.__name__, made)
    exec(compile(text.replace(before, after), path, "exec"), made.__dict__)  # noqa: S102 - our own
    return made


def _exercise(cuda):
    """Compute on one backend: parts, pieces, a refused task, and the next call."""
    device = simulated()
    made = cuda(device, memory_bytes=1 << 20, streams=1, buffer_bytes=1 << 12)
    plans = [sliced_plan(5, 16), sliced_plan(1, 40), sliced_plan(9, 7)]
    for number, plan in enumerate([*plans, *plans]):
        device.refused = 5
        with pytest.raises(DeviceError):
            check(made, plan, number)
        check(made, plan, number)


_DRAIN = "            staged.drain()\n"
_COMPLETE = "            pinned.complete()\n            self._ring"
_IF_COPIED = f"            if pinned.target is not None:\n    {_COMPLETE}"

# Each is a mistake: text that a module has once, and the text in its place.
MUTANTS = {
    "memory is released before the last event": (
        backend_module,
        _DRAIN,
        f"            memory.clear()\n{_DRAIN}",
    ),
    "pending work is left after an error": (backend_module, "staged.abandon()", "pass"),
    "an abandoned stream is not waited for": (staging, "self.stream.mark(blocking=True)()", "pass"),
    "a result is read before its event": (staging, "self.wait()", "pass"),
    "a buffer is filled before its last copy has completed": (staging, _COMPLETE, _IF_COPIED),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_backend_that_releases_memory_or_buffers_too_early_is_caught(name, monkeypatch):
    _exercise(Cuda)
    module, before, after = MUTANTS[name]
    changed = _loaded(monkeypatch, module, before, after)
    if module is staging:
        changed = _loaded(monkeypatch, backend_module, _DRAIN, _DRAIN)  # as it is
    with pytest.raises(AssertionError):
        _exercise(changed.Cuda)


def test_a_warm_up_compares_the_device_and_what_is_left_to_the_cpu(device):
    device.cpu_work = 1 << 18
    backend = Cuda(device, memory_bytes=64 * MIB)
    check_backend(backend)
    # The CPU is timed besides.
    assert 0 < backend.computed_by["cuda"] <= backend.computed_by["numpy_cpu"]
    assert backend.cpu_work == 1 << 18


def test_numpy_computes_small_calls_where_the_compiled_backend_fails(device):
    failing = Mock(NumpyCpu, warm_up=Mock(side_effect=KeyError("LOOP_VECTORIZE")))
    plan = sliced_plan(2, 5)
    device.cpu_work = plan.work + 1
    backend = Cuda(device, memory_bytes=MIB, cpu=failing)
    backend.warm_up()
    check(backend, plan)
    assert backend.computed_by == {"numpy_cpu": 1}


def test_only_calls_that_the_cpu_computes_may_be_computed_on_an_event_loop(device):
    """Plans without passes are among them, whatever their size."""
    for work in (1 << 18, 1, 0):
        device.cpu_work = work
        backend = Cuda(device, memory_bytes=MIB)
        assert backends.most_inline_work(backend) == work - 1
    x = np.arange(1000, dtype=np.float32)
    copied = applied(backend, Plan((1000,)), x, np.float16)
    oracles.same_bits(copied, x.astype(np.float16))
    assert not device.trace
