"""Full disks, logs that nobody reads, no memory: the server serves on, and says so where it can."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

import pytest

from gradwire import RetryPolicy
from support.load import Callers
from support.processes import EAGER, Command, memory_kib, running_command
from support.raw_calls import RawClient, identity_request
from support.refusals import Refusal
from support.servers import commanded

LOGGING = ("--access-log",)
MIB = 1 << 20


def check_and_stop(command: Command) -> None:
    """Have some calls evaluated, so that something is logged, and end the server in order."""
    with RawClient(command.address) as client:
        for _ in range(40):
            client.check_alive()
    command.signal(signal.SIGTERM)
    assert command.wait() == 0


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_log_on_a_full_disk_costs_nothing_else(workers: str) -> None:
    with running_command(*LOGGING, "--workers", workers, log=Path("/dev/full")) as command:
        check_and_stop(command)


def test_a_log_that_nobody_reads_any_more_costs_nothing_else() -> None:
    reading, writing = os.pipe()
    with running_command(*LOGGING, log=Path(f"/dev/fd/{writing}")) as command:
        os.close(writing)
        os.close(reading)
        check_and_stop(command)


def test_a_disk_that_has_room_again_is_told_how_many_lines_it_lacks(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with commanded(*LOGGING, log=log) as (command, client):
        client.check_alive()
        command.wait_for_log("method=EvaluateStream")
        before = log.stat().st_size
        _, hard = resource.prlimit(command.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(command.pid, resource.RLIMIT_FSIZE, (before, hard))
        for _ in range(40):
            client.check_alive()
        assert log.stat().st_size == before
        resource.prlimit(command.pid, resource.RLIMIT_FSIZE, (hard, hard))
        client.check_alive()
        command.wait_for_log(" lines lost lines=")


def mapped_after(seconds: float, pid: int) -> int:
    """Return the bytes of address space that a process has in a moment."""
    time.sleep(seconds)
    return memory_kib(pid, "VmSize") * 1024


@pytest.mark.slow
def test_calls_that_find_no_memory_end_and_the_server_goes_on(tmp_path: Path) -> None:
    request = identity_request(512 * 1024, data=bytes(2 * MIB))
    with commanded(log=tmp_path / "log", env=EAGER) as (command, client):
        assert client.evaluate(request).refusal is None
        _, hard = resource.prlimit(command.pid, resource.RLIMIT_AS)
        # The least of a while: what the call before had is given back, or grpc would find it.
        mapped = min(mapped_after(0.05, command.pid) for _ in range(8))
        # Too little for a result and its message.
        resource.prlimit(command.pid, resource.RLIMIT_AS, (mapped + MIB, hard))
        refusals: list[Refusal] = []
        for _ in range(20):
            answer = client.evaluate(request)
            assert answer.refusal is not None or answer.data == request.data
            refusals += [answer.refusal] if answer.refusal else []
        assert {each.info.reason for each in refusals} == {"OUT_OF_MEMORY"}, refusals
        resource.prlimit(command.pid, resource.RLIMIT_AS, (hard, hard))
        client.check_alive()
        assert "Traceback" not in command.log


@pytest.mark.slow
def test_a_worker_without_memory_brings_no_wrong_bits_and_loses_no_call(tmp_path: Path) -> None:
    patient = RetryPolicy(max_attempts=40, max_backoff_s=0.5)
    with running_command("--workers", "2", log=tmp_path / "log") as command:
        with Callers(command.address, "unary", "stream", "copy", retry=patient) as callers:
            callers.wait_for_more()
            pid = command.workers[0]
            _, hard = resource.prlimit(pid, resource.RLIMIT_AS)
            mapped = memory_kib(pid, "VmSize") * 1024
            resource.prlimit(pid, resource.RLIMIT_AS, (mapped, hard))
            callers.wait_for_more()
            # Whatever it could not do, it was not to answer with other bits.
            command.kill_worker(0)
            command.wait_for_log("worker serves worker=0 ", times=2)
            callers.wait_for_more()
        for tally in callers.tallies:
            assert tally.wrong == 0
            assert all(text.startswith("OutOfMemoryError: ") for text in tally.lost), tally.lost
