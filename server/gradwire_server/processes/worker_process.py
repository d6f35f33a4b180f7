"""The process of a worker, as the process that watches it sees it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from dataclasses import replace
from pathlib import Path

from gradwire_server.observability import Running
from gradwire_server.processes.worker_config import Job
from gradwire_server.scheduling import tasks

_log = logging.getLogger("gradwire_server")

_WORKER = "gradwire_server.processes.worker"
# CUDA's: names the GPUs that a process sees.
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
# The system ends a killed process sooner, unless a driver holds it.
_KILL_S = 10.0


class WorkerProcess:
    """The process of one worker. A line on its standard output says that it serves.

    After that it gives signs of life as long as its event loop turns. One that is stopped, or in
    which nothing moves, would be given connections by the kernel all the same: it is killed, and so
    replaced.

    pid       its number
    served_s  how many seconds it has served
    stuck     set where it has not ended after SIGKILL: a driver holds it
    """

    def __init__(self, process: Process, *, stall_timeout_s: float) -> None:
        self._process = process
        self._began: float | None = None
        self._killed = False
        self._said = asyncio.ensure_future(self._listen())
        self._watching = asyncio.ensure_future(self._watch(stall_timeout_s))
        self.stuck = asyncio.Event()
        self.pid = process.pid
        self.served_s = 0.0

    @classmethod
    async def start(cls, job: Job, running: Running, *, device: str | None = None) -> WorkerProcess:
        """Start one; it prepares for its job and begins with it after go().

        device  the GPU that it sees, as CUDA_VISIBLE_DEVICES names it; None for all
        """
        # A session of its own: Ctrl-C reaches its parent only, which then stops all in order.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *module_arguments(_WORKER)),
            stdin=PIPE,
            stdout=PIPE,
            start_new_session=True,
            pass_fds=running.fds,
            env=None if device is None else {**os.environ, VISIBLE_DEVICES: device},
        )
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        process.stdin.write(replace(job, cells=running.fd).dump() + b"\n")
        running.note_start(process.pid)
        return cls(process, stall_timeout_s=job.settings.stall_timeout_s)

    def go(self) -> None:
        """Have it begin."""
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        self._process.stdin.close()

    @property
    def serves(self) -> bool:
        """Whether it serves now."""
        return self._began is not None and self._process.returncode is None and not self._killed

    async def came_to_serve(self) -> bool:
        """Wait until it serves, has ended without, or is stuck; return whether it serves."""
        await tasks.first(self._said, self.stuck)
        return self._said.done() and self._said.result()

    async def ended(self) -> int:
        """Wait for its end and return its exit status."""
        status = await self._process.wait()
        await self.came_to_serve()
        if self._began is not None and not self.served_s:
            self.served_s = time.monotonic() - self._began
        return status

    async def ended_or_stuck(self) -> int | None:
        """Wait for its end and return its exit status; None where SIGKILL does not end it."""
        ended = asyncio.ensure_future(self.ended())
        try:
            await tasks.first(ended, self.stuck)
            return ended.result() if ended.done() else None
        finally:
            ended.cancel()

    def send(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        if self._process.returncode is not None:
            return
        if number == signal.SIGKILL and not self._killed:
            self._killed = True
            asyncio.get_running_loop().call_later(_KILL_S, self._note_stuck)
        # Not asyncio's send_signal(): that polls the process, and may take the exit status that the
        # watcher of child processes waits for, which reports 255 then.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def _note_stuck(self) -> None:
        if self._process.returncode is None:
            self.stuck.set()

    async def _listen(self) -> bool:
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        if await self._process.stdout.readline():
            self._began = time.monotonic()
        return self._began is not None

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


def module_arguments(module: str) -> tuple[str, ...]:
    """Return the arguments with which this interpreter runs a module.

    With -P, without which the current folder hides modules, unless this process runs without it.
    """
    safe = () if sys.path[0] == str(Path.cwd()) else ("-P",)
    return (*safe, "-m", module)
