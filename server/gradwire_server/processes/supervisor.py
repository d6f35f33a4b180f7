"""Supervisor of several workers: start, stop and rolling restart.

All workers listen on one port.

supervised.py replaces a worker that dies.

Workers are fresh processes, since neither grpc nor a GPU's driver survives a fork; permanent damage
in a worker ends with its process. All workers listen on the port (SO_REUSEPORT) and the kernel
spreads connections among them; the supervisor only holds the port and watches. It makes no grpc
object and no CUDA context: each worker on a GPU opens its own, which ends with the worker.

A rolling restart renews one worker after the other: a new process starts and serves beside the old
one, then the old one finishes its calls and exits. The port is served throughout, so health stays
SERVING. If a new process fails to start, the restart stops.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import replace

from gradwire_server import exporters
from gradwire_server.config import addresses
from gradwire_server.config.settings import Settings
from gradwire_server.observability import logs
from gradwire_server.observability.cells import Ledger
from gradwire_server.processes import startup
from gradwire_server.processes.supervised import SupervisedWorker
from gradwire_server.scheduling import tasks
from gradwire_server.security.authorization import warn_if_open

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

# Time for a worker to stop, beyond its drain delay and grace period.
_STOP_S = 20.0


def share(settings: Settings, address: str, *, devices: int = 1) -> Settings:
    """Return the settings of one worker.

    Limits of the machine are divided among all workers.

    devices  number of GPUs, whose limits are divided among their workers
    """
    workers = settings.workers
    limits = {
        "max_memory_bytes": workers,
        "max_streams": workers,
        "max_queue": workers,
        "cuda_memory_bytes": workers // devices,
    }
    shares = {name: max(1, getattr(settings, name) // among) for name, among in limits.items()}
    return replace(settings, address=address, compute_threads=settings.threads, **shares)


async def supervise(settings: Settings, devices: Sequence[str | None] = (None,)) -> None:
    """Serve with several workers until SIGTERM or SIGINT.

    A second signal ends them at once. SIGUSR2 renews the workers.

    devices  GPUs, named as in CUDA_VISIBLE_DEVICES, or None; worker i gets number i modulo their
             count

    Raises RuntimeError if workers do not start, or can no longer be replaced.
    """
    logs.configure(settings.log_format, settings.log_level)
    with addresses.held(settings.address) as address:
        ledgers = [Ledger(number) for number in range(settings.workers)]
        # Threads of the HTTP port end with the process.
        exporters.open_site(settings, ledgers, served=address)
        warn_if_open(settings)
        await Crew(settings, address, ledgers, devices).run()


class Crew:
    """All workers of a server, by number.

    Signals are sent to all of them.
    """

    def __init__(
        self,
        settings: Settings,
        address: str,
        ledgers: Sequence[Ledger],
        devices: Sequence[str | None],
    ) -> None:
        self._address = address
        self._stop_s = settings.drain_delay_s + settings.grace_s + _STOP_S
        self._stopping = asyncio.Event()
        self._renewal_wanted = asyncio.Event()
        self._signals: list[int] = []
        shared = share(settings, address, devices=len(devices))
        self.workers = [
            SupervisedWorker(
                number,
                shared,
                devices[number % len(devices)],
                ledger,
                self._stopping,
                any_hope=lambda: any(one.serves or not one.tried.is_set() for one in self.workers),
            )
            for number, ledger in enumerate(ledgers)
        ]

    async def run(self) -> None:
        """Keep every worker running.

        Returns when told to stop, or when a worker cannot be replaced.
        """
        loop = asyncio.get_running_loop()
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, self._signal, number)
        loop.add_signal_handler(signal.SIGUSR2, self._renewal_wanted.set)
        startup.release()
        # A pending interrupt is raised here, before anything has started: asyncio waits forever for
        # a process whose start is cancelled.
        await asyncio.sleep(0)
        keeping = [asyncio.create_task(worker.keep()) for worker in self.workers]
        leading = asyncio.create_task(self._lead())
        await tasks.first(*keeping)
        self._stop()
        await asyncio.wait([leading, *keeping])
        for number in (*_STOP_SIGNALS, signal.SIGUSR2):
            loop.remove_signal_handler(number)
        if len(self._signals) > 1:
            signal.raise_signal(self._signals[-1])
        errors = [error for task in (*keeping, leading) if (error := task.exception()) is not None]
        for error in errors[1:]:
            logs.error(str(error))
        if errors:
            raise errors[0]
        logs.info("all workers stopped")

    async def _lead(self) -> None:
        """Start all workers; renew them when asked."""
        # The others, already prepared, wait for the first: its failure to start would be theirs
        # too, and they load the code that it compiles.
        for leaders in (self.workers[:1], self.workers):
            for worker in leaders:
                worker.turn.set()
            for worker in leaders:
                await tasks.first(worker.tried, self._stopping)
        await tasks.first(self._stopping, *(worker.ready for worker in self.workers))
        if not self._stopping.is_set():
            # Parents that start a server on port 0 read this line.
            startup.tell(f"gradwire-server listening on {self._address}")
        while True:
            await tasks.first(self._stopping, self._renewal_wanted)
            if self._stopping.is_set():
                return
            self._renewal_wanted.clear()
            await self._renew()

    async def _renew(self) -> None:
        logs.info("rolling restart")
        for place in self.workers:
            renewed = await place.renew(self._stop_s)
            if self._stopping.is_set():
                return
            if not renewed:
                logs.error("rolling restart stopped", at=place.name)
                return
        logs.info("rolling restart done")

    def _signal(self, number: int) -> None:
        self._signals.append(number)
        if len(self._signals) > 1:
            self._send(signal.SIGKILL)
        self._stop()

    def _stop(self) -> None:
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._send(signal.SIGTERM)
        asyncio.get_running_loop().call_later(self._stop_s, self._send, signal.SIGKILL)

    def _send(self, number: int) -> None:
        for place in self.workers:
            place.send(number)
