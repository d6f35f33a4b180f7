"""Several workers serve one port; one that dies is replaced, and none outlives its parent."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from callers import Callers
from gradwire import v1
from gradwire_server.config.addresses import held
from gradwire_server.config.settings import Settings
from gradwire_server.observability import Ledgers
from gradwire_server.processes.supervisor import Crew
from processes import Command, is_running, run_command, running_command
from raw_calls import (
    PATIENCE_S,
    RawClient,
    wait_until,
)

FLAGS = ("--workers", "2", "--backend", "numpy_cpu")
CORES = sorted(os.sched_getaffinity(0))


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    log = tmp_path_factory.mktemp("workers") / "log"
    with running_command(*FLAGS, "--access-log", log=log) as command:
        yield command


def test_every_worker_is_a_process_of_its_own(command: Command) -> None:
    assert command.workers.keys() == {0, 1}
    assert len({command.pid, *command.workers.values()}) == 3


def test_connections_spread_over_the_workers(command: Command) -> None:
    def seen() -> set[str]:
        with RawClient(command.address) as client:
            client.check_alive()
        return set(re.findall(r" call worker=(\d)", command.log))

    wait_until(lambda: seen() == {"0", "1"})


def thread_names(pid: int) -> set[str]:
    """Return the names of a process's threads."""
    return {name.read_text() for name in Path(f"/proc/{pid}/task").glob("*/comm")}


def test_the_parent_makes_no_grpc_object(command: Command) -> None:
    for pid in command.workers.values():
        assert "event_engine\n" in thread_names(pid)
    assert len(thread_names(command.pid)) == 1


def test_cores_are_divided_among_the_workers(command: Command) -> None:
    told = re.findall(r" serving worker=\d .*compute_threads=(\d+)", command.log)
    assert told == [str(max(1, len(CORES) // 2))] * 2


def test_every_worker_has_its_share_of_memory_and_streams(command: Command) -> None:
    with RawClient(command.address) as client:
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


@pytest.mark.slow
def test_the_standing_of_each_worker_is_known_to_their_parent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "gradwire_server")

    async def until(holds: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)

    def standings(crew: Crew) -> list[tuple[bool, int]]:
        return [(one.serves, one.restarts) for one in crew.workers]

    async def watch() -> None:
        with held("127.0.0.1:0") as address:
            crew = Crew(Settings(workers=2, backend="numpy_cpu"), address, Ledgers(2, wanted=False))
            running = asyncio.create_task(crew.run())
            assert standings(crew) == [(False, 0)] * 2
            await until(lambda: standings(crew) == [(True, 0)] * 2)
            facts = [vars(one)["facts"] for one in caplog.records if one.msg == "worker serves"]
            (pid,) = (fact["pid"] for fact in facts if fact["worker"] == 1)
            os.kill(pid, signal.SIGKILL)
            await until(lambda: not crew.workers[1].serves)
            assert standings(crew)[0] == (True, 0)
            await until(lambda: standings(crew)[1] == (True, 1))
            signal.raise_signal(signal.SIGTERM)
            await running
            assert not any(one.serves for one in crew.workers)

    asyncio.run(watch())


def test_a_worker_that_is_told_to_stop_is_replaced(tmp_path: Path) -> None:
    with running_command(*FLAGS, log=tmp_path / "log") as command:
        pid = command.workers[1]
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: command.workers[1] != pid)
        assert f"worker ended worker=1 pid={pid} status=0 restarts=1" in command.log


def test_no_worker_outlives_its_parent(tmp_path: Path) -> None:
    with running_command(*FLAGS, log=tmp_path / "log") as command:
        workers = command.workers
        assert all(is_running(pid) for pid in workers.values())
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
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(str(chain))
    issued.private_key_pem.write_to_path(str(key))
    flags = ("--tls-certificate", str(chain), "--tls-key", str(key))
    with running_command(*FLAGS, *flags, log=tmp_path / "log") as command:
        key.rename(hidden := tmp_path / "hidden.pem")
        os.kill(command.workers[1], signal.SIGKILL)
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
