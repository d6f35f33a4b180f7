"""What the backend asks of a device."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gradwire_server.backends.cuda.programs import Buffer, Kernel, Launch

Bytes = npt.NDArray[np.uint8]


class DeviceError(RuntimeError):
    """The device has refused what one call asked for; others go on."""


class DeviceLostError(DeviceError):
    """The device has failed; nothing more can be computed on it in this process."""


class Memory(Protocol):
    """Memory of a device, given back once nothing refers to it."""

    @property
    def address(self) -> int:
        """Where it begins, a multiple of 16."""
        ...

    @property
    def nbytes(self) -> int:
        """Its size."""
        ...


class Mark(Protocol):
    """A place in a stream."""

    def wait(self) -> None:
        """Wait until all is done that the stream was given before."""
        ...


class Stream(Protocol):
    """What is done in order, some time before synchronize() returns. For one thread at a time.

    Each method raises DeviceLostError where the device has failed, be it at an earlier task, and
    DeviceError where it refuses this one.
    """

    def up(self, address: int, source: Bytes) -> None:
        """Copy pinned memory to the device; it must stay as it is until that is done."""
        ...

    def down(self, target: Bytes, address: int) -> None:
        """Copy from the device to pinned memory."""
        ...

    def mark(self) -> Mark:
        """Return a mark behind all that the stream was given so far."""
        ...

    def launch(self, launch: Launch, addresses: Mapping[Buffer, int]) -> None:
        """Run a kernel that was loaded; addresses has every buffer among its arguments."""
        ...

    def synchronize(self) -> None:
        """Wait until all is done."""
        ...


class Device(Protocol):
    """A device; threads may share it, but for its streams.

    name             as people know it
    architecture     compute capability: 90 is 9.0
    multiprocessors  that it has
    """

    @property
    def name(self) -> str: ...  # noqa: D102 - above

    @property
    def architecture(self) -> int: ...  # noqa: D102

    @property
    def multiprocessors(self) -> int: ...  # noqa: D102

    def load(self, kernels: Collection[Kernel]) -> None:
        """Compile kernels, or find what was compiled before, and make them ready."""
        ...

    def allocate(self, nbytes: int) -> Memory:
        """Return memory of the device; MemoryError where there is not so much."""
        ...

    def pinned(self, nbytes: int) -> Bytes:
        """Return memory of the host that streams copy from and to; MemoryError likewise."""
        ...

    def register(self, memory: Bytes) -> None:
        """Make memory of the host pinned for as long as the array exists.

        Raises DeviceError or MemoryError where that cannot be.
        """
        ...

    def stream(self) -> Stream:
        """Return a new stream."""
        ...


Array = npt.NDArray[Any]
