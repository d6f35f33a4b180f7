"""The devices of a server: a process for each, and another one when it ends.

Whoever starts the workers, or is the only one, starts these too, and tells workers where to find
them. A device that is lost takes its process with it; the next one listens at the same socket.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradwire_server.backends.device_process import channels
from gradwire_server.backends.device_process.backend import DeviceProcesses
from gradwire_server.backends.device_process.jobs import BOARD_BYTES, Address, DeviceJob
from gradwire_server.backends.device_process.links import LANES
from gradwire_server.backends.device_process.shared_memory import SharedMemory
from gradwire_server.places import Place
from gradwire_server.settings import Settings
from gradwire_server.telemetry import DeviceLedger, Running
from gradwire_server.worker_process import ServingProcess

_PROCESS = "gradwire_server.device"
# What finds a device, in its process: MODULE:FUNCTION as device.Find has it.
FIND = "gradwire_server.device:find"
# What a process without calls may take to end.
_STOP_S = 10.0


class Devices:
    """The processes of all devices that settings ask for. Belongs to the loop that starts it.

    addresses  where workers find them, once they are started
    over       set where a device cannot be kept
    ledgers    what adds up the metrics of each
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stopping = asyncio.Event()
        self._seats = list[_Seat]()
        self._keeping = list[asyncio.Task[None]]()
        self.over = asyncio.Event()

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where workers find the devices."""
        return tuple(seat.address.result() for seat in self._seats)

    @property
    def ledgers(self) -> list[DeviceLedger]:
        """What adds up the metrics of each."""
        return [seat.ledger for seat in self._seats]

    async def start(self) -> None:
        """Find all devices; they get ready afterwards.

        Raises ValueError that says what is missing where one is not there.
        """
        numbers = self._settings.cuda_numbers
        count = await self._find(numbers[0] if numbers else 0)
        others = numbers[1:] if numbers else range(1, count)
        await asyncio.gather(*(self._find(number) for number in others))
        for each in self._keeping:
            each.add_done_callback(lambda _: self.over.set())

    async def renew(self, patience_s: float) -> bool:
        """Have another process for each device, one by one; no call is lost.

        Returns False where one does not come to serve; the one there is stays then.
        """
        for seat in self._seats:
            if not await seat.place.renew(patience_s) or self._stopping.is_set():
                return False
        return True

    async def stop(self) -> None:
        """End all processes."""
        self._stopping.set()
        for number in (signal.SIGTERM, signal.SIGKILL):
            for seat in self._seats:
                seat.place.send(number)
            if self._keeping:
                await asyncio.wait(self._keeping, timeout=_STOP_S)
        for seat in self._seats:
            seat.close()

    def check(self) -> None:
        """Raise the RuntimeError of a device that could not be kept, if there is one."""
        for each in self._keeping:
            if each.done() and (error := each.exception()) is not None:
                raise error

    async def _find(self, number: int) -> int:
        """Start the process of a device; return how many devices it sees."""
        seat = _Seat(
            number,
            self._settings,
            stopping=self._stopping,
            any_serves=lambda: any(one.place.standing.serves for one in self._seats),
        )
        self._seats.append(seat)
        turn = asyncio.Event()
        turn.set()
        keeping = asyncio.create_task(seat.place.keep(turn))
        self._keeping.append(keeping)
        await asyncio.wait({keeping, seat.address}, return_when=asyncio.FIRST_COMPLETED)
        if not seat.address.done():
            why = keeping.exception() or "the server stops"
            why = seat.why or why
            raise ValueError(
                f'backend: "cuda" came, which cannot run here: {why}; "auto" computes on the CPU'
            )
        return seat.count


def are_wanted(settings: Settings) -> bool:
    """Whether settings ask for devices that compute."""
    return settings.backend == "cuda"


def shared(settings: Settings, addresses: Sequence[Address]) -> tuple[DeviceProcesses, str]:
    """Return what computes on these devices, and why that was chosen."""
    backend = DeviceProcesses(
        addresses,
        lane_bytes=max(1, settings.cuda_shared_bytes // LANES),
        retry_after_s=settings.retry_after_s,
    )
    names = dict.fromkeys(one.device for one in addresses)
    return backend, f"{backend.name} was asked for; {', '.join(names)}"


class _Seat:
    """What stays of a device while one process after another has it.

    address  where workers find it, once a process has found it
    count    how many devices there are
    """

    def __init__(
        self,
        number: int,
        settings: Settings,
        *,
        stopping: asyncio.Event,
        any_serves: Callable[[], bool],
    ) -> None:
        self._number, self._settings = number, settings
        self._listener = channels.listening()
        self._board = SharedMemory.made(BOARD_BYTES)
        memory = self._board.bytes.view(np.float64)
        self.ledger = DeviceLedger(str(number), lambda: float(memory[0]))
        self.address = asyncio.get_running_loop().create_future()
        self.count = 0
        self._latest: _DeviceProcess | None = None
        self.place = Place(
            "device",
            number,
            self._start,
            stopping=stopping,
            any_serves=any_serves,
            ledger=self.ledger,
        )

    @property
    def why(self) -> str:
        """What the latest process has said of a failure."""
        return "" if self._latest is None else self._latest.why

    def close(self) -> None:
        """Give back what processes got."""
        self._listener.close()
        os.close(self._board.fd)

    async def _start(self, running: Running) -> ServingProcess:
        settings = self._settings
        job = DeviceJob(
            number=self._number,
            parent=os.getpid(),
            listener=self._listener.fileno(),
            board=self._board.fd,
            memory_bytes=settings.cuda_memory_bytes,
            cache_dir=settings.compile_cache,
            warm_up=settings.warm_up,
            log_format=settings.log_format,
            log_level=settings.log_level,
            find=FIND,
        )
        fds = (job.listener, job.board)
        self._latest = await _DeviceProcess.launch(_PROCESS, job.dump(), fds=fds)
        self._latest.found = self._found
        running.note_start(self._latest.pid)
        return self._latest

    def _found(self, device: str, count: int) -> None:
        if not self.address.done():
            self.count = count
            self.ledger.device = device
            name = channels.name_of(self._listener)
            self.address.set_result(Address(name, self._number, device))


class _DeviceProcess(ServingProcess):
    """The process of a device.

    found  called with the name of what it has found, and how many there are
    """

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.found: Callable[[str, int], None] | None = None

    def _means_serving(self, line: bytes) -> bool:
        said: dict[str, Any] = json.loads(line)
        self.why = str(said.get("why", ""))
        if "device" in said and self.found is not None:
            self.found(said["device"], said["count"])
        return "serves" in said
