"""Signals end servers and workers in order; SIGUSR2 ends none, however early it comes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from support.processes import QUICK, environment, is_running, run_command
from support.raw_calls import PATIENCE_S, WaitingStream, wait_until
from support.servers import commanded

# Sent by the process to itself right before it becomes the server: it waits there all the while.
SIGNALLED_BEFORE = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
os.kill(os.getpid(), signal.SIGUSR2)
os.execv(sys.executable, [sys.executable, "-m", "gradwire_server", *sys.argv[1:]])
"""
FLAGS = ("--address", "127.0.0.1:0", *QUICK)


def is_among(number: int, pid: int, mask: str) -> bool:
    """Tell whether a process has a signal in one of the masks of /proc/PID/status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{mask}:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    raise AssertionError(mask)


def test_the_signal_is_held_before_anything_that_takes_long_is_imported() -> None:
    code = "import sys, gradwire_server.__main__; print(*sys.modules)"
    modules = run_command(program=("-c", code)).stdout.split()
    assert "gradwire_server.processes.startup" in modules
    assert not {"asyncio", "click", "google.protobuf", "grpc", "numpy"} & set(modules)


@contextmanager
def starting(log: Path, *arguments: str) -> Generator[subprocess.Popen[bytes]]:
    """Run Python with these arguments, which make a server of it, and end it."""
    with (
        log.open("wb") as stderr,
        subprocess.Popen(  # noqa: S603 - our own server
            [sys.executable, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=environment(None),
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def wait_for(log: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    wait_until(lambda: text in log.read_text() or process.poll() is not None)
    assert text in log.read_text()


def test_it_is_held_until_there_is_a_handler_and_then_heard(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with starting(log, "-m", "gradwire_server", *FLAGS) as process:
        until = time.monotonic() + PATIENCE_S
        while not is_among(signal.SIGUSR2, process.pid, "SigBlk"):
            assert not is_among(signal.SIGUSR2, process.pid, "SigCgt")
            assert time.monotonic() < until
        process.send_signal(signal.SIGUSR2)
        wait_for(log, "no rolling restart", process)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "told"), [("1", "no rolling restart"), ("2", " rolling restart done")]
)
def test_one_that_came_before_the_start_is_acted_on(
    tmp_path: Path, workers: str, told: str
) -> None:
    log = tmp_path / "log"
    with starting(log, "-c", SIGNALLED_BEFORE, *FLAGS, "--workers", workers) as process:
        wait_for(log, told, process)
        # A thread may have taken the signal while the one that starts still holds it back.
        wait_until(lambda: not is_among(signal.SIGUSR2, process.pid, "SigBlk"))
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("moment_s", [0.0, 0.2, 0.4])
def test_a_signal_ends_workers_that_start(tmp_path: Path, number: int, moment_s: float) -> None:
    log = tmp_path / "log"
    with starting(log, "-m", "gradwire_server", *FLAGS, "--workers", "2") as process:
        wait_until(lambda: is_among(signal.SIGTERM, process.pid, "SigCgt"))
        time.sleep(moment_s)
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 0
    assert "Traceback" not in log.read_text()


def test_an_interrupt_before_there_are_workers_ends_the_server() -> None:
    program = """
import asyncio
from gradwire_server.config.settings import Settings
from gradwire_server.processes import supervisor
async def interrupted():
    asyncio.current_task().cancel()  # as asyncio does on SIGINT
    await supervisor.supervise(Settings(workers=2, address="127.0.0.1:0"))
asyncio.run(interrupted())
"""
    ended = run_command(program=("-c", program))
    assert ended.stderr.rstrip().endswith("CancelledError")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_second_signal_ends_all_workers_at_once(tmp_path: Path, workers: int) -> None:
    flags = ("--workers", str(workers), "--grace-s", "3600")
    with commanded(*flags, log=tmp_path / "log") as (command, client):
        stream = WaitingStream(client)
        command.signal(signal.SIGTERM)
        command.wait_for_log(" draining ", times=workers)
        command.signal(signal.SIGTERM)
        assert command.wait() == -signal.SIGTERM
        stream.send()
        with pytest.raises(grpc.RpcError):
            next(stream.call)
        assert not [pid for pid in command.workers.values() if is_running(pid)]
