"""A device behind a process: its protocol, on a simulated device served in a thread.

That its bits are NumPy's is said in test_every_backend.py; what becomes of a process that ends is
said in tests/server/test_devices.py.
"""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given

import cuda_device
import kernel_maps as maps
import oracles
from backend_calls import applied
from cuda_device import SimulatedDevice
from cuda_here import needs_simulator
from device_servers import connected, served
from gradwire_server.backends import Backend, NumpyCpu
from gradwire_server.backends.cuda.backend import Cuda
from gradwire_server.backends.device_process import channels
from gradwire_server.backends.device_process.backend import DeviceProcesses
from gradwire_server.backends.device_process.channels import PROTOCOL, Channel
from gradwire_server.backends.device_process.jobs import Address
from gradwire_server.backends.device_process.plan_encoding import decoded, encoded
from gradwire_server.backends.device_process.server import Plans
from gradwire_server.backends.device_process.shared_memory import SharedMemory, described
from gradwire_server.errors import DeviceAwayError
from gradwire_server.plans import Plan
from raw_calls import PATIENCE_S, wait_until

MIB = 1 << 20


class Watched(Cuda):
    """Remembers the plans that it applied."""

    def __init__(self, device: SimulatedDevice) -> None:
        super().__init__(device, memory_bytes=256 * MIB, buffer_bytes=1 << 16)
        self.plans = list[Plan]()

    def apply(self, plan: Plan, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> None:
        """As the backend does."""
        self.plans.append(plan)
        super().apply(plan, x, y)


@pytest.fixture
def cuda() -> Watched:
    return Watched(SimulatedDevice(cuda_device.compiled()))


def plan_of(side: int) -> Plan:
    up = maps.linear(side, 2 * side)
    return Plan.build([None, up, up], (2, side, side)).adjoint()


def check(backend: Backend, plan: Plan, seed: int = 0) -> None:
    x = np.random.default_rng(seed).standard_normal(plan.input_shape).astype(np.float32)
    expected = applied(NumpyCpu(), plan, x, np.float32)
    oracles.same_bits(applied(backend, plan, x, np.float32), expected)


def digest(plan: Plan) -> bytes:
    made = hashlib.sha256()
    plan.digest_update(made)
    return made.digest()


@given(plan=oracles.plans())
def test_a_plan_comes_out_as_it_went_in(plan: Plan) -> None:
    header, tables = encoded(plan)
    where, size = described(tables)
    memory = SharedMemory.made(max(1, size))
    for one, table in zip(where, tables, strict=True):
        memory.view(one)[...] = table
    again = decoded(header, [memory.view(one) for one in where])
    assert digest(again) == digest(plan)
    assert len({one.map for one in again.passes}) == len({one.map for one in plan.passes})


def test_no_array_lies_outside_the_memory() -> None:
    memory = SharedMemory.made(64)
    assert memory.view({"at": 0, "dtype": "float64", "shape": [8]}).nbytes == 64
    with pytest.raises(ValueError, match="reshape"):
        memory.view({"at": 8, "dtype": "float64", "shape": [8]})


def test_equal_plans_are_held_once_and_no_longer_than_needed() -> None:
    plans = Plans()
    first = plans.hold(plan_of(5))
    assert plans.hold(plan_of(5)) is first
    assert plans.hold(plan_of(6)) is not first
    assert len(plans) == 1
    del first
    assert len(plans) == 0


@needs_simulator
def test_plans_of_several_workers_are_one_on_the_device(cuda: Watched) -> None:
    with served(cuda) as there, connected(there) as one, connected(there) as other:
        for _ in range(2):
            for worker in (one, other):
                check(worker, plan_of(9))
        assert there.memory == cuda.memory_taken > 0
    assert len(cuda.plans) == 4
    assert len(set(map(id, cuda.plans))) == 1


@needs_simulator
@pytest.mark.parametrize("lane_bytes", [1, 4096, MIB])
def test_any_size_of_shared_memory_will_do(cuda: Watched, lane_bytes: int) -> None:
    sums = np.ones((1, 12, 6), np.float32)[:, :, ::2]
    x = np.random.default_rng(1).standard_normal((1, 9, 3)).astype(np.float32)
    expected = sums.copy()
    NumpyCpu().accumulate(maps.linear(9, 12), x, expected, axis=1, carried=12)
    with served(cuda) as there, connected(there, lane_bytes=lane_bytes) as backend:
        for side in (4, 40):
            check(backend, plan_of(side))
        backend.accumulate(maps.linear(9, 12), x, sums, axis=1, carried=12)
    oracles.same_bits(sums.copy(), expected)


@needs_simulator
def test_more_plans_than_a_lane_remembers(cuda: Watched) -> None:
    plans = [plan_of(side) for side in range(1, 80)]
    with served(cuda) as there, connected(there) as backend:
        for plan in (*plans, plans[-1], plans[0]):
            check(backend, plan)


@needs_simulator
def test_threads_of_workers_share_devices() -> None:
    devices = [SimulatedDevice(cuda_device.compiled()) for _ in range(2)]
    # In one process the simulator runs one kernel at a time.
    devices[1].lock = devices[0].lock
    cuda, other = map(Watched, devices)
    plans = [plan_of(side) for side in (5, 16, 33)]
    start = threading.Barrier(6)

    with (
        served(cuda) as first,
        served(other) as second,
        connected(first, second) as one,
        connected(first, second) as two,
    ):
        wait_until(lambda: one.there == two.there == 2)

        def work(number: int) -> None:
            start.wait()
            for turn in range(6):
                check((one, two)[turn % 2], plans[(number + turn) % 3], seed=10 * number + turn)

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(work, range(6)))
    assert len(cuda.plans) + len(other.plans) == 36
    assert cuda.plans
    assert other.plans


