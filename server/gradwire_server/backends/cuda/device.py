"""Protocol of the device that the CUDA backend computes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gradwire_server.backends.cuda.programs import Buffer, Launch

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]


class DeviceError(RuntimeError):
    """The device refused one call; others are not affected."""


class DeviceBlock(Protocol):
    """Block of device memory.

    It returns to the pool when nothing refers to it.
    """

    @property
    def ptr(self) -> int:
        """First address, a multiple of 16."""
        ...


class Stream(Protocol):
    """Queue of work that the device does in order.

    One thread at a time may use it. Each method raises DeviceLostError if the device has failed,
    also at earlier work, and DeviceError if it refuses this call.
    """

    def up(self, address: int, source: Bytes) -> None:
        """Copy pinned memory to the device.

        The memory must not change before the copy has completed.
        """
        ...

    def down(self, target: Bytes, address: int) -> None:
        """Copy from the device to pinned memory."""
        ...

    def launch(self, launch: Launch, addresses: Mapping[Buffer, int]) -> None:
        """Launch a loaded kernel; addresses has every buffer among its arguments."""
        ...

    def mark(self, *, blocking: bool) -> Callable[[], None]:
        """Return a function that waits until the work so far has completed.

        blocking  whether the waiting thread sleeps instead of spinning
        """
        ...


class Device(Protocol):
    """A device, shared by threads.

    name             its vendor's name for it
    multiprocessors  number of streaming multiprocessors
    cpu_work         multiplications below which a processor is faster, even for few bytes
    """

    name: str
    multiprocessors: int
    cpu_work: int

    @property
    def memory_taken(self) -> int:
        """Bytes of device memory that the pool has, in use or cached."""
        ...

    def load(self) -> None:
        """Compile all kernels, or find them in the cache, and load them."""
        ...

    def limit_memory(self, nbytes: int) -> None:
        """Set the most device memory that the pool may have."""
        ...

    def allocate(self, nbytes: int) -> DeviceBlock:
        """Return a block of the pool.

        Raises MemoryError at the limit or if the device is full.

        The pool may reuse a block as soon as nothing refers to it, even while the device works on
        it: the caller must keep a reference until the device is done.
        """
        ...

    def pinned(self, nbytes: int) -> Bytes:
        """Return page-locked host memory; raise MemoryError if there is none."""
        ...

    def stream(self) -> Stream:
        """Return a new stream."""
        ...
