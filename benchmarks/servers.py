"""Servers of benchmarks as child processes, with their processor time and memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

OURS = ("-m", "gradwire_server", "--address", "127.0.0.1:0")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    address: str
    pid: int

    def cpu_s(self) -> float:
        """Return the seconds of processor time it has taken.

        User mode and kernel mode count.
        """
        text = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8")
        # The name in parentheses may hold anything.
        fields = text.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def rss_anon(self) -> int:
        """Return the bytes of anonymous memory it holds."""
        return rss_anon(self.pid)


def rss_anon(pid: int) -> int:
    """Return the bytes of anonymous memory a process holds."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return 1024 * next(
        int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")
    )


def own_cpu_s() -> float:
    """Return this process's processor time in seconds.

    User mode and kernel mode count.
    """
    times = os.times()
    return times.user + times.system


@contextmanager
def started(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    python: str = sys.executable,
    cores: Collection[int] | None = None,
    cwd: Path | None = None,
    log: Path | None = None,
) -> Generator[Server]:
    """Run Python with arguments until the block ends.

    The first line that it prints ends with its address.

    env    further variables; unless they say otherwise, a server waits for its kernels
    cores  that it may run on
    cwd    its working directory
    log    file for its standard error
    """
    allowed = os.sched_getaffinity(0)
    with (log or Path(os.devnull)).open("wb") as stderr:
        # A child inherits the cores of this thread.
        os.sched_setaffinity(0, cores or allowed)
        process = subprocess.Popen(
            [python, *arguments],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, "GRADWIRE_WAIT_FOR_KERNELS": "true", **(env or {})},
            cwd=cwd,
        )
        os.sched_setaffinity(0, allowed)
    with process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, f"{python} {' '.join(arguments)} did not start"
            yield Server(line.split()[-1], process.pid)
        finally:
            process.terminate()
