"""Several workers serve one port and share its limits; one that dies is replaced."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from gradwire import v1
from gradwire_server.config.settings import Settings
from gradwire_server.processes.gpus import visible
from gradwire_server.processes.supervised import WorkerProcess
from gradwire_server.processes.worker_config import share
from support.certificates import Papers
from support.load import Callers
from support.processes import Command, is_running, run_command, running_command
from support.raw_calls import RawClient, wait_until

FLAGS = ("--workers", "2", "--backend", "numpy_cpu")
CORES = sorted(os.sched_getaffinity(0))


def test_connections_spread_over_workers_that_are_processes_of_their_own(crew: Command) -> None:
    """The parent makes no object of grpc."""
    assert crew.workers.keys() == {0, 1}
    assert len({crew.pid, *crew.workers.values()}) == 3

    def threads(pid: int) -> set[str]:
        return {name.read_text() for name in Path(f"/proc/{pid}/task").glob("*/comm")}

    for pid in crew.workers.values():
        assert "event_engine\n" in threads(pid)
    assert len(threads(crew.pid)) == 1

    def seen() -> set[str]:
        with RawClient(crew.address) as client:
            client.check_alive()
        return set(re.findall(r" call worker=(\d)", crew.log))

    wait_until(lambda: seen() == {"0", "1"})


def test_every_worker_has_its_share_of_cores_memory_and_streams(crew: Command) -> None:
    told = re.findall(r" serving worker=\d .*compute_threads=(\d+)", crew.log)
    assert told == [str(max(1, len(CORES) // 2))] * 2
    with RawClient(crew.address) as client:
        limits = client.stub.GetServerInfo(v1.GetServerInfoRequest()).limits
    assert limits.max_memory_bytes == Settings().max_memory_bytes // 2
    assert limits.max_streams == Settings().max_streams // 2


@pytest.mark.slow
def test_no_call_is_lost_while_workers_are_killed_and_replaced(tmp_path: Path) -> None:
    with running_command(*FLAGS, log=tmp_path / "log") as command:
        with Callers(command.address, "unary", "async unary", "stream", "async copy") as callers:
            for killed in ((0,), (1,), (0, 1)):
                callers.wait_for_more()
                pids = [command.workers[number] for number in killed]
                serving = command.log.count(" worker serves ")
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
                for number, pid in zip(killed, pids, strict=True):
                    command.wait_for_log(f"worker ended worker={number} pid={pid} status=-9 ")
                command.wait_for_log(" worker serves ", times=serving + len(killed))
            callers.wait_for_more()
        callers.check()
        assert all(is_running(pid) for pid in command.workers.values())


def test_a_worker_that_is_told_to_stop_is_replaced(tmp_path: Path) -> None:
    with running_command(*FLAGS, log=tmp_path / "log") as command:
        pid = command.workers[1]
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: command.workers[1] != pid)
        assert f"worker ended worker=1 pid={pid} status=0 restarts=1" in command.log


def test_no_worker_outlives_its_parent(tmp_path: Path) -> None:
    with running_command(*FLAGS, log=tmp_path / "log") as command:
        workers = command.workers
        assert [is_running(pid) for pid in workers.values()] == [True, True]
        command.signal(signal.SIGKILL)
        command.wait()
        wait_until(lambda: not any(is_running(pid) for pid in workers.values()))


def test_what_keeps_one_worker_from_starting_is_told_once(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    flags = ("--tls-certificate", missing, "--tls-key", missing, "--address", "127.0.0.1:0")
    done = run_command(*FLAGS, *flags)
    assert done.returncode == 1
    assert not done.stdout
    told = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert len(told) == 2
    assert missing in told[0]
    assert told[1] == "Error: worker 0 could not start: it ended with status 1"


@pytest.mark.slow
def test_a_worker_that_does_not_start_is_tried_again_as_long_as_another_one_serves(
    tmp_path: Path,
) -> None:
    papers, key = Papers(tmp_path), tmp_path / "key.pem"
    with running_command(*FLAGS, *papers.flags, log=tmp_path / "log") as command:
        key.rename(hidden := tmp_path / "hidden.pem")
        command.kill_worker(1)
        command.wait_for_log(" restarts=3 ")
        assert is_running(command.workers[0])
        hidden.rename(key)
        command.wait_for_log(" worker serves worker=1 ", times=2)
        key.unlink()
        for pid in command.workers.values():
            os.kill(pid, signal.SIGKILL)
        assert command.wait() == 1
        assert "could not start 5 times in a row and no other one serves" in command.log
        told = re.findall(r" worker ended worker=1 .*pause_s=([\d.]+)", command.log)
        pauses = [float(pause) for pause in told]
        assert pauses[:3] == [0.1, 0.2, 0.4]
        assert all(later >= earlier for earlier, later in itertools.pairwise(pauses))
        assert not [pid for pid in command.workers.values() if is_running(pid)]


def ending(folder: Path, code: str) -> dict[str, str]:
    """Return variables with which workers run code while they exit."""
    hook = f"""
