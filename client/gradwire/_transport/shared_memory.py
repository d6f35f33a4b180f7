"""Shared memory with a server on this machine: segments, their registration, a pool of them.

docs/local.md describes what the two say to each other. A segment serves one input or one result at
a time. It comes back to the pool when nothing refers to its memory any more, and is dropped if a
server may still write to it.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import struct
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

# linux/fcntl.h; Python names them from 3.13 on.
_F_ADD_SEALS: Final = 1033
_SEALS: Final = 0x0001 | 0x0002 | 0x0004  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW
_LENGTH: Final = struct.Struct("<Q")
_ANSWER_BYTES: Final = 1 << 12
_ANSWER_S: Final = 10.0
# A segment has at most an eighth more than was asked for, so that few sizes serve many arrays.
_STEPS: Final = 8
# Unused segments that the pool keeps.
_MOST_UNUSED: Final = 16


class SegmentRefusedError(Exception):
    """The server takes no such segment, or its socket has gone."""


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Memory that the server has mapped.

    handle  the server's name for it
    """

    handle: str
    mapping: mmap.mmap
    nbytes: int


class SegmentPool:
    """Segments registered through one connection to a server; safe for threads.

    path  of the server's socket for them

    Raises SegmentRefusedError if nothing listens there.
    """

    def __init__(self, path: str) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._unused: list[Segment] = []
        # Appended to without the lock: a garbage collection may run while it is held.
        self._returned: deque[Segment] = deque()
        # By the first address of its memory; of arrays that empty() returned.
        self._arrays: dict[int, Segment] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_ANSWER_S)
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise SegmentRefusedError(f"{path}: {error}") from error

    def take(self, nbytes: int) -> Segment:
        """Return a segment of at least so many bytes; raise SegmentRefusedError without one."""
        size = segment_bytes(nbytes)
        with self._lock:
            while self._returned:
                self._unused.append(self._returned.popleft())
            for index, one in enumerate(self._unused):
                if one.nbytes == size:
                    return self._unused.pop(index)
            while len(self._unused) > _MOST_UNUSED:
                self._forget(self._unused.pop(0))
            try:
                return self._register(size)
            except SegmentRefusedError:
                if not self._unused:
                    raise
            # The server counts unused segments too.
            while self._unused:
                self._forget(self._unused.pop())
            return self._register(size)

    def array(self, segment: Segment, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """Return an array in a segment, which comes back to the pool with the last view of it."""
        root = np.frombuffer(segment.mapping, np.uint8)
        weakref.finalize(root, self._give_back, segment, root.ctypes.data).atexit = False
        count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        return root[:count].view(dtype).reshape(shape)

    def empty(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """Return an array in a segment of its own, which find() knows."""
        segment = self.take(int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize)
        array = self.array(segment, shape, dtype)
        with self._lock:
            self._arrays[array.ctypes.data] = segment
        return array

    def find(self, address: int, nbytes: int) -> Segment | None:
        """Return the segment of an array of empty() that starts at an address."""
        segment = self._arrays.get(address)
        return segment if segment is not None and nbytes <= segment.nbytes else None

    def drop(self, segment: Segment) -> None:
        """Forget a segment, whose memory lasts as long as arrays in it."""
        with self._lock:
            self._forget(segment)

    def keep(self, segment: Segment) -> None:
        """Take a segment back that no array lies in."""
        self._returned.append(segment)

    def close(self) -> None:
        """Close the connection; the server forgets all segments."""
        self._socket.close()

    def _give_back(self, segment: Segment, address: int) -> None:
        # A forked process has a copy of the pool, and no part in the connection.
        if os.getpid() == self._process:
            self._arrays.pop(address, None)
            self.keep(segment)

    def _register(self, size: int) -> Segment:
        try:
            file = os.memfd_create("gradwire", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                os.ftruncate(file, size)
                fcntl.fcntl(file, _F_ADD_SEALS, _SEALS)
                # Its pages are there before the server touches them: they are this process's.
                mapping = mmap.mmap(file, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
                socket.send_fds(self._socket, [b"R" + _LENGTH.pack(size)], [file])
            finally:
                os.close(file)
            answer = self._socket.recv(_ANSWER_BYTES)
        except OSError as error:
            raise SegmentRefusedError(str(error)) from error
        if answer[:1] != b"H":
            raise SegmentRefusedError(answer[1:].decode(errors="replace") or "hung up")
        return Segment(answer[1:].decode(), mapping, size)

    def _forget(self, segment: Segment) -> None:
        with contextlib.suppress(OSError):
            self._socket.send(b"F" + segment.handle.encode())


def segment_bytes(nbytes: int) -> int:
    """Return the size of a segment for so many bytes: whole pages, at most an eighth more."""
    step = max(mmap.PAGESIZE, (1 << max(0, nbytes - 1).bit_length()) // (2 * _STEPS))
    return max(1, -(-nbytes // step)) * step
