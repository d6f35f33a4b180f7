"""A server whose devices belong to processes of their own: simulated devices, real processes.

What a process finds is simulated, and fails when told to; all the rest is what serves a GPU.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import simulated_device
from callers import Callers
from cuda_here import needs_simulator
from device_commands import FLAGS, PROGRAM, device, serving, variables
from gradwire import Client, Item, OutOfMemoryError, ops
from gradwire_server import LocalClient
from processes import Command, is_running, run_command
from raw_calls import wait_until
from scraping import scrape

pytestmark = needs_simulator

LINEAR = ops.InterpolateBackward(mode="linear", data_format="NCX")
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def kill(command: Command, _folder: Path, number: int = 0) -> None:
    os.kill(device(command, number), signal.SIGKILL)


def lose(_command: Command, folder: Path, number: int = 0) -> None:
    """Have the next call of a device end with an error that spoils its process."""
    (folder / f"broken-{number}").touch()


class Health:
    """What Watch tells of a server, one status after the other, over one connection."""

    def __init__(self, address: str) -> None:
        self.seen = list[int]()
        self._channel = grpc.insecure_channel(address)
        request = health_pb2.HealthCheckRequest()
        self._watch = cast("Any", health_pb2_grpc.HealthStub(self._channel)).Watch(request)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            self.seen.extend(each.status for each in self._watch)

    def wait_for(self, *statuses: int) -> None:
        """Wait until these statuses were told, in this order and nothing else."""
        wait_until(lambda: self.seen == list(statuses))

    def close(self) -> None:
        """End it."""
        self._channel.close()
        self._thread.join()


@contextmanager
def watching(command: Command) -> Generator[Health]:
    health = Health(command.address)
    try:
        health.wait_for(SERVING)
        yield health
    finally:
        health.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("devices")


@pytest.fixture(scope="module")
def crew(folder: Path) -> Iterator[Command]:
    """Two workers and two devices."""
    flags = ("--workers", "2", "--http-port", "127.0.0.1:0", "--compute-threads", "3")
    with serving(folder, *flags, devices=2) as command:
        command.wait_for_log(" device serves ", times=2)
        yield command
        devices = [device(command, number) for number in (0, 1)]
        command.signal(signal.SIGTERM)
        assert command.wait() == 0
    assert not any(map(is_running, devices))


def test_every_way_to_call_has_the_bits_of_numpy(crew: Command) -> None:
    chance = np.random.default_rng(0)
    shapes = [((1, 3, 34, 66), (1, 3, 17, 33)), ((2, 8, 64, 256), (2, 8, 32, 128))]
    with Client(crew.address) as client, LocalClient("numpy_cpu") as local:
        info = client.server_info()
        assert (info.backend, info.backend_reason) == ("cuda", "cuda was asked for; simulated")
        for dtype in (np.float16, np.float32, np.float64):
            for sent, received in shapes:
                gradient = chance.standard_normal(sent).astype(dtype)
                expected = local.evaluate(LINEAR, gradient, output_shape=received)
                result = client.evaluate(LINEAR, gradient, output_shape=received)
                assert result.tobytes() == expected.tobytes()
        gradients = [chance.standard_normal((1, 1, 8, 8)).astype(np.float32) for _ in range(20)]
        items = [Item(LINEAR, one, output_shape=(1, 1, 4, 4)) for one in gradients]
        for result, gradient in zip(client.evaluate_many(items), gradients, strict=True):
            expected = local.evaluate(LINEAR, gradient, output_shape=(1, 1, 4, 4))
            assert np.asarray(result).tobytes() == expected.tobytes()


@pytest.mark.slow
def test_devices_that_end_under_load_cost_no_call(crew: Command, folder: Path) -> None:
    """One after the other, so that health is SERVING all the while; then both at once."""
    served = crew.log.count(" device serves ")
    with (
        watching(crew) as health,
        Callers(crew.address, "unary", "async stream") as callers,
    ):
        for number, end in enumerate((kill, lose)):
            callers.wait_for_more()
            end(crew, folder, number)
            crew.wait_for_log(" device serves ", times=served + number + 1)
        assert health.seen == [SERVING]
        lose(crew, folder, 0)
        kill(crew, folder, 1)
        crew.wait_for_log(" device serves ", times=served + 4)
        callers.wait_for_more()
    callers.check()


def test_want_of_memory_is_an_error_that_passes(crew: Command, folder: Path) -> None:
    gradient = np.ones((1, 2, 300, 300), np.float32)
    for number in (0, 1):
        (folder / f"full-{number}").touch()
    with Client(crew.address) as client:
        with pytest.raises(OutOfMemoryError):
            client.evaluate(LINEAR, gradient, output_shape=(1, 2, 150, 150))
        for number in (0, 1):
            (folder / f"full-{number}").unlink()
        result = client.evaluate(LINEAR, gradient, output_shape=(1, 2, 150, 150))
    assert result.sum() == gradient.sum()


@pytest.mark.slow
def test_a_rolling_restart_renews_devices_without_a_word_to_callers(crew: Command) -> None:
    before = [device(crew, number) for number in (0, 1)]
    with Callers(crew.address, "stream") as callers:
        callers.wait_for_more()
        crew.signal(signal.SIGUSR2)
        crew.wait_for_log(" rolling restart done")
        callers.wait_for_more()
    callers.check()
    assert crew.log.count(" device relieved ") == 2
    assert not any(map(is_running, before))


def test_metrics_tell_memory_and_restarts_of_each_device(crew: Command, folder: Path) -> None:
    served = crew.log.count(" device serves ")
    kill(crew, folder)
    crew.wait_for_log(" device serves ", times=served + 1)
    (address,) = re.findall(r" http address=(\S+)", crew.log)
    seen = scrape(address)
    assert seen.labels("gradwire_device_memory_bytes", "device") == {"0", "1"}
    assert seen.value("gradwire_device_memory_bytes", device="0") > 0
    restarts = seen.value("gradwire_device_restarts_total")
    assert restarts == crew.log.count(" device ended ") > 0
    assert seen.value("process_resident_memory_bytes", worker="device-0") > 0


def test_who_ends_all_processes_at_once_lets_workers_finish(crew: Command) -> None:
    devices = [device(crew, number) for number in (0, 1)]
    with Callers(crew.address, "unary") as callers:
        for pid in devices:
            os.kill(pid, signal.SIGTERM)
        callers.wait_for_more()
        callers.wait_for_more()
    callers.check()
    assert all(map(is_running, devices))


@pytest.mark.slow
def test_health_tells_when_no_device_is_there_and_when_one_is_again(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "--http-port", "127.0.0.1:0") as command,
        watching(command) as health,
        Callers(command.address, "unary") as callers,
    ):
        (address,) = re.findall(r" http address=(\S+)", command.log)
        callers.wait_for_more()
        for number, end in enumerate((kill, lose), start=1):
            end(command, tmp_path)
            health.wait_for(SERVING, *[NOT_SERVING, SERVING] * number)
            callers.wait_for_more()
        callers.stop()
        callers.check()
        wait_until(lambda: scrape(address).value("gradwire_worker_ready") == 1)
        last = device(command)
        os.kill(command.pid, signal.SIGKILL)
        wait_until(lambda: not is_running(last))


def test_a_supervisor_that_is_killed_leaves_nothing_of_the_device_chosen(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", "2", "--cuda-devices", "2", devices=4) as command:
        command.wait_for_log(" device serves device=2 ")
        assert command.log.count(" device serves ") == 1
        pids = [device(command, 2), *command.workers.values()]
        assert all(map(is_running, pids))
        os.kill(command.pid, signal.SIGKILL)
        wait_until(lambda: not any(map(is_running, pids)))


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_device_that_is_not_there_ends_the_start_with_one_line(
    tmp_path: Path, workers: str
) -> None:
    (tmp_path / "missing-0").touch()
    done = run_command(*FLAGS, "--workers", workers, env=variables(tmp_path), program=PROGRAM)
    assert done.returncode == 1
    assert done.stderr == (
        f'Error: backend: "cuda" came, which cannot run here: {simulated_device.NONE}; '
        '"auto" computes on the CPU\n'
    )


@pytest.mark.slow
def test_a_device_that_stays_away_ends_the_server(tmp_path: Path) -> None:
    with serving(tmp_path) as command:
        (tmp_path / "missing-0").touch()
        os.kill(device(command), signal.SIGKILL)
        assert command.wait() == 1
        assert command.log.splitlines()[-1] == (
            "Error: device 0 could not start 5 times in a row and no other one serves; "
            f"{simulated_device.NONE}"
        )
