"""Streams with rings of pinned buffers, and their queue of calls."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition, Lock

import numpy as np

from gradwire_server.backends.cuda.device import Array, Bytes, Device, DeviceBlock
from gradwire_server.backends.cuda.programs import Buffer

# Buffers of a ring: input and result of one part, and of the next.
RING = 4
# A shorter copy takes less time than a sleeping thread takes to wake: 30 us at 35 GB/s.
_SPIN_BYTES = 1 << 20

# Device memory of a call.
Memory = dict[Buffer, DeviceBlock]


@dataclass(slots=True)
class _PinnedBuffer:
    """A pinned buffer and its last copy.

    wait    waits for that copy; None after complete()
    target  destination on the host, if the copy came from the device
    """

    memory: Bytes
    wait: Callable[[], None] | None = None
    target: Bytes | None = None

    def complete(self) -> None:
        """Wait for the last copy; write its result to the target."""
        if self.wait is not None:
            self.wait()
        if self.target is not None:
            self.target[:] = self.memory[: self.target.nbytes]
        self.wait = self.target = None


class StagedStream:
    """Stream with copies between host and device through pinned buffers.

    The buffers form a ring. While the device copies from one buffer, or to it, the thread fills or
    empties another. The buffers are equal, and each is used again only after its last copy has
    completed.
    """

    def __init__(self, device: Device, buffer_bytes: int) -> None:
        self.stream = device.stream()
        self._ring = deque(_PinnedBuffer(device.pinned(buffer_bytes)) for _ in range(RING))

    def up(self, address: int, array: Array) -> None:
        """Copy an array to the device; the array may change afterwards."""
        for place, piece, pinned in self._pieces(address, np.ascontiguousarray(array)):
            memory = pinned.memory[: piece.nbytes]
            memory[:] = piece
            self.stream.up(place, memory)
            pinned.wait = self._mark(piece)

    def down(self, array: Array, address: int) -> None:
        """Begin to copy to a contiguous array; drain() completes that."""
        for place, piece, pinned in self._pieces(address, array):
            self.stream.down(pinned.memory[: piece.nbytes], place)
            pinned.wait, pinned.target = self._mark(piece), piece

    def drain(self) -> None:
        """Wait until all copies have completed and their arrays are written."""
        for pinned in self._ring:
            pinned.complete()

    def abandon(self) -> None:
        """Wait until the device has left the stream.

        Results are lost.
        """
        for pinned in self._ring:
            pinned.wait = pinned.target = None
        self.stream.mark(blocking=True)()

    def _pieces(self, address: int, array: Array) -> Iterator[tuple[int, Bytes, _PinnedBuffer]]:
        """Yield addresses, pieces of an array, and free buffers."""
        whole: Bytes = array.reshape(-1).view(np.uint8)
        most = self._ring[0].memory.nbytes
        for first in range(0, whole.nbytes, most):
            pinned = self._ring[0]
            pinned.complete()
            self._ring.rotate(-1)
            yield address + first, whole[first : first + most], pinned

    def _mark(self, piece: Bytes) -> Callable[[], None]:
        return self.stream.mark(blocking=piece.nbytes >= _SPIN_BYTES)


class CallQueue:
    """Queue of calls for streams, in order of arrival.

    A stream serves one call. Thread-safe. The first call in the queue takes a stream and all its
    memory at once, and holds nothing while it waits. So calls that hold memory can complete, and
    waiting calls cannot deadlock.

    line  a condition of each call that waits for a stream or for memory
    """

    def __init__(self, streams: Sequence[StagedStream]) -> None:
        self._streams, self._idle = streams, list(streams)
        self._lock = Lock()
        # One condition for all would wake every waiting thread whenever a call ends.
        self.line = deque[Condition]()

    @contextmanager
    def turn(
        self, take: Callable[[], Memory], *, wait_s: float
    ) -> Generator[tuple[StagedStream, Memory]]:
        """Lend a stream and the memory that `take` returns.

        Both are released afterwards.

        take    allocates everything or raises MemoryError; never called concurrently. It is retried
                after another call ends; its MemoryError is final if no other call computes
        wait_s  seconds from now after which a MemoryError is final too
        """
        stream, taken = self._take(take, time.monotonic() + wait_s)
        try:
            yield stream, taken
        finally:
            taken.clear()
            with self._lock:
                self._idle.append(stream)
                self._wake_first()

    def _take(self, take: Callable[[], Memory], until: float) -> tuple[StagedStream, Memory]:
        own = Condition(self._lock)
        with self._lock:
            self.line.append(own)
            try:
                own.wait_for(lambda: self.line[0] is own and self._idle)
                while True:
                    try:
                        taken = take()
                        return self._idle.pop(), taken
                    except MemoryError:
                        if len(self._idle) == len(self._streams) or time.monotonic() >= until:
                            raise
                    # Not inside `except`, whose traceback may refer to memory.
                    own.wait(until - time.monotonic())
            finally:
                self.line.remove(own)
                self._wake_first()

    def _wake_first(self) -> None:
        if self.line:
            self.line[0].notify()
