"""Device memory within a limit."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from threading import RLock

from gradwire_server.backends.cuda.device import Device, Memory

_LEAST = 1 << 20
# Sizes between a power of two and the next: at most a quarter of a block is unused.
_STEPS_BITS = 2


class BoundedMemory:
    """Memory of a device, of which so much is taken at once at most. Threads may share it.

    limit    bytes
    release  gives back what is only kept for later, as far as that goes
    """

    def __init__(self, device: Device, *, limit: int, release: Callable[[], None]) -> None:
        self._device, self._release = device, release
        self._account = _Account(limit)

    @property
    def taken(self) -> int:
        """Bytes that are in use or kept."""
        return self._account.taken

    def allocate(self, nbytes: int) -> Memory:
        """Return memory; MemoryError where there is none after what was kept is given back."""
        try:
            return self.allocate_free(nbytes)
        except MemoryError:
            self._release()
        return self.allocate_free(nbytes)

    def allocate_free(self, nbytes: int) -> Memory:
        """Return memory; MemoryError where there is none without giving back what is kept."""
        self._account.take(nbytes)
        try:
            made = self._device.allocate(nbytes)
        except BaseException:
            self._account.give_back(nbytes)
            raise
        weakref.finalize(made, self._account.give_back, nbytes).atexit = False
        return made


class _Account:
    """Bytes that are taken; refers to nothing, for every block refers to it."""

    def __init__(self, limit: int) -> None:
        self._limit, self.taken = limit, 0
        # The same thread may come back: memory is given back whenever Python collects garbage.
        self._lock = RLock()

    def take(self, nbytes: int) -> None:
        with self._lock:
            if self.taken + nbytes > self._limit:
                raise MemoryError(
                    f"{nbytes} bytes of device memory beside {self.taken}; "
                    f"cuda_memory_bytes is {self._limit}"
                )
            self.taken += nbytes

    def give_back(self, nbytes: int) -> None:
        with self._lock:
            self.taken -= nbytes


def size_class(nbytes: int) -> int:
    """Return the bytes of the smallest block that holds so many."""
    unit = max(_LEAST, 1 << max(0, nbytes.bit_length() - 1 - _STEPS_BITS))
    return max(1, -(-nbytes // unit)) * unit
