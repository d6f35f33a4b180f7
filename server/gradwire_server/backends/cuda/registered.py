"""Memory of the host that the device copies from and to without a stop in pinned memory."""

from __future__ import annotations

import weakref

from gradwire_server.backends.cuda.device import Array, Bytes


class Registered:
    """Memory that is pinned while its array exists. Threads may share it."""

    def __init__(self) -> None:
        # Replaced, never changed: readers need no lock.
        self._known: tuple[weakref.ref[Bytes], ...] = ()

    def add(self, memory: Bytes) -> None:
        """Count memory as pinned from now on."""
        self._known = (*(one for one in self._known if one() is not None), weakref.ref(memory))

    def owner_of(self, array: Array) -> Bytes | None:
        """Return the memory that an array lies in, all of it and in row-major order; None if not.

        It stays pinned while it is referred to.
        """
        if not self._known or not array.flags.c_contiguous:
            return None
        address = _address(array)
        for one in self._known:
            memory = one()
            if memory is None:
                continue
            first = _address(memory)
            if first <= address and address + array.nbytes <= first + memory.nbytes:
                return memory
        return None


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
