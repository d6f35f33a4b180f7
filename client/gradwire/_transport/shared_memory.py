"""Shared memory with a server on this machine.

The module makes segments, registers them and pools them; docs/local.md describes the protocol. A
segment serves one input or one result at a time. It returns to the pool when nothing refers to its
memory any more, and is dropped if a server may still write to it.
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
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from gradwire import tensors, v1
from gradwire._core.evaluation import Evaluation
from gradwire._core.options import Options
from gradwire._wire.framing import parsed
from gradwire._wire.requests import ArrayRequest
from gradwire.tensors import Array, Sizes

_log = logging.getLogger("gradwire")

# linux/fcntl.h; Python names them from 3.13 on.
_F_ADD_SEALS = 1033
_SEALS = 0x0001 | 0x0002 | 0x0004  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW
_ALIGNMENT = 64
_LENGTH = struct.Struct("<Q")
_ANSWER_BYTES = 1 << 12
_ANSWER_S = 10.0
# A segment is at most an eighth larger than requested, so that few sizes serve many arrays.
_STEPS = 8
# Unused segments that the pool keeps.
_MOST_UNUSED = 16
# A result is copied to its caller's array in pieces, since cancelling waits for one.
_PIECE_BYTES = 1 << 20


class SegmentRefusedError(Exception):
    """The server does not take the segment, or its socket has gone."""


# Number of forks of this process so far. A child still sees the memory of its parent's arrays.
_forks = 0


def _note_fork() -> None:
    global _forks  # noqa: PLW0603 - one for the process
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_note_fork)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PooledSegment:
    """Memory mapped by the server as long as this object is referenced.

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
        # Segments that hold arrays, by the address of their memory.
        self._arrays: dict[int, PooledSegment] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_ANSWER_S)
        self.closed = False
        try:
            # In a folder that everybody may write to, another user could listen there.
            beside = path.removesuffix(".memory")
            if Path(path).stat().st_uid != Path(beside).stat().st_uid:
                raise PermissionError("its owner is not that of the socket beside it")
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise SegmentRefusedError(f"{path}: {error}") from error

    def take(self, nbytes: int, wait_s: float = _ANSWER_S) -> PooledSegment:
        """Return a segment of at least so many bytes.

        wait_s  most seconds to wait for the server, and for threads that wait for it

        Raises SegmentRefusedError if there is none.
        """
        wait_s = min(max(wait_s, 1e-3), _ANSWER_S)
        if not self._lock.acquire(timeout=wait_s):
            raise SegmentRefusedError("another thread waits for the server")
        try:
            size = segment_bytes(nbytes)
            with contextlib.suppress(OSError):  # it is closed
                self._socket.settimeout(wait_s)
            while self._returned:
                self._unused.append(self._returned.popleft())
            del self._unused[:-_MOST_UNUSED]
            fitting = next((one for one in self._unused if one.nbytes == size), None)
            if fitting is not None:
                self._unused.remove(fitting)
                return fitting
            try:
                return self._register(size)
            except SegmentRefusedError:
                if not self._unused or self.closed:
                    raise
            # The server counts unused segments too; it is told to forget them.
            self._unused.clear()
            return self._register(size)
        finally:
            self._lock.release()

    def memory(self, segment: PooledSegment, nbytes: int) -> Array:
        """Return the first bytes of a segment.

        The segment returns to the pool with the last view of them.
        """
        root = np.frombuffer(segment.mapping, np.uint8)
        address = root.ctypes.data
        weakref.finalize(root, self._give_back, segment, address, _forks).atexit = False
        self._arrays[address] = segment
        return root[:nbytes]

    def empty(self, shape: Sizes, dtype: DTypeLike) -> Array:
        """Return an array in a new segment."""
        like = np.broadcast_to(np.empty((), dtype), shape)
        return self.memory(self.take(like.nbytes), like.nbytes).view(like.dtype).reshape(like.shape)

    def find(self, array: Array) -> v1.SharedRange | None:
        """Return the range of a contiguous array in memory() of this pool.

        None for an array elsewhere.
        """
        first = array.ctypes.data
        for address, segment in self._arrays.copy().items():
            offset = first - address
            if 0 <= offset <= segment.nbytes - array.nbytes and not offset % _ALIGNMENT:
                return v1.SharedRange(handle=segment.handle, offset=offset, length=array.nbytes)
        return None

    def keep(self, segment: PooledSegment) -> None:
        """Take back a segment without arrays."""
        if not self.closed:
            self._returned.append(segment)

    def close(self) -> None:
        """Close the connection; the server forgets all segments."""
        self._hang_up()
        with self._lock:
            self._unused.clear()
            self._returned.clear()

    def _hang_up(self) -> None:
        self.closed = True
        if os.getpid() == self._process:
            # Forked processes have the socket too, and another thread may wait for an answer.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _give_back(self, segment: PooledSegment, address: int, forks: int) -> None:
        # A forked process has a copy of the pool, but does not use the connection.
        if os.getpid() == self._process:
            self._arrays.pop(address, None)
            if forks == _forks:  # otherwise a child may read it
                self.keep(segment)

    def _register(self, size: int) -> PooledSegment:
        try:
            file = os.memfd_create("gradwire", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                os.ftruncate(file, size)
                fcntl.fcntl(file, _F_ADD_SEALS, _SEALS)
                # Its pages exist before the server touches them, so they count to this process.
                mapping = mmap.mmap(file, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
                answer = self._ask(size, file)
            finally:
                os.close(file)
        except OSError as error:
            raise SegmentRefusedError(str(error)) from error
        if answer[:1] != b"H":
            raise SegmentRefusedError(answer[1:].decode(errors="replace"))
        segment = PooledSegment(answer[1:].decode(), mapping, size)
        weakref.finalize(segment, self.forget, segment.handle).atexit = False
        return segment

    def _ask(self, size: int, file: int) -> bytes:
        """Return the answer to a file; hang up without an answer.

        A late answer would be taken for the answer to the next file.
        """
        try:
            socket.send_fds(self._socket, [b"R" + _LENGTH.pack(size)], [file])
            answer = self._socket.recv(_ANSWER_BYTES)
        except BaseException:
            self._hang_up()
            raise
        if not answer:
            self._hang_up()
            raise SegmentRefusedError("the server closed the connection")
        return answer

    def forget(self, handle: str) -> None:
        """Have the server forget a segment.

        Its memory lasts as long as its arrays.
        """
        # No lock: there is no answer to wait for, and a garbage collection may call this.
        if os.getpid() == self._process:
            with contextlib.suppress(OSError):
                self._socket.send(b"F" + handle.encode(), socket.MSG_DONTWAIT)


def segment_bytes(nbytes: int) -> int:
    """Return the size of a segment for so many bytes.

    It is whole pages, and at most an eighth more.
    """
    step = max(mmap.PAGESIZE, (1 << max(0, nbytes - 1).bit_length()) // (2 * _STEPS))
    return max(1, -(-nbytes // step)) * step


class SharedTry:
    """One try of EvaluateShared, with an output segment of its own.

    message  the encoded request

    Raises SegmentRefusedError if there is no segment.
    """

    def __init__(
        self, pool: SegmentPool, request: ArrayRequest, output_bytes: int, wait_s: float
    ) -> None:
        self._writing, self._is_over, self._is_late = threading.Lock(), False, True
        self._pool = pool
        self._request = request
        self._output_bytes = output_bytes
        self._input: PooledSegment | None = None
        template = request.template
        view = tensors.WireView(request.source, template.input)
        source = None if view.in_place is None else pool.find(view.in_place)
        if source is None:
            self._input = pool.take(view.nbytes, wait_s)
            view.copy_to(np.frombuffer(self._input.mapping, np.uint8)[: view.nbytes])
            source = v1.SharedRange(handle=self._input.handle, length=view.nbytes)
        self._output = pool.take(output_bytes, wait_s)
        self.message = v1.EvaluateSharedRequest(
            evaluation=v1.EvaluateRequest(
                request_id=request.request_id,
                operator=template.operator,
                input=template.input,
                output=template.output,
            ),
            input=source,
            output=v1.SharedRange(handle=self._output.handle, length=output_bytes),
        ).SerializeToString()

    def result(self, reply: bytes) -> Array:
        """Return the result, in its segment or copied to the caller's array."""
        self._is_late = False
        output = parsed(v1.EvaluateSharedResponse, reply).output
        self._request.template.check_result(output)
        self._free_input()
        memory, out = self._pool.memory(self._output, self._output_bytes), self._request.out
        if out is None:
            return tensors.empty_result(output, memory)
        view = tensors.WireView(out, output)
        for start in range(0, view.nbytes, _PIECE_BYTES):
            with self._writing:
                if self._is_over:
                    break
                view.write(start, memory[start : start + _PIECE_BYTES].data)
        return out

    def close(self) -> None:
        """Write no more to the caller's array; drop segments without an answer.

        The server may still write to them.
        """
        # Set without the lock, which a copying thread takes again before others get it.
        self._is_over = True
        with self._writing:
            pass
        if self._is_late:
            self._pool.forget(self._output.handle)
            self._free_input()

    def _free_input(self) -> None:
        if self._input is not None:
            self._pool.keep(self._input)


class SharedMemory:
    """Shared memory of a client whose target is one unix socket.

    path  of the server's socket for segments; empty where it takes none
    """

    def __init__(self, options: Options) -> None:
        target = options.target[0] if len(options.target) == 1 else ""
        wanted = options.shared_memory and target.startswith("unix:")
        # A server in a container may know the same socket by another path.
        path = target.removeprefix("unix:").removeprefix("//")
        can = hasattr(os, "memfd_create") and sys.byteorder == "little"
        self.path = f"{path}.memory" if wanted and can else ""
        self._lock = threading.Lock()
        self._pool: SegmentPool | None = None

    def pool(self) -> SegmentPool | None:
        """Return the pool of segments; None if the server takes none."""
        with self._lock:
            if self._pool is not None and self._pool.closed:
                self._pool = None
            if self._pool is None and self.path:
                try:
                    self._pool = SegmentPool(self.path)
                except SegmentRefusedError as error:
                    _log.debug("no shared memory: %s", error)
            return self._pool

    def empty(self, shape: Sizes, dtype: DTypeLike) -> Array:
        """Return an array, in a segment where the server takes any."""
        pool = self.pool()
        if pool is not None:
            with contextlib.suppress(SegmentRefusedError):
                return pool.empty(shape, dtype)
        return np.empty(shape, dtype)

    def begin(self, evaluation: Evaluation) -> SharedTry | None:
        """Begin a try of an evaluation; None if it needs messages."""
        pool = self.pool()
        if pool is None:
            return None
        request = evaluation.begin_shared()
        output_bytes = request.template.output_bytes
        if not output_bytes or not request.template.input_bytes:
            return None
        try:
            return SharedTry(pool, request, output_bytes, evaluation.left_s)
        except (SegmentRefusedError, MemoryError) as error:
            _log.debug("no shared memory: %s", error)
            return None

    def renew(self) -> None:
        """Use no earlier segment: its worker may be gone."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def close(self) -> None:
        """Close the connection for segments."""
        self.path = ""
        self.renew()
