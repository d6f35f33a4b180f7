"""Streams with rings of pinned buffers, and their queue of calls."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition, Lock
from typing import Generic, Protocol, TypeVar

import numpy as np

from gradwire_server.backends.cuda.device import Array, Bytes, Device

# Buffers of a ring: input and result of one part, and of the next.
RING = 4
# A shorter copy takes less time than a sleeping thread takes to wake: 30 us at 35 GB/s.
_SPIN_BYTES = 1 << 20


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

    def __init__(self, device: Device, *, buffer_bytes: int) -> None:
        self.stream = device.stream()
        self._ring = deque(_PinnedBuffer(device.pinned(buffer_bytes)) for _ in range(RING))
        self._most = buffer_bytes
        self._strided = list[tuple[Array, Array]]()

    def up(self, address: int, array: Array) -> None:
        """Copy an array to the device; the array may change afterwards."""
        source = _bytes(np.ascontiguousarray(array))
        for first in range(0, source.nbytes, self._most):
            piece = source[first : first + self._most]
            pinned = self._next()
            pinned.memory[: piece.nbytes] = piece
            self.stream.up(address + first, pinned.memory[: piece.nbytes])
            pinned.wait = self.stream.mark(blocking=piece.nbytes >= _SPIN_BYTES)

    def down(self, array: Array, address: int) -> None:
        """Begin to copy from the device to an array, which drain() completes."""
        whole = array if array.flags.c_contiguous else np.empty(array.shape, array.dtype)
        if whole is not array:
            self._strided.append((array, whole))
        target = _bytes(whole)
        for first in range(0, target.nbytes, self._most):
            piece = target[first : first + self._most]
            pinned = self._next()
            self.stream.down(pinned.memory[: piece.nbytes], address + first)
            pinned.wait = self.stream.mark(blocking=piece.nbytes >= _SPIN_BYTES)
            pinned.target = piece

    def drain(self) -> None:
        """Wait until all copies have completed and their arrays are written."""
        for _ in range(RING):
            self._next()
        for array, whole in self._strided:
            array[...] = whole
        self._strided.clear()

    def abandon(self) -> None:
        """Wait until the device has left the stream.

        Results are lost.
        """
        self._strided.clear()
        for pinned in self._ring:
            pinned.wait = pinned.target = None
        self.stream.mark(blocking=True)()

    def _next(self) -> _PinnedBuffer:
        """Return the buffer whose last copy is oldest, once that has completed."""
        pinned = self._ring[0]
        pinned.complete()
        self._ring.rotate(-1)
        return pinned


class Releases(Protocol):
    """Memory held by a call."""

    def release(self) -> None:
        """Release the memory."""
        ...


S = TypeVar("S")
T = TypeVar("T", bound=Releases)


class CallQueue(Generic[S]):
    """Queue of calls for streams, in order of arrival.

    A stream serves one call. Thread-safe. The first call in the queue takes a stream and all its
    memory at once, and holds nothing while it waits. So calls that hold memory can complete, and
    waiting calls cannot deadlock.
    """

    def __init__(self, streams: Iterable[S]) -> None:
        self._idle = list(streams)
        self._count = len(self._idle)
        self._lock = Lock()
        # One condition for all would wake every waiting thread whenever a call ends.
        self._line = deque[Condition]()

    @property
    def waiting(self) -> int:
        """Calls that wait for a stream or for memory."""
        return len(self._line)

    @contextmanager
    def turn(self, take: Callable[[], T], *, wait_s: float) -> Generator[tuple[S, T]]:
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
            taken.release()
            with self._lock:
                self._idle.append(stream)
                self._wake_first()

    def _take(self, take: Callable[[], T], until: float) -> tuple[S, T]:
        own = Condition(self._lock)
        with self._lock:
            self._line.append(own)
            try:
                own.wait_for(lambda: self._line[0] is own and self._idle)
                while True:
                    try:
                        taken = take()
                        return self._idle.pop(), taken
                    except MemoryError:
                        if len(self._idle) == self._count or time.monotonic() >= until:
                            raise
                    # Not inside `except`, whose traceback may refer to memory.
                    own.wait(until - time.monotonic())
            finally:
                self._line.remove(own)
                self._wake_first()

    def _wake_first(self) -> None:
        if self._line:
            self._line[0].notify()


def _bytes(array: Array) -> Bytes:
    return array.reshape(-1).view(np.uint8)
