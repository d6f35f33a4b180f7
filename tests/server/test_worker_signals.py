"""A signal to a server of several workers ends all of them, in order or at once."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest

from processes import environment, is_running, running_command
from raw_calls import (
    PATIENCE_S,
    RawClient,
    wait_until,
)
from waiting_streams import WaitingStream

FLAGS = ("--workers", "2", "--backend", "numpy_cpu")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_all_workers(tmp_path: Path, number: int) -> None:
    with (
        running_command(*FLAGS, log=tmp_path / "log") as command,
        RawClient(command.address) as client,
    ):
        stream = WaitingStream(client)
        command.signal(number)
        command.wait_for_log(" draining ", times=2)
        assert command.running
        stream.finish()
        assert command.wait() == 0
        assert "Traceback" not in command.log
        assert not [pid for pid in command.workers.values() if is_running(pid)]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("moment_s", [0.0, 0.2, 0.4])
def test_a_signal_ends_workers_that_start(tmp_path: Path, number: int, moment_s: float) -> None:
    log = tmp_path / "log"
    with (
        log.open("wb") as stderr,
        subprocess.Popen(  # noqa: S603 - our own server
            [sys.executable, "-m", "gradwire_server", "--address", "127.0.0.1:0", *FLAGS],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=environment(None),
        ) as process,
    ):
        wait_until(lambda: signal.SIGTERM in caught_by(process.pid))
        time.sleep(moment_s)
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 0
    assert "Traceback" not in log.read_text()


def caught_by(pid: int) -> set[int]:
    """Return the signals that a process handles itself."""
    line = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    assert line is not None
    return {number for number in range(1, 64) if int(line[1], 16) >> (number - 1) & 1}


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
    ended = subprocess.run(  # noqa: S603 - our own server
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ended.stderr.rstrip().endswith("CancelledError")


def test_a_second_signal_ends_all_workers_at_once(tmp_path: Path) -> None:
    with (
        running_command(*FLAGS, "--grace-s", "3600", log=tmp_path / "log") as command,
        RawClient(command.address) as client,
    ):
        stream = WaitingStream(client)
        command.signal(signal.SIGTERM)
        command.wait_for_log(" draining ", times=2)
        command.signal(signal.SIGTERM)
        assert command.wait() == -signal.SIGTERM
        stream.send()
        with pytest.raises(grpc.RpcError):
            next(stream.call)
        assert not [pid for pid in command.workers.values() if is_running(pid)]
