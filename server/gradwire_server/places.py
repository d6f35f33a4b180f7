"""The place of one worker: the process that has it now, and those that follow."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable
from dataclasses import dataclass

from gradwire_server.shares import Job
from gradwire_server.telemetry import Ledger
from gradwire_server.worker_process import WorkerProcess

_log = logging.getLogger("gradwire_server")

# A worker that dies sooner after it came to serve, or never did, died quickly.
_QUICK_S = 10.0
_FIRST_PAUSE_S = 0.1
# Callers of the SDK wait for a server for some 11 s: a pause and a start fit in.
_LONGEST_PAUSE_S = 5.0
# So many failed starts in a row, while no other worker serves, end the server.
_MOST_FAILED_STARTS = 5


@dataclass(frozen=True, slots=True)
class Standing:
    """How a worker stands now.

    serves    whether it serves
    restarts  how often it was replaced because it had died
    """

    serves: bool
    restarts: int


class Place:
    """The place of one worker, which one process after another takes.

    ready  set once a first process has served

    any_serves  tells whether any worker of the server serves
    ledger      what adds up the metrics of its processes
    """

    def __init__(
        self,
        job: Job,
        *,
        stopping: asyncio.Event,
        any_serves: Callable[[], bool],
        ledger: Ledger,
    ) -> None:
        self._job = job
        self._ledger = ledger
        self._stopping = stopping
        self._any_serves = any_serves
        self._changing = asyncio.Lock()
        self._worker: WorkerProcess | None = None
        self._alive: dict[WorkerProcess, asyncio.Task[None]] = {}
        self._restarts = 0
        self._quick_deaths = 0
        self._failed_starts = 0
        self.ready = asyncio.Event()

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"worker {self._job.number}"

    @property
    def standing(self) -> Standing:
        """How the worker stands now."""
        return Standing(any(worker.serves for worker in self._alive), self._restarts)

    async def keep(self, turn: asyncio.Event) -> None:
        """Run a worker, and another one whenever it dies, until told to stop.

        turn  what the first process waits for before it begins

        Raises RuntimeError where that makes no sense any more.
        """
        worker = self._worker = await self._start(turn)
        while True:
            status = await worker.ended()
            async with self._changing:
                if self._worker is worker:
                    if self._stopping.is_set():
                        self._check_stopped(status)
                        return
                    if not await self._recover(worker, status):
                        return
                    self._worker = await self._start(_now())
                worker = self._worker

    async def renew(self, patience_s: float) -> bool:
        """Start another process, and once it serves let the one there is finish its calls and go.

        patience_s  what that may take

        Returns False where the new one does not come to serve; the one there is stays then.
        """
        async with self._changing:
            old = self._worker
            new = await self._start(_now())
            if not await new.came_to_serve():
                status = await new.ended()
                if not self._stopping.is_set():
                    self._log(logging.ERROR, "replacement failed", new, status=status)
                return False
            self._worker, self._quick_deaths = new, 0
        if old is not None:
            old.send(signal.SIGUSR2)
            try:
                await asyncio.wait_for(old.ended(), patience_s)
            except TimeoutError:
                old.send(signal.SIGKILL)
            self._log(logging.INFO, "worker relieved", old, status=await old.ended())
        return True

    def send(self, number: int) -> None:
        """Send every process of the place a signal."""
        for worker in self._alive:
            worker.send(number)

    async def _start(self, turn: asyncio.Event) -> WorkerProcess:
        with contextlib.ExitStack() as starting:
            running = starting.enter_context(self._ledger.process())
            worker = await WorkerProcess.start(self._job, running)
            counting = starting.pop_all()
        self._alive[worker] = asyncio.create_task(self._watch(worker, turn, counting))
        if self._stopping.is_set():
            worker.send(signal.SIGTERM)
        return worker

    async def _watch(
        self, worker: WorkerProcess, turn: asyncio.Event, counting: contextlib.ExitStack
    ) -> None:
        with counting:
            await turn.wait()
            worker.go()
            if await worker.came_to_serve():
                self._failed_starts = 0
                self._log(logging.INFO, "worker serves", worker)
                self.ready.set()
            await worker.ended()
            del self._alive[worker]

    async def _recover(self, worker: WorkerProcess, status: int) -> bool:
        """Wait before a replacement, the longer the more often; return whether there is to be one.

        Raises RuntimeError where it would not start either.
        """
        if not worker.served_s:
            self._failed_starts += 1
            self._check_hope(status)
        self._quick_deaths = self._quick_deaths + 1 if worker.served_s < _QUICK_S else 0
        pause_s = 0.0
        if self._quick_deaths:
            pause_s = min(_FIRST_PAUSE_S * 2 ** (self._quick_deaths - 1), _LONGEST_PAUSE_S)
        self._restarts += 1
        self._ledger.note_restart()
        facts = {"status": status, "restarts": self._restarts, "pause_s": pause_s}
        self._log(logging.WARNING, "worker ended", worker, **facts)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), pause_s)
        return not self._stopping.is_set()

    def _check_hope(self, status: int) -> None:
        if status > 0 and not self.ready.is_set():
            raise RuntimeError(f"{self.name} could not start: it ended with status {status}")
        if self._failed_starts >= _MOST_FAILED_STARTS and not self._any_serves():
            raise RuntimeError(
                f"{self.name} could not start {self._failed_starts} times in a row and no other "
                f"one serves; it ended with status {status}"
            )

    def _check_stopped(self, status: int) -> None:
        # One that had not served yet knows no other way to stop.
        if status not in (0, -signal.SIGTERM):
            raise RuntimeError(f"{self.name} ended with status {status}, told to stop")

    def _log(self, level: int, event: str, worker: WorkerProcess, **facts: object) -> None:
        told = {"worker": self._job.number, "pid": worker.pid, **facts}
        _log.log(level, event, extra={"facts": told})


def _now() -> asyncio.Event:
    """Return a turn that has come."""
    turn = asyncio.Event()
    turn.set()
    return turn
