"""Runs several workers on one port, replaces those that die, and renews them one by one.

Workers are fresh processes: neither grpc nor a GPU's driver survives a fork, and what breaks one
worker for good goes with it. All of them listen on the port (SO_REUSEPORT) and the kernel spreads
connections among them; this process only holds the port and watches, and makes no grpc object.

A rolling restart renews one worker after the other: a new process starts, serves beside the old
one, and only then the old one finishes its calls and goes. The port is served all the while, so
health stays SERVING. A new process that does not come to serve stops the restart.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from functools import partial

from gradwire_server import addresses, logs, outlets, signals
from gradwire_server.devices import Devices, are_wanted
from gradwire_server.places import Place, Standing
from gradwire_server.settings import Settings
from gradwire_server.shares import Job, divide, share
from gradwire_server.telemetry import Ledgers, Running
from gradwire_server.worker_process import WorkerProcess

_log = logging.getLogger("gradwire_server")
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

# What a worker may take to stop beyond its drain delay and grace period.
_STOP_S = 20.0


async def supervise(settings: Settings) -> None:
    """Serve with several workers until SIGTERM or SIGINT; a second signal ends them at once.

    SIGUSR2 renews the workers.

    Raises RuntimeError where workers do not start, or no one does any more.
    """
    logs.configure(settings.log_format, settings.log_level)
    with (
        addresses.held(settings.address) as address,
        outlets.collecting(settings, served=address) as ledgers,
    ):
        await Crew(settings, address, ledgers).run()


class Crew:
    """All workers, and what they are told together."""

    def __init__(self, settings: Settings, address: str, ledgers: Ledgers) -> None:
        self._address = address
        self._stop_s = settings.drain_delay_s + settings.grace_s + _STOP_S
        self._stopping = asyncio.Event()
        self._renewal_wanted = asyncio.Event()
        self._signals: list[int] = []
        self._shared = share(settings, address)
        self._devices = Devices(settings) if are_wanted(settings) else None
        self._ledgers = ledgers
        cores = divide(sorted(os.sched_getaffinity(0)), settings.workers)
        self._places = [
            Place(
                "worker",
                number,
                partial(self._start_worker, number, own if settings.pin_workers else ()),
                stopping=self._stopping,
                any_serves=lambda: any(one.serves for one in self.standings),
                ledger=ledgers.all[number],
            )
            for number, own in enumerate(cores)
        ]

    @property
    def standings(self) -> tuple[Standing, ...]:
        """How each worker stands now, by number."""
        return tuple(place.standing for place in self._places)

    async def run(self) -> None:
        """Keep every place taken until told to stop, or one cannot be."""
        loop = asyncio.get_running_loop()
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, self._signal, number)
        loop.add_signal_handler(signal.SIGUSR2, self._renewal_wanted.set)
        signals.release()
        # An interrupt that came before its handler is raised here, where nothing has begun: asyncio
        # waits for ever for a process whose start is cancelled.
        await asyncio.sleep(0)
        over = await self._start_devices()
        keeping = await self._start(over)
        renewing = asyncio.create_task(self._renew_when_asked())
        if not self._stopping.is_set():
            # Parents that start a server on port 0 read this line.
            print(f"gradwire-server listening on {self._address}", flush=True)  # noqa: T201
            await asyncio.wait([over, *keeping], return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        self._stop()
        await asyncio.wait([renewing, *keeping])
        if self._devices is not None:
            await self._devices.stop()
        for number in (*_STOP_SIGNALS, signal.SIGUSR2):
            loop.remove_signal_handler(number)
        if len(self._signals) > 1:
            signal.raise_signal(self._signals[-1])
        for each in (*keeping, renewing):
            await each
        if self._devices is not None:
            self._devices.check()
        _log.info("all workers stopped")

    async def _start_devices(self) -> asyncio.Task[object]:
        """Start the processes of devices; return a task that ends where one cannot be kept.

        Raises ValueError where one is not there.
        """
        if self._devices is None:
            return asyncio.create_task(asyncio.Event().wait())
        try:
            await self._devices.start()
        except ValueError:
            await self._devices.stop()
            raise
        self._ledgers.devices.extend(self._devices.ledgers)
        return asyncio.create_task(self._devices.over.wait())

    async def _start_worker(
        self, number: int, cores: tuple[int, ...], running: Running
    ) -> WorkerProcess:
        addresses = () if self._devices is None else self._devices.addresses
        job = Job(number, os.getpid(), cores, self._shared, devices=addresses)
        return await WorkerProcess.start(job, running)

    async def _start(self, over: asyncio.Task[object]) -> list[asyncio.Task[None]]:
        """Start all workers and wait until they serve, unless one or a device ends for good."""
        # What keeps the first from starting keeps all, and what it compiles the others find: they
        # wait for it with all the rest done.
        turns = [asyncio.Event() for _ in self._places]
        keeping = [
            asyncio.create_task(place.keep(turn))
            for place, turn in zip(self._places, turns, strict=True)
        ]
        for first, stop in ((0, 1), (1, len(turns))):
            for turn in turns[first:stop]:
                turn.set()
            ready = asyncio.create_task(_all_ready(self._places[first:stop]))
            await asyncio.wait([ready, over, *keeping], return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                ready.cancel()
                self._stop()
                break
        for turn in turns:
            turn.set()
        return keeping

    async def _renew_when_asked(self) -> None:
        while not self._stopping.is_set():
            await self._renewal_wanted.wait()
            self._renewal_wanted.clear()
            if not self._stopping.is_set():
                await self._renew()

    async def _renew(self) -> None:
        _log.info("rolling restart")
        for place in self._places:
            renewed = await place.renew(self._stop_s)
            if self._stopping.is_set():
                return
            if not renewed:
                _log.error("rolling restart stopped", extra={"facts": {"at": place.name}})
                return
        if self._devices is not None and not await self._devices.renew(self._stop_s):
            if not self._stopping.is_set():
                _log.error("rolling restart stopped", extra={"facts": {"at": "a device"}})
            return
        _log.info("rolling restart done")

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
        self._renewal_wanted.set()
        self._send(signal.SIGTERM)
        asyncio.get_running_loop().call_later(self._stop_s, self._send, signal.SIGKILL)

    def _send(self, number: int) -> None:
        for place in self._places:
            place.send(number)


async def _all_ready(places: list[Place]) -> None:
    for place in places:
        await place.ready.wait()
