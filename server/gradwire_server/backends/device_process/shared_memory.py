"""Memory of two processes, without a name: it goes when the last one that has it goes."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Generator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from gradwire_server.backends.device_process.channels import Message

Array = npt.NDArray[Any]

# Lines of caches, here and on devices.
_ALIGNMENT = 128
_TYPES = {
    np.dtype(one).name: np.dtype(one)
    for one in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.int64)
}


class SharedMemory:
    """Memory that another process may have as well.

    fd     by which it gets it; closed by whoever made this
    bytes  what is in it, uint8[nbytes]
    """

    def __init__(self, fd: int, nbytes: int) -> None:
        """Map what a file descriptor stands for."""
        self.fd = fd
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(mmap.mmap(fd, nbytes), np.uint8)

    @classmethod
    def made(cls, nbytes: int) -> SharedMemory:
        """Return new memory; MemoryError where there is not so much."""
        fd = os.memfd_create("gradwire-device")
        try:
            # All of it now: without memory, a process would be killed where it writes first.
            os.posix_fallocate(fd, 0, max(1, nbytes))
            return cls(fd, nbytes)
        except OSError as error:
            os.close(fd)
            raise MemoryError(f"{nbytes} bytes to share with a device: {error}") from error

    @classmethod
    @contextlib.contextmanager
    def temporary(cls, nbytes: int) -> Generator[SharedMemory]:
        """Give new memory and close it; it stays until no array refers to it."""
        memory = cls.made(nbytes)
        try:
            yield memory
        finally:
            os.close(memory.fd)

    def view(self, described: Message) -> Array:
        """Return the array of a description; ValueError where it does not lie within."""
        shape, dtype = tuple(described["shape"]), _TYPES[described["dtype"]]
        first = int(described["at"])
        return (
            self.bytes[first : first + dtype.itemsize * int(np.prod(shape, dtype=np.int64))]
            .view(dtype)
            .reshape(shape)
        )


def described(arrays: Sequence[Array]) -> tuple[list[Message], int]:
    """Return descriptions of arrays one after the other, and the bytes that takes.

    Their types are float16, bfloat16, float32, float64 and int64.
    """
    found, size = list[Message](), 0
    for one in arrays:
        found.append({"at": size, "dtype": one.dtype.name, "shape": one.shape})
        size += -(-one.nbytes // _ALIGNMENT) * _ALIGNMENT
    return found, size
