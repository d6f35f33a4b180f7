"""Runs several workers on one port and replaces those that die.

Workers are fresh processes: neither grpc nor a GPU's driver survives a fork, and what breaks one
worker for good goes with it. All of them listen on the port (SO_REUSEPORT) and the kernel spreads
connections among them; this process only holds the port and watches, and makes no grpc object.
"""

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
from typing import Any

from gradwire_server import addresses, logs, telemetry
from gradwire_server.settings import Settings
from gradwire_server.shares import Job, divide, share
from gradwire_server.telemetry import Ledger, Ledgers, Running

_log = logging.getLogger("gradwire_server")
_WORKER = "gradwire_server.worker"
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

# A worker that dies sooner after it was ready, or never was, died quickly.
_QUICK_S = 10.0
# As many quick deaths in a row end the server: what kills the next one at once is no accident.
_MOST_QUICK_DEATHS = 6
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
# What a worker may take to stop beyond its grace period.
_STOP_S = 20.0


async def supervise(settings: Settings) -> None:
    """Serve with several workers until SIGTERM or SIGINT; a second signal ends them at once.

    Raises RuntimeError where workers do not start, or die again and again.
    """
    logs.configure(settings.log_format, settings.log_level)
    with (
        addresses.held(settings.address) as address,
        telemetry.collecting(settings) as ledgers,
    ):
        await _Crew(settings, address, ledgers).run()


class _Place:
    """The place of one worker, which one process after another takes.

    ready    set once a first process has served
    process  the one there is now, if any
    """

    def __init__(self, job: Job, stopping: asyncio.Event, ledger: Ledger) -> None:
        self._job = job
        self._ledger = ledger
        self._stopping = stopping
        self._restarts = 0
        self.ready = asyncio.Event()
        self.process: Process | None = None

    async def keep(self) -> None:
        """Run a worker, and another one whenever it dies, until told to stop.

        Raises RuntimeError where that makes no sense any more.
        """
        quick = 0
        while True:
            served_s, status = await self._live()
            if self._stopping.is_set():
                # One that had not served yet knows no other way to stop.
                if status not in (0, -signal.SIGTERM):
                    raise RuntimeError(f"{self._name} ended with status {status}, told to stop")
                return
            quick = quick + 1 if served_s < _QUICK_S else 0
            self._check(status, quick)
            pause_s = min(_FIRST_PAUSE_S * 2 ** (quick - 1), _LONGEST_PAUSE_S) if quick else 0.0
            self._restarts += 1
            self._ledger.note_restart()
            self._log(
                logging.WARNING,
                "worker ended",
                status=status,
                restarts=self._restarts,
                pause_s=pause_s,
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)
            if self._stopping.is_set():
                return

    async def _live(self) -> tuple[float, int]:
        """Run one process; return how many seconds it served, and its exit status."""
        with self._ledger.process() as running:
            return await self._live_measured(running)

    async def _live_measured(self, running: Running) -> tuple[float, int]:
        # A session of its own: Ctrl-C reaches this process only, which then stops all in order.
        process = self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, *_as_safe(), "-m", _WORKER),
            stdin=PIPE,
            stdout=PIPE,
            start_new_session=True,
            pass_fds=running.fds,
        )
        job = replace(self._job, cells=running.fd)
        running.note_start(process.pid)
        if self._stopping.is_set():
            self.send(signal.SIGTERM)
        assert process.stdin is not None  # noqa: S101 - they are pipes
        assert process.stdout is not None  # noqa: S101
        process.stdin.write(job.dump())
        process.stdin.close()
        served = bool(await process.stdout.readline())
        began = time.monotonic()
        if served:
            self._log(logging.INFO, "worker serves")
            self.ready.set()
        status = await process.wait()
        return (time.monotonic() - began if served else 0.0), status

    def _check(self, status: int, quick: int) -> None:
        if status > 0 and not self.ready.is_set():
            raise RuntimeError(f"{self._name} could not start: it ended with status {status}")
        if quick == _MOST_QUICK_DEATHS:
            raise RuntimeError(
                f"{self._name} ended {quick} times in a row within {_QUICK_S:g} s of its start, "
                f"at last with status {status}"
            )

    @property
    def _name(self) -> str:
        return f"worker {self._job.number}"

    def _log(self, level: int, event: str, **facts: object) -> None:
        pid = None if self.process is None else self.process.pid
        _log.log(level, event, extra={"facts": {"worker": self._job.number, "pid": pid, **facts}})

    def send(self, number: int) -> None:
        """Send the process a signal, if there is one."""
        with contextlib.suppress(ProcessLookupError):
            if self.process is not None:
                self.process.send_signal(number)


class _Crew:
    """All workers, and what they are told together."""

    def __init__(self, settings: Settings, address: str, ledgers: Ledgers) -> None:
        self._address = address
        self._stop_s = settings.grace_s + _STOP_S
        self._stopping = asyncio.Event()
        self._signals: list[int] = []
        shared = share(settings, address)
        cores = divide(sorted(os.sched_getaffinity(0)), settings.workers)
        self._places = [
            _Place(
                Job(number, os.getpid(), own if settings.pin_workers else (), shared),
                self._stopping,
                ledgers.all[number],
            )
            for number, own in enumerate(cores)
        ]

    async def run(self) -> None:
        """Keep every place taken until told to stop, or one cannot be."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._signal, number)
        keeping = await self._start()
        if not self._stopping.is_set():
            # Parents that start a server on port 0 read this line.
            print(f"gradwire-server listening on {self._address}", flush=True)  # noqa: T201
            await asyncio.wait(keeping, return_when=asyncio.FIRST_COMPLETED)
        self._stop()
        await asyncio.wait(keeping)
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
        if len(self._signals) > 1:
            signal.raise_signal(self._signals[-1])
        for each in keeping:
            await each
        _log.info("all workers stopped")

    async def _start(self) -> list[asyncio.Task[None]]:
        """Start all workers and wait until they serve, unless one ends for good."""
        keeping: list[asyncio.Task[None]] = []
        # What keeps the first from starting keeps all; what it compiles the others find.
        for places in (self._places[:1], self._places[1:]):
            keeping += [asyncio.create_task(place.keep()) for place in places]
            ready = asyncio.gather(*(place.ready.wait() for place in places))
            waits: list[asyncio.Future[Any]] = [ready, *keeping]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                ready.cancel()
                await asyncio.wait({ready})
                self._stop()
                break
        return keeping

    def _signal(self, number: int) -> None:
        self._signals.append(number)
        if len(self._signals) == 1:
            self._stop()
        else:
            self._send(signal.SIGKILL)

    def _stop(self) -> None:
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._send(signal.SIGTERM)
        asyncio.get_running_loop().call_later(self._stop_s, self._send, signal.SIGKILL)

    def _send(self, number: int) -> None:
        for place in self._places:
            place.send(number)


def _as_safe() -> list[str]:
    """Return the flag without which the current folder hides modules, unless it does so here."""
    return [] if sys.path[0] == str(Path.cwd()) else ["-P"]
