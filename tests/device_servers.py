"""The server of a device in a thread of this process, and what connects to it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial

import numpy as np

from gradwire_server.backends.cuda.backend import Cuda
from gradwire_server.backends.device_process import channels
from gradwire_server.backends.device_process.backend import DeviceProcesses
from gradwire_server.backends.device_process.jobs import Address
from gradwire_server.backends.device_process.server import DeviceServer


class Served:
    """A backend, as a process of its own would serve it.

    memory  bytes of the device's memory that it has told
    lost    how often it has told that the device is lost
    """

    def __init__(self, backend: Cuda) -> None:
        self.lost = 0
        self.listener = channels.listening()
        self._board = np.zeros(1)
        self.server = DeviceServer(backend, memory=self._board, lost=self._note_lost)
        self._told, self._tells = socket.socketpair()
        serve = partial(self.server.serve, self.listener, until=self._told)
        self._thread = threading.Thread(target=serve, daemon=True)
        self._thread.start()

    @property
    def memory(self) -> float:
        """Bytes of the device's memory that it has told."""
        return float(self._board[0])

    @property
    def name(self) -> str:
        """Name of its socket."""
        return channels.name_of(self.listener)

    def stop(self) -> None:
        """Take no more connections."""
        self._tells.send(b"x")
        self._thread.join()
        for one in (self.listener, self._told, self._tells):
            one.close()

    def _note_lost(self) -> None:
        self.lost += 1


@contextmanager
def served(backend: Cuda) -> Generator[Served]:
    """Serve a backend."""
    made = Served(backend)
    try:
        yield made
    finally:
        made.stop()


@contextmanager
def connected(*those: Served, lane_bytes: int = 1 << 20) -> Generator[DeviceProcesses]:
    """Give a backend of these devices, which are there."""
    addresses = [Address(one.name, number, "simulated") for number, one in enumerate(those)]
    backend = DeviceProcesses(addresses, lane_bytes=lane_bytes, retry_after_s=0.25)
    try:
        backend.warm_up()
        yield backend
    finally:
        backend.close()