import atexit, os, sys, time
if "gradwire_server.processes.worker" in sys.orig_argv:
    atexit.register(lambda: {code})
"""
    (folder / "sitecustomize.py").write_text(hook)
    return {"PYTHONPATH": os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", "")))}


def test_a_worker_that_exits_slowly_is_not_killed_as_hanging(tmp_path: Path) -> None:
    env, flags = ending(tmp_path, "time.sleep(2)"), (*FLAGS, "--stall-timeout-s", "1")
    with running_command(*flags, log=tmp_path / "log", env=env) as command:
        command.stop()
        assert "worker hangs" not in command.log


def test_every_worker_that_failed_is_named_and_the_first_one_last(tmp_path: Path) -> None:
    env = ending(tmp_path, "os._exit(7)")
    with running_command(*FLAGS, log=tmp_path / "log", env=env) as command:
        command.signal(signal.SIGTERM)
        assert command.wait() == 1
        assert "Traceback" not in command.log
        assert "worker 1 ended with status 7, told to stop" in command.log
        told = command.log.splitlines()[-1]
        assert told == "Error: worker 0 ended with status 7, told to stop"


TIMES = 40


def test_a_signal_to_a_process_that_ends_leaves_its_status_alone() -> None:
    async def status() -> int:
        started = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", "", stdout=PIPE)
        process = WorkerProcess(started, stall_timeout_s=60)
        ending = asyncio.ensure_future(process.ended())
        while not ending.done():
            # None that would end it: what counts is that it is sent while the process ends.
            process.send(0)
            await asyncio.sleep(0)
        return await ending

    async def statuses() -> list[int]:
        return [await status() for _ in range(TIMES)]

    assert asyncio.run(statuses()) == [0] * TIMES


def test_workers_divide_what_may_wait_and_a_share_is_never_nothing() -> None:
    assert share(Settings(workers=4, max_queue=1000), "127.0.0.1:7").max_queue == 250
    scarce = Settings(workers=5, max_streams=3, max_queue=4, max_memory_bytes=2, compute_threads=7)
    shared = share(scarce, "127.0.0.1:7")
    assert (shared.max_streams, shared.max_queue) == (1, 1)
    assert (shared.max_memory_bytes, shared.threads) == (1, 7)


@pytest.mark.parametrize(("workers", "devices", "share_of"), [(2, 2, 1), (6, 2, 3), (4, 0, 1)])
def test_workers_of_a_device_divide_its_memory(workers: int, devices: int, share_of: int) -> None:
    settings = Settings(workers=workers, cuda_memory_bytes=12)
    assert share(settings, "127.0.0.1:7", devices=devices).cuda_memory_bytes == 12 // share_of


@pytest.mark.parametrize(
    ("outer", "named"), [(None, "2"), ("3,0,7", "7"), ("GPU-a, GPU-b, GPU-c", "GPU-c")]
)
def test_numbers_of_devices_are_those_among_the_visible_ones(outer: str | None, named: str) -> None:
    assert visible(2, outer) == named
