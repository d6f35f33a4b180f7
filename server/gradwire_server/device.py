"""The process that has one device; a server starts it, and nobody else."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import threading
from functools import partial
from importlib import import_module
from types import FrameType
from typing import Protocol

import numpy as np

from gradwire_server import logs
from gradwire_server.backends.cuda.backend import Cuda
from gradwire_server.backends.cuda.cupy_device import CupyDevice
from gradwire_server.backends.cuda.device import Device
from gradwire_server.backends.device_process.jobs import BOARD_BYTES, DeviceJob
from gradwire_server.backends.device_process.server import DeviceServer
from gradwire_server.backends.device_process.shared_memory import SharedMemory

# prctl(2): the signal that this process gets when its parent ends.
_PR_SET_PDEATHSIG = 1
# Its exit status once the device is lost.
_LOST = 3


class Find(Protocol):
    """Opens a device."""

    def __call__(self, number: int, *, cache_dir: str) -> tuple[Device, int]:
        """Return a device, and how many there are; ImportError that says what is missing."""
        ...


def find(number: int, *, cache_dir: str) -> tuple[Device, int]:
    """Return the current device."""
    del number
    return CupyDevice(cache_dir=cache_dir), 1


def main() -> None:
    """Serve a device as the job on standard input says, at most as long as the parent lives.

    What it finds, and that it serves, it says in lines of JSON on standard output.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    told = sys.stdin.buffer.readline()
    job = DeviceJob.load(told) if told else None
    if job is None or os.getppid() != job.parent:
        sys.exit("gradwire-server: the process that watches the devices has ended")
    logs.configure(job.log_format, job.log_level, device=job.number)
    try:
        backend = _opened(job)
    except (ImportError, MemoryError, RuntimeError, OSError) as error:
        _say(why=" ".join(str(error).split()))  # CuPy may say it in many lines
        sys.exit(1)
    _serve(job, backend)


def _opened(job: DeviceJob) -> Cuda:
    """Find the device and compile what it needs."""
    module, _, name = job.find.partition(":")
    find: Find = getattr(import_module(module), name)
    device, count = find(job.number, cache_dir=job.cache_dir)
    backend = Cuda(device, memory_bytes=job.memory_bytes)
    _say(device=device.name, count=count)
    if job.warm_up:
        backend.warm_up()
    return backend


def _serve(job: DeviceJob, backend: Cuda) -> None:
    memory = SharedMemory(job.board, BOARD_BYTES).bytes.view(np.float64)
    memory[0] = backend.memory_taken
    server = DeviceServer(backend, memory=memory, lost=lambda: os._exit(_LOST))
    listener = socket.socket(fileno=job.listener)
    told, tells = socket.socketpair()
    tells.settimeout(0)
    signal.set_wakeup_fd(tells.fileno())
    for number in (signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, _wake)
    _say(serves=True)
    server.serve(listener, until=told)
    signal.set_wakeup_fd(-1)
    if told.recv(1) == bytes([signal.SIGUSR2]):
        # Another process takes those who come from now on.
        listener.close()
        server.leave()
    else:
        # Who stops all processes at once lets workers finish their calls.
        serving = partial(server.serve, listener, until=told)
        threading.Thread(target=serving, daemon=True).start()
        server.wait_until_unused()
    # Threads and what they hold go with the process.
    os._exit(0)


def _wake(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the number has been written where it is read."""


def _say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)  # noqa: T201 - its parent reads it


if __name__ == "__main__":
    main()
