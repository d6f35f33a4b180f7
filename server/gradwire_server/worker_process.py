"""A process that serves, of a worker or of a device, as the process that watches it sees it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from gradwire_server.shares import Job
from gradwire_server.telemetry import Running

_log = logging.getLogger("gradwire_server")

_WORKER = "gradwire_server.worker"


class ServingProcess:
    """A process that serves, or is going to; it says so in a line on its standard output.

    pid       its number
    served_s  how many seconds it has served
    why       what it has said of a failure; empty where it said nothing
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self.why = ""
        self._began: float | None = None
        self._said = asyncio.ensure_future(self._listen())
        self.pid = process.pid
        self.served_s = 0.0

    @classmethod
    async def launch(cls, module: str, told: bytes, *, fds: Sequence[int] = ()) -> Self:
        """Start a process that runs a module.

        told  the first line on its standard input
        fds   file descriptors that it inherits
        """
        # A session of its own: Ctrl-C reaches its parent only, which then stops all in order.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *_as_safe(), "-m", module),
            stdin=PIPE,
            stdout=PIPE,
            start_new_session=True,
            pass_fds=fds,
        )
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        process.stdin.write(told + b"\n")
        return cls(process)

    def go(self) -> None:
        """Have it begin."""
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        self._process.stdin.close()

    @property
    def serves(self) -> bool:
        """Whether it serves now."""
        return self._began is not None and self._process.returncode is None

    async def came_to_serve(self) -> bool:
        """Wait until it serves, or has ended without; return whether it serves."""
        return await asyncio.shield(self._said)

    async def ended(self) -> int:
        """Wait for its end and return its exit status."""
        status = await self._process.wait()
        await self.came_to_serve()
        if self._began is not None and not self.served_s:
            self.served_s = time.monotonic() - self._began
        return status

    def send(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        if self._process.returncode is not None:
            return
        # Not asyncio's send_signal(): that polls the process, and may take the exit status that the
        # watcher of child processes waits for, which reports 255 then.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    async def _listen(self) -> bool:
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        while line := await self._process.stdout.readline():
            if self._means_serving(line):
                self._began = time.monotonic()
                return True
        return False

    def _means_serving(self, line: bytes) -> bool:
        """Take note of a line that the process wrote; return whether it says that it serves."""
        return True


class WorkerProcess(ServingProcess):
    """The process of one worker.

    It gives signs of life as long as its event loop turns. One that is stopped, or in which nothing
    moves, would be given connections by the kernel all the same: it is killed, and so replaced.
    """

    _watching: asyncio.Task[None]

    @classmethod
    async def start(cls, job: Job, running: Running) -> Self:
        """Start one; it prepares for its job and begins with it after go()."""
        told = replace(job, cells=running.fd).dump()
        process = await cls.launch(_WORKER, told, fds=running.fds)
        running.note_start(process.pid)
        process._watching = asyncio.create_task(process._watch(job.settings.stall_timeout_s))  # noqa: SLF001
        return process

    async def _watch(self, patience_s: float) -> None:
        if not await self.came_to_serve():
            return
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        silences = 0
        # One alone may be this process's own, if it was stopped itself.
        while silences < 2:  # noqa: PLR2004
            try:
                async with asyncio.timeout(patience_s / 2):
                    if not await self._process.stdout.read(1 << 10):
                        return
                silences = 0
            except TimeoutError:
                silences += 1
        _log.error("worker hangs", extra={"facts": {"pid": self.pid, "silent_s": patience_s}})
        self.send(signal.SIGKILL)


def _as_safe() -> list[str]:
    """Return the flag without which the current folder hides modules, unless it does so here."""
    return [] if sys.path[0] == str(Path.cwd()) else ["-P"]
