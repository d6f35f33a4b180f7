"""Servers of benchmarks as processes of their own, and what processor time they take."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

OURS = ("-m", "gradwire_server", "--address", "127.0.0.1:0")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Server:
    """A server that listens."""

    address: str
    pid: int

    def cpu_s(self) -> float:
        """Return the seconds of processor time it has taken, in user and in kernel mode."""
        text = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8")
        # The name in parentheses may hold anything.
        fields = text.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS


def own_cpu_s() -> float:
    """Return the same of this process."""
    times = os.times()
    return times.user + times.system


@contextmanager
def started(*arguments: str, env: Mapping[str, str] | None = None) -> Generator[Server]:
    """Run python with arguments until the block ends; its first line ends with its address."""
    with subprocess.Popen(  # noqa: S603 - our own servers
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **(env or {})},
    ) as process:
        assert process.stdout is not None
        try:
            yield Server(process.stdout.readline().split()[-1], process.pid)
        finally:
            process.terminate()
