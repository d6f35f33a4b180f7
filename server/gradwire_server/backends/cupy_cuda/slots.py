"""A stream with its memory, which one call uses at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradwire_server.backends.cuda.programs import Buffer, Program, packed
from gradwire_server.backends.cupy_cuda.device import Array, Bytes, Device, Memory
from gradwire_server.backends.cupy_cuda.memory import BoundedMemory, size_class

# Pinned memory of a slot. What is larger goes through it in parts.
_STAGED_BYTES = 8 << 20
# Of what lies in one allocation: a line of the device's caches.
_ALIGNMENT = 128


class Slot:
    """A stream, a pinned buffer of fixed size and a device buffer that grows.

    Nothing is pending when a method returns.
    """

    def __init__(self, device: Device, memory: BoundedMemory, *, staged_bytes: int = 0) -> None:
        self._memory = memory
        self._stream = device.stream()
        self._staging = device.pinned(staged_bytes or _STAGED_BYTES)
        self._staged = 0
        self._buffer: Memory | None = None

    def release(self) -> None:
        """Give the device buffer back."""
        self._buffer = None

    def settle(self) -> None:
        """Wait for what is pending; then pinned memory is free again."""
        self._staged = 0
        self._stream.synchronize()

    def hold(self, arrays: Sequence[Array]) -> tuple[Memory, list[int]]:
        """Copy arrays to memory of their own; return it and their addresses."""
        offsets, size = packed([one.nbytes for one in arrays], alignment=_ALIGNMENT)
        try:
            memory = self._memory.allocate(max(size, _ALIGNMENT))
        except MemoryError:
            self.release()
            memory = self._memory.allocate(max(size, _ALIGNMENT))
        addresses = [memory.address + offset for offset in offsets]
        for address, array in zip(addresses, arrays, strict=True):
            self._up(address, array)
        self.settle()
        return memory, addresses

    def compute(
        self,
        program: Program,
        x: Array,
        y: Array,
        *,
        tables: Sequence[int] | None = None,
        carried: bool = False,
    ) -> None:
        """Run a program.

        x        what it reads, any strides
        y        what it writes, any strides
        tables   addresses of its tables; None to copy them too
        carried  whether it reads y as well
        """
        own = program.tables if tables is None else ()
        sizes = [x.nbytes, y.nbytes, *program.scratch, *(one.nbytes for one in own)]
        offsets, size = packed(sizes, alignment=_ALIGNMENT)
        base = self._room(size)
        at_x, at_y, *rest = [base + offset for offset in offsets]
        scratch, copied = rest[: len(program.scratch)], rest[len(program.scratch) :]
        self._up(at_x, x)
        if carried:
            self._up(at_y, y)
        for address, table in zip(copied, own, strict=True):
            self._up(address, table)
        addresses = {Buffer("x"): at_x, Buffer("y"): at_y}
        addresses |= {Buffer("scratch", number): at for number, at in enumerate(scratch)}
        addresses |= {
            Buffer("table", number): at
            for number, at in enumerate(copied if tables is None else tables)
        }
        for launch in program.launches:
            self._stream.launch(launch, addresses)
        self._down(y, at_y)

    def _room(self, nbytes: int) -> int:
        """Return the address of a device buffer of at least so many bytes."""
        if self._buffer is None or self._buffer.nbytes < nbytes:
            self._buffer = None  # given back first: both may not fit
            self._buffer = self._memory.allocate(size_class(nbytes))
        return self._buffer.address

    def _up(self, address: int, array: Array) -> None:
        source, sent = _bytes(np.ascontiguousarray(array)), 0
        while sent < source.size:
            if self._staged == self._staging.size:
                self.settle()
            room = self._staging[self._staged :][: source.size - sent]
            room[:] = source[sent : sent + room.size]
            self._stream.up(address + sent, room)
            self._staged += room.size
            sent += room.size

    def _down(self, array: Array, address: int) -> None:
        whole = array if array.flags.c_contiguous else np.empty(array.shape, array.dtype)
        target = _bytes(whole)
        # The stream reads what is staged before it writes there.
        for first in range(0, target.size, self._staging.size):
            part = target[first : first + self._staging.size]
            self._stream.down(self._staging[: part.size], address + first)
            self.settle()
            part[:] = self._staging[: part.size]
        if whole is not array:
            array[...] = whole


def _bytes(array: Array) -> Bytes:
    return array.reshape(-1).view(np.uint8)
