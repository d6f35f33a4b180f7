"""Supervision of one worker: its running process, and replacements."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

from gradwire_server import backends
from gradwire_server.config.settings import Settings
from gradwire_server.observability import Cells, Ledger, logs
from gradwire_server.scheduling import tasks
from gradwire_server.scheduling.device_watch import LOST_STATUS

_WORKER = "gradwire_server.processes.worker"
# CUDA's variable with the GPUs that a process sees.
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
# A killed process ends sooner, unless it hangs in a driver.
_KILL_S = 10.0
# Time for a process to exit once its event loop, and with it its heartbeats, has ended.
_EXIT_S = 20.0


class WorkerProcess:
    """Process of one worker.

    A line on its standard output reports that it serves.

    After that line it sends heartbeats while its event loop runs. The kernel would continue to pass
    connections to a stopped or hanging process, so the supervisor kills and replaces it. A process
    closes its standard output after its last heartbeat.

    served_s  seconds for which it served
    stuck     set if it has not ended after SIGKILL, since it hangs in a driver
    """

    def __init__(self, process: Process, *, stall_timeout_s: float) -> None:
        self._process = process
        self._output = cast("asyncio.StreamReader", process.stdout)
        self._began: float | None = None
        self._killed = False
        self._said = asyncio.ensure_future(self._listen())
        self._watching = asyncio.ensure_future(self._watch(stall_timeout_s))
        self.stuck = asyncio.Event()
        self.pid = process.pid
        self.served_s = 0.0

    @classmethod
    async def start(
        cls, number: int, settings: Settings, cells: Cells, *, device: str | None = None
    ) -> WorkerProcess:
        """Start the process of a worker; it prepares and waits for go().

        cells   for its metrics
        device  value of CUDA_VISIBLE_DEVICES for the process; None for all GPUs
        """
        # In a new session, so that Ctrl-C reaches only the parent, which stops all in order.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *module_arguments(_WORKER)),
            stdin=PIPE,
            stdout=PIPE,
            start_new_session=True,
            pass_fds=(cells.fd,),
            env=None if device is None else {**os.environ, VISIBLE_DEVICES: device},
        )
        cells.pid = process.pid
        job = {"number": number, "parent": os.getpid(), "settings": asdict(settings)}
        job |= {"cells": cells.fd, "devices": backends.DEVICES}
        line = json.dumps(job).encode() + b"\n"
        cast("asyncio.StreamWriter", process.stdin).write(line)
        return cls(process, stall_timeout_s=settings.stall_timeout_s)

    def go(self) -> None:
        """Let the process begin its job."""
        cast("asyncio.StreamWriter", self._process.stdin).close()

    @property
    def serves(self) -> bool:
        """Whether the process serves now."""
        return self._began is not None and self._process.returncode is None and not self._killed

    async def came_to_serve(self) -> bool:
        """Wait until the process serves, has ended or is stuck.

        Returns whether it has served.
        """
        await tasks.first(self._said, self.stuck)
        return self._said.done() and self._said.result()

    async def ended(self) -> int:
        """Wait for the process to end and return its exit status."""
        status = await self._process.wait()
        await self.came_to_serve()
        if self._began is not None and not self.served_s:
            self.served_s = time.monotonic() - self._began
        return status

    async def ended_or_stuck(self, *events: asyncio.Event) -> int | None:
        """Wait for the process to end; return its exit status.

        None once it is stuck and, if events are given, one of them is set.
        """
        ended = asyncio.ensure_future(self.ended())
        try:
            await tasks.first(ended, self.stuck)
            if events:
                await tasks.first(ended, *events)
            return ended.result() if ended.done() else None
        finally:
            ended.cancel()

    def send(self, number: int) -> None:
        """Send a signal to the process, if it has not ended."""
        if self._process.returncode is not None:
            return
        if number == signal.SIGKILL and not self._killed:
            self._killed = True
            asyncio.get_running_loop().call_later(_KILL_S, self._note_stuck)
        # asyncio's send_signal() polls the process and may consume its exit status; the watcher of
        # child processes would then report 255.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def _note_stuck(self) -> None:
        if self._process.returncode is None:
            self.stuck.set()

    async def _listen(self) -> bool:
        if await self._output.readline():
            self._began = time.monotonic()
        return self._began is not None

    async def _watch(self, patience_s: float) -> None:
        if not await self.came_to_serve():
            return
        silences = 0
        # A single silence may mean that this process itself was stopped.
        while silences < 2:  # noqa: PLR2004
            try:
                async with asyncio.timeout(patience_s / 2):
                    beats = await self._output.read(1 << 10)
                silences = 0
            except TimeoutError:
                silences += 1
                continue
            if not beats:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._process.wait(), _EXIT_S)
                    return
                break
        logs.error("worker hangs", pid=self.pid, silent_s=patience_s)
        self.send(signal.SIGKILL)


def module_arguments(module: str) -> tuple[str, ...]:
    """Return the arguments with which this interpreter runs a module.

    They include -P, so that the current folder does not shadow modules, if this process has it.
    """
    safe = () if sys.path[0] == str(Path.cwd()) else ("-P",)
    return (*safe, "-m", module)


# A process that served for less than this time, or never, died quickly.
_QUICK_S = 10.0
_FIRST_PAUSE_S = 0.1
# SDK clients wait for a server for about 11 s, enough for a pause and a start.
_LONGEST_PAUSE_S = 5.0
# Consecutive failed starts after which the server ends, if no other worker serves.
_MOST_FAILED_STARTS = 5


class SupervisedWorker:
    """A worker whose process is replaced when it dies or is renewed.

    turn      to be set when the first process may begin
    ready     set once the first process serves
    tried     set once the first process serves or has ended
    restarts  number of replacements after a process died

    number    of the worker
    settings  of the worker
    device    name of its GPU; None if it has none
    stopping  set once the server stops
    any_hope  returns whether any worker serves, or has not been tried yet
    ledger    sums the metrics of its processes
    """

    def __init__(
        self,
        number: int,
        settings: Settings,
        device: str | None,
        *,
        stopping: asyncio.Event,
        any_hope: Callable[[], bool],
        ledger: Ledger,
    ) -> None:
        self._number, self._settings, self._device = number, settings, device
        self._ledger = ledger
        self._stopping = stopping
        self._any_hope = any_hope
        self._changing = asyncio.Lock()
        self._process: WorkerProcess | None = None
        self._alive: dict[WorkerProcess, asyncio.Task[None]] = {}
        self.restarts = 0
        self._quick_deaths = 0
        self._failed_starts = 0
        self._renewed = asyncio.Event()
        self.turn, self.ready, self.tried = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @property
    def name(self) -> str:
        """Name of the worker in messages."""
        return f"worker {self._number}"

    @property
    def serves(self) -> bool:
        """Whether it serves now."""
        return any(process.serves for process in self._alive)

    async def keep(self) -> None:
        """Run a process, and another one whenever it dies.

        Runs until told to stop.

        Raises RuntimeError if further replacements would be useless.
        """
        process = self._process = await self._start(self._settings)
        while True:
            status = await self._end_of(process)
            self.tried.set()
            async with self._changing:
                self._renewed.clear()
                if self._process is process:
                    if self._stopping.is_set():
                        # A process that does not serve yet is ended by SIGTERM.
                        if status not in {0, -signal.SIGTERM}:
                            raise RuntimeError(
                                f"{self.name} ended with status {status}, told to stop"
                            )
                        return
                    if not await self._recover(process, status):
                        return
                    self._process = await self._start(self._settings)
                process = self._process

    async def renew(self, patience_s: float) -> bool:
        """Start a new process, then stop the old one.

        Once the new one serves, the old one finishes its calls and exits.

        patience_s  time limit for the old process, after which it is killed

        Returns False, and keeps the old process, if the new one fails to start.
        """
        async with self._changing:
            old = self._process
            # It has time, since calls are served meanwhile.
            new = await self._start(replace(self._settings, wait_for_kernels=True))
            if not await new.came_to_serve():
                status = await new.ended_or_stuck()
                if not self._stopping.is_set():
                    self._log(logs.error, "replacement failed", new, status=status)
                return False
            self._process, self._quick_deaths = new, 0
            self._renewed.set()
        if old is not None:
            old.send(signal.SIGUSR2)
            try:
                await asyncio.wait_for(old.ended_or_stuck(), patience_s)
            except TimeoutError:
                old.send(signal.SIGKILL)
            self._log(logs.info, "worker replaced", old, status=await old.ended_or_stuck())
        return True

    def send(self, number: int) -> None:
        """Send a signal to every process of the worker."""
        for process in self._alive:
            process.send(number)

    async def _end_of(self, process: WorkerProcess) -> int:
        """Wait for the end of a process and return its exit status.

        A process that SIGKILL does not end may still hold the device and its memory. The wait lasts
        until the process ends, a rolling restart replaces it, or the server stops.
        """
        status = await process.ended_or_stuck(self._stopping, self._renewed)
        if status is not None:
            return status
        if self._process is process:
            raise RuntimeError(f"{self.name} is left behind: SIGKILL has not ended {process.pid}")
        return -signal.SIGKILL

    async def _start(self, settings: Settings) -> WorkerProcess:
        with contextlib.ExitStack() as starting:
            cells = starting.enter_context(self._ledger.process())
            process = await WorkerProcess.start(self._number, settings, cells, device=self._device)
            counting = starting.pop_all()
        self._alive[process] = asyncio.create_task(self._watch(process, counting))
        if self._stopping.is_set():
            process.send(signal.SIGTERM)
        return process

    async def _watch(self, process: WorkerProcess, counting: contextlib.ExitStack) -> None:
        with counting:
            await self.turn.wait()
            process.go()
            if await process.came_to_serve():
                self._failed_starts = 0
                self._log(logs.info, "worker serves", process)
                self.ready.set()
                self.tried.set()
            if await process.ended_or_stuck() is None:
                self._log(logs.error, "worker ignores SIGKILL", process)
            del self._alive[process]

    async def _recover(self, process: WorkerProcess, status: int) -> bool:
        """Wait before a replacement, with backoff.

        Returns False if the server is stopping.

        Raises RuntimeError if a replacement would not start either.
        """
        if not process.served_s:
            self._failed_starts += 1
            self._check_hope(status)
        self._quick_deaths = self._quick_deaths + 1 if process.served_s < _QUICK_S else 0
        deaths = self._quick_deaths
        pause_s = min(_FIRST_PAUSE_S * 2 ** (deaths - 1), _LONGEST_PAUSE_S) if deaths else 0.0
        self.restarts += 1
        self._ledger.note_restart()
        facts = {"status": status, "restarts": self.restarts, "pause_s": pause_s}
        self._log(logs.warning, "worker ended", process, **facts)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), pause_s)
        return not self._stopping.is_set()

    def _check_hope(self, status: int) -> None:
        # A lost device may come back, and a killed process may serve the next time.
        if status > 0 and status != LOST_STATUS and not self.ready.is_set():
            raise RuntimeError(f"{self.name} could not start: it ended with status {status}")
        if self._failed_starts >= _MOST_FAILED_STARTS and not self._any_hope():
            why = (
                "it lost its device" if status == LOST_STATUS else f"it ended with status {status}"
            )
            raise RuntimeError(
                f"{self.name} could not start {self._failed_starts} times in a row and no other "
                f"one serves; {why}"
            )

    def _log(
        self, log: Callable[..., None], event: str, process: WorkerProcess, **facts: object
    ) -> None:
        device = {} if self._device is None else {"device": self._device}
        log(event, worker=self._number, pid=process.pid, **device, **facts)
