"""Shared memory with a server on this machine: segments, their registration, a pool of them.

docs/local.md describes what the two say to each other. A segment serves one input or one result at
a time. It comes back to the pool when nothing refers to its memory any more, and is dropped if a
server may still write to it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import socket
import struct
import sys
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gradwire import tensors, v1
from gradwire._core.options import Options
from gradwire._wire.framing import parsed
from gradwire._wire.requests import ArrayRequest

_log = logging.getLogger("gradwire")

# linux/fcntl.h; Python names them from 3.13 on.
_F_ADD_SEALS: Final = 1033
_SEALS: Final = 0x0001 | 0x0002 | 0x0004  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW
_ALIGNMENT: Final = 64
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
class PooledSegment:
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
        self._unused: list[PooledSegment] = []
        # Appended to without the lock: a garbage collection may run while it is held.
        self._returned: deque[PooledSegment] = deque()
        # Those that arrays lie in, by the address of their memory.
        self._arrays: dict[int, PooledSegment] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_ANSWER_S)
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise SegmentRefusedError(f"{path}: {error}") from error

    def take(self, nbytes: int) -> PooledSegment:
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

    def memory(self, segment: PooledSegment, nbytes: int) -> NDArray[np.uint8]:
        """Return the first bytes of a segment, which comes back with the last view of them."""
        root = np.frombuffer(segment.mapping, np.uint8)
        address = root.ctypes.data
        weakref.finalize(root, self._give_back, segment, address).atexit = False
        self._arrays[address] = segment
        return root[:nbytes]

    def empty(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """Return an array in a segment of its own."""
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        return self.memory(self.take(nbytes), nbytes).view(dtype).reshape(shape)

    def find(self, array: NDArray[Any]) -> v1.SharedRange | None:
        """Return where a contiguous array lies, if it does in memory() of this pool."""
        first = array.ctypes.data
        for address, segment in self._arrays.copy().items():
            offset = first - address
            if 0 <= offset <= segment.nbytes - array.nbytes and not offset % _ALIGNMENT:
                return v1.SharedRange(handle=segment.handle, offset=offset, length=array.nbytes)
        return None

    def drop(self, segment: PooledSegment) -> None:
        """Forget a segment, whose memory lasts as long as arrays in it."""
        with self._lock:
            self._forget(segment)

    def keep(self, segment: PooledSegment) -> None:
        """Take a segment back that no array lies in."""
        self._returned.append(segment)

    def close(self) -> None:
        """Close the connection; the server forgets all segments."""
        self._socket.close()

    def _give_back(self, segment: PooledSegment, address: int) -> None:
        # A forked process has a copy of the pool, and no part in the connection.
        if os.getpid() == self._process:
            self._arrays.pop(address, None)
            self.keep(segment)

    def _register(self, size: int) -> PooledSegment:
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
        return PooledSegment(answer[1:].decode(), mapping, size)

    def _forget(self, segment: PooledSegment) -> None:
        with contextlib.suppress(OSError):
            self._socket.send(b"F" + segment.handle.encode())


def segment_bytes(nbytes: int) -> int:
    """Return the size of a segment for so many bytes: whole pages, at most an eighth more."""
    step = max(mmap.PAGESIZE, (1 << max(0, nbytes - 1).bit_length()) // (2 * _STEPS))
    return max(1, -(-nbytes // step)) * step


class SharedTry:
    """One try of EvaluateShared, with an output segment of its own.

    message  the encoded request

    Raises SegmentRefusedError if there is no segment.
    """

    def __init__(self, pool: SegmentPool, request: ArrayRequest, output_bytes: int) -> None:
        self._pool = pool
        self._request = request
        self._output_bytes = output_bytes
        self._input: PooledSegment | None = None
        view = tensors.WireView(request.source, request.input)
        in_place = view.in_place(0, view.nbytes)
        source = None if in_place is None else pool.find(in_place)
        if source is None:
            self._input = pool.take(view.nbytes)
            memory = np.frombuffer(self._input.mapping, np.uint8)[: view.nbytes]
            view.copy_to(memory)
            source = v1.SharedRange(handle=self._input.handle, length=view.nbytes)
        self._output = pool.take(output_bytes)
        self.message = v1.EvaluateSharedRequest(
            evaluation=v1.EvaluateRequest(
                request_id=request.request_id,
                operator=request.operator,
                input=request.input,
                output=request.output,
            ),
            input=source,
            output=v1.SharedRange(handle=self._output.handle, length=output_bytes),
        ).SerializeToString()

    def result(self, reply: bytes) -> NDArray[Any]:
        """Return the result, in its segment or copied to the caller's array."""
        output = parsed(v1.EvaluateSharedResponse, reply).output
        self._request.template.check_result(output)
        self._free_input()
        memory, out = self._pool.memory(self._output, self._output_bytes), self._request.out
        if out is None:
            return tensors.empty_result(output, memory)
        tensors.WireView(out, output).write(0, memory.data)
        return out

    def abandon(self) -> None:
        """Drop the output segment, since the server may still write to it."""
        self._pool.drop(self._output)
        self._free_input()

    def _free_input(self) -> None:
        if self._input is not None:
            self._pool.keep(self._input)


class SharedMemory:
    """What a client shares with its server, if its target is one unix socket."""

    def __init__(self, options: Options) -> None:
        target = options.target[0] if len(options.target) == 1 else ""
        wanted = options.shared_memory and target.startswith("unix:")
        # A server in a container may know the same socket by another path.
        path = target.removeprefix("unix:").removeprefix("//")
        can = hasattr(os, "memfd_create") and sys.byteorder == "little"
        self._path = f"{path}.memory" if wanted and can else ""
        self._lock = threading.Lock()
        self._pool: SegmentPool | None = None

    @property
    def possible(self) -> bool:
        """Whether the server may take segments."""
        return bool(self._path)

    def pool(self) -> SegmentPool | None:
        """Return the segments; None if the server takes none."""
        with self._lock:
            if self._pool is None and self._path:
                try:
                    self._pool = SegmentPool(self._path)
                except SegmentRefusedError as error:
                    _log.debug("no shared memory: %s", error)
            return self._pool

    def begin(self, request: ArrayRequest) -> SharedTry | None:
        """Begin a try of an evaluation; None if it has to go by messages."""
        pool, output_bytes = self.pool(), request.output_bytes
        if pool is None or not output_bytes or not request.input_bytes:
            return None
        try:
            return SharedTry(pool, request, output_bytes)
        except (SegmentRefusedError, MemoryError) as error:
            _log.debug("no shared memory: %s", error)
            self.renew()
            return None

    def renew(self) -> None:
        """Use no segment of before: their worker may be gone."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def close(self) -> None:
        """Close the connection for segments."""
        self._path = ""
        self.renew()