@needs_simulator
def test_want_of_memory_passes_and_the_lane_goes_on() -> None:
    device = SimulatedDevice(cuda_device.compiled(), capacity=0)
    cuda = Watched(device)
    with served(cuda) as there, connected(there) as backend:
        with pytest.raises(MemoryError, match="simulated device"):
            check(backend, plan_of(20))
        device.capacity = 64 * MIB
        check(backend, plan_of(20))
        assert there.lost == 0


@needs_simulator
def test_a_mistake_of_the_process_is_told_and_the_lane_goes_on(
    cuda: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(cuda) as there, connected(there) as backend:
        with monkeypatch.context() as patch:
            patch.setattr(cuda, "plans", None)
            with pytest.raises(RuntimeError, match="AttributeError"):
                check(backend, plan_of(20))
        check(backend, plan_of(20))
        assert there.lost == 0


@needs_simulator
def test_a_lost_device_is_told_to_the_caller_and_to_the_process() -> None:
    device = SimulatedDevice(cuda_device.compiled())
    with served(Watched(device)) as there, connected(there) as backend:
        device.broken = "an illegal memory access was encountered"
        with pytest.raises(DeviceAwayError, match=f"device 0 is lost: {device.broken}") as away:
            check(backend, plan_of(20))
        assert away.value.retry_after_s == 0.25
        wait_until(lambda: there.lost == 1)


@needs_simulator
def test_one_that_speaks_another_protocol_is_not_computed_for(cuda: Watched) -> None:
    with served(cuda) as there:
        stranger = Channel.to(there.name)
        stranger.send({"protocol": PROTOCOL + 1, "lane": 4096})
        answer, _ = stranger.receive()
        assert answer == {"protocol": PROTOCOL}
        stranger.close()


def test_while_no_process_has_the_device_calls_fail_and_waiting_ends_with_the_backend() -> None:
    with channels.listening() as listener, ThreadPoolExecutor(1) as pool:
        nobody = [Address(channels.name_of(listener), 0, "simulated")]
        backend = DeviceProcesses(nobody, lane_bytes=4096, retry_after_s=0.5)
        waiting = pool.submit(backend.warm_up)
        with pytest.raises(DeviceAwayError, match="no device is there") as away:
            check(backend, plan_of(3))
        assert away.value.retry_after_s == 0.5
        assert not backend.watch(print)
        backend.close()
        with pytest.raises(RuntimeError, match="stops"):
            waiting.result(timeout=PATIENCE_S)
