"""The command `gradwire-server` as a user runs it: what it prints, logs and ends with."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

_SERVER = ("-m", "gradwire_server")
_READY = "gradwire-server listening on "
# Unless a test says otherwise: to load compiled code takes a server longer than most tests take.
QUICK = ("--backend", "numpy_cpu")
# With this the C library hands large blocks back at once, so that figures tell what is still held:
# what malloc keeps for later would hide what the server does.
EAGER = {"MALLOC_MMAP_THRESHOLD_": "65536"}
# Generous: a log line that never comes should end the test all the same.
_PATIENCE_S = 120.0


def run_command(
    *flags: str,
    env: Mapping[str, str] | None = None,
    program: Sequence[str] = _SERVER,
    stdout: IO[str] | int = subprocess.PIPE,
) -> subprocess.CompletedProcess[str]:
    """Run the command with arguments that make it end by itself."""
    return subprocess.run(  # noqa: S603 - our own server
        [sys.executable, *program, *flags],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=_PATIENCE_S,
        env=environment(env),
    )


def environment(more: Mapping[str, str] | None) -> dict[str, str]:
    """Return this process's environment without its settings of servers, with more variables."""
    inherited = {name: text for name, text in os.environ.items() if "GRADWIRE" not in name}
    return {**inherited, "PYTHONUNBUFFERED": "1", **(more or {})}


def start_command(
    *flags: str,
    stderr: IO[bytes] | int,
    env: Mapping[str, str] | None = None,
    program: Sequence[str] = _SERVER,
) -> tuple[subprocess.Popen[str], str]:
    """Start the command, with NumPy unless flags say else; return it and its address.

    program  arguments of the interpreter that run it

    The address is empty where it has ended before.
    """
    process = subprocess.Popen(  # noqa: S603 - our own server
        [sys.executable, *program, *QUICK, *flags],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env=environment(env),
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    return process, line.removeprefix(_READY).strip() if line.startswith(_READY) else ""


class Command:
    """A server that runs until it is told to stop, and computes with NumPy unless flags say else.

    address  HOST:PORT, or what was asked for
    pid      of the process
    """

    def __init__(self, *flags: str, log: Path, **options: Any) -> None:
        self._log = log
        with log.open("wb") as stderr:
            self._process, self.address = start_command(*flags, stderr=stderr, **options)
        self.pid = self._process.pid
        if not self.address:
            self.close()
            raise AssertionError(self.log)

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def workers(self) -> dict[int, int]:
        """The process of each of several workers, as the log tells them."""
        serving = re.findall(r" worker serves worker=(\d+) pid=(\d+)", self.log)
        return {int(number): int(pid) for number, pid in serving}

    @property
    def http_address(self) -> str:
        """HOST:PORT of the HTTP port, as the log tells it."""
        (address,) = re.findall(r" http address=(\S+)", self.log)
        return str(address)

    def wait_for_log(self, text: str, *, times: int = 1) -> None:
        """Wait until the log holds a text so many times; a failure shows what it holds instead."""
        until = time.monotonic() + _PATIENCE_S
        while (seen := self.log).count(text) < times:
            assert time.monotonic() < until, f"{text} is not {times} times in the log:\n{seen}"
            time.sleep(0.005)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill_worker(self, number: int) -> int:
        """Kill a worker; return its process."""
        pid = self.workers[number]
        os.kill(pid, signal.SIGKILL)
        return pid

    def stop(self) -> None:
        """Send SIGTERM, and check that it ends in order."""
        self.signal(signal.SIGTERM)
        assert self.wait() == 0, self.log

    def wait(self) -> int:
        return self._process.wait(timeout=120)

    def close(self) -> None:
        with self._process:
            if self.running:
                self._process.kill()


@contextmanager
def running_command(*flags: str, log: Path, **options: Any) -> Generator[Command]:
    """Run the command on a free loopback port, unless flags say otherwise; see `start_command`."""
    command = Command("--address", "127.0.0.1:0", *flags, log=log, **options)
    try:
        yield command
    finally:
        command.close()


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "XZ"


def memory_kib(pid: int, name: str) -> int:
    """Return a figure of /proc/PID/status, such as RssAnon, in KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
