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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

from gradwire_server import backends
from gradwire_server.config.settings import Settings
from gradwire_server.observability import logs
from gradwire_server.observability.cells import Ledger
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

    began  time from which it served; None if it never did
    ended  its exit status
    stuck  set if it has not ended after SIGKILL, since it hangs in a driver
    """

    def __init__(self, process: Process, *, stall_timeout_s: float) -> None:
        self._process = process
        self._output = cast("asyncio.StreamReader", process.stdout)
        self._killed = False
        self._listening = asyncio.ensure_future(self._listen())
        self._watching = asyncio.ensure_future(self._watch(stall_timeout_s))
        self.began: float | None = None
        self.ended = asyncio.ensure_future(self._end())
        self.stuck = asyncio.Event()
        self.pid = process.pid

    def go(self) -> None:
        """Let the process begin its job."""
        cast("asyncio.StreamWriter", self._process.stdin).close()

    @property
    def serves(self) -> bool:
        """Whether the process serves now."""
        return self.began is not None and self._process.returncode is None and not self._killed

    async def came_to_serve(self) -> bool:
        """Wait until the process serves, has ended or is stuck.

        Returns whether it has served.
        """
        await tasks.first(self._listening, self.stuck)
        return self.began is not None

    async def ended_or_stuck(self, *events: asyncio.Event) -> int | None:
        """Wait for the process to end; return its exit status.

        None once it is stuck and, if events are given, one of them is set.
        """
        await tasks.first(self.ended, self.stuck)
        if events:
            await tasks.first(self.ended, *events)
        return self.ended.result() if self.ended.done() else None

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

    async def _listen(self) -> None:
        if await self._output.readline():
            self.began = time.monotonic()

    async def _end(self) -> int:
        status = await self._process.wait()
        await self.came_to_serve()
        return status

    async def _watch(self, patience_s: float) -> None:
        if not await self.came_to_serve():
            return
        silences = 0
        # A single silence may mean that this process itself was stopped.
        while silences < 2:  # noqa: PLR2004
            try:
                beats = await asyncio.wait_for(self._output.read(1 << 10), patience_s / 2)
            except TimeoutError:
                silences += 1
                continue
            silences = 0
            if not beats:
                await asyncio.wait({self.ended}, timeout=_EXIT_S)
                break
        if not self.ended.done():
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


@dataclass(eq=False)
class SupervisedWorker:
    """A worker whose process is replaced when it dies or is renewed.

    number    of the worker
    settings  of the worker
    device    name of its GPU; None if it has none
    ledger    sums the metrics of its processes
    stopping  set once the server stops
    any_hope  returns whether any worker serves, or has not been tried yet
    turn      to be set when the first process may begin
    ready     set once the first process serves
    tried     set once the first process serves or has ended
    """

    number: int
    settings: Settings
    device: str | None
    ledger: Ledger
    stopping: asyncio.Event
    any_hope: Callable[[], bool]

    def __post_init__(self) -> None:
        self.name = f"worker {self.number}"
        self.turn, self.ready, self.tried = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._changing, self._renewed = asyncio.Lock(), asyncio.Event()
        self._process: WorkerProcess | None = None
        self._alive: dict[WorkerProcess, asyncio.Task[None]] = {}
        self._restarts = self._quick_deaths = self._failed_starts = 0

    @property
    def serves(self) -> bool:
        """Whether it serves now."""
        return any(process.serves for process in self._alive)

    async def keep(self) -> None:
        """Run a process, and another one whenever it dies.

        Runs until told to stop.

        A process that SIGKILL does not end may still hold the device and its memory. It is replaced
        once it ends, or by a rolling restart.

        Raises RuntimeError if further replacements would be useless.
        """
        process = self._process = await self._start(self.settings)
        while True:
            status = await process.ended_or_stuck(self.stopping, self._renewed)
            self.tried.set()
            async with self._changing:
                self._renewed.clear()
                if self._process is process:
                    if status is None:
                        raise RuntimeError(
                            f"{self.name} is left behind: SIGKILL has not ended {process.pid}"
                        )
                    if not self.stopping.is_set():
                        await self._recover(process, status)
                    # A process that does not serve yet is ended by SIGTERM.
                    elif status not in {0, -signal.SIGTERM}:
                        raise RuntimeError(f"{self.name} ended with status {status}, told to stop")
                    if self.stopping.is_set():
                        return
                    self._process = await self._start(self.settings)
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
            new = await self._start(replace(self.settings, wait_for_kernels=True))
            if not await new.came_to_serve():
                status = await new.ended_or_stuck()
                if not self.stopping.is_set():
                    self._log(logs.error, "replacement failed", new, status=status)
                return False
            self._process, self._quick_deaths = new, 0
            self._renewed.set()
        if old is not None:
            old.send(signal.SIGUSR2)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(old.ended_or_stuck(), patience_s)
            old.send(signal.SIGKILL)
            self._log(logs.info, "worker replaced", old, status=await old.ended_or_stuck())
        return True

    def send(self, number: int) -> None:
        """Send a signal to every process of the worker."""
        for process in self._alive:
            process.send(number)

    async def _start(self, settings: Settings) -> WorkerProcess:
        """Start a process, which prepares and waits for its turn."""
        counting = contextlib.ExitStack()
        cells = counting.enter_context(self.ledger.process())
        # In a new session, so that Ctrl-C reaches only the parent, which stops all in order.
        started = await asyncio.create_subprocess_exec(
            *(sys.executable, *module_arguments(_WORKER)),
            stdin=PIPE,
            stdout=PIPE,
            start_new_session=True,
            pass_fds=(cells.fd,),
            env=None if self.device is None else {**os.environ, VISIBLE_DEVICES: self.device},
        )
        cells.pid = started.pid
        job = {"number": self.number, "parent": os.getpid(), "settings": asdict(settings)}
        job |= {"cells": cells.fd, "devices": backends.DEVICES}
        line = json.dumps(job).encode() + b"\n"
        cast("asyncio.StreamWriter", started.stdin).write(line)
        process = WorkerProcess(started, stall_timeout_s=settings.stall_timeout_s)
        self._alive[process] = asyncio.create_task(self._watch(process, counting))
        if self.stopping.is_set():
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

    async def _recover(self, process: WorkerProcess, status: int) -> None:
        """Wait before a replacement, with backoff.

        Raises RuntimeError if a replacement would not start either.
        """
        if process.began is None:
            self._failed_starts += 1
            self._check_hope(status)
        is_quick = process.began is None or time.monotonic() - process.began < _QUICK_S
        deaths = self._quick_deaths = self._quick_deaths + 1 if is_quick else 0
        pause_s = min(_FIRST_PAUSE_S * 2 ** (deaths - 1), _LONGEST_PAUSE_S) if deaths else 0.0
        self._restarts += 1
        self.ledger.note_restart()
        facts = {"status": status, "restarts": self._restarts, "pause_s": pause_s}
        self._log(logs.warning, "worker ended", process, **facts)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stopping.wait(), pause_s)

    def _check_hope(self, status: int) -> None:
        is_lost = status == LOST_STATUS
        why = "it lost its device" if is_lost else f"it ended with status {status}"
        # A lost device may come back, and a killed process may serve the next time.
        if status > 0 and not is_lost and not self.ready.is_set():
            raise RuntimeError(f"{self.name} could not start: {why}")
        if self._failed_starts >= _MOST_FAILED_STARTS and not self.any_hope():
            raise RuntimeError(
                f"{self.name} could not start {self._failed_starts} times in a row and no other "
                f"one serves; {why}"
            )

    def _log(
        self, log: Callable[..., None], event: str, process: WorkerProcess, **facts: object
    ) -> None:
        device = {} if self.device is None else {"device": self.device}
        log(event, worker=self.number, pid=process.pid, **device, **facts)
