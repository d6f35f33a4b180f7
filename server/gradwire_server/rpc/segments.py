"""Shared memory of local clients: socket, checks and handles.

A client sends memory files (memfd) through a unix socket, one with each packet, and gets a handle
for each. A file must be sealed against changing its size: otherwise its owner could shrink it, and
reading the missing pages would kill the server (SIGBUS). A handle is valid in this process until
its connection closes; no name ever appears in /dev/shm.

Packets (SOCK_SEQPACKET):

    register    "R" <length, 8 bytes, little-endian> with one file descriptor
    registered  "H" <handle, 32 hexadecimal digits>
    refused     "E" <reason, UTF-8>
    forget      "F" <handle>, which has no answer

The length counts against the server's memory budget before the file is mapped, until nothing uses
the mapping. All segments together take at most half of the budget, so that calls without shared
memory find room.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import secrets
import socket
import stat
import struct
import weakref
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gradwire import v1
from gradwire_server.errors import (
    EvaluationError,
    InvalidFieldError,
    UnknownSegmentError,
)
from gradwire_server.observability import logs
from gradwire_server.rpc.mapped_files import ALIGNMENT, mapped
from gradwire_server.scheduling.admission import Admission

Bytes = NDArray[np.uint8]

_REGISTER, _FORGET, _HANDLE, _ERROR = b"R", b"F", b"H", b"E"
_LENGTH: Final = struct.Struct("<Q")
_PACKET_BYTES: Final = 64
# Most segments of a connection, and most connections of all clients.
_MOST_SEGMENTS, _MOST_CONNECTIONS = 256, 256
# Pause without accepting connections, while too many files are open.
_PAUSE_S: Final = 1.0
# Segments take at most this part of the memory budget.
_SHARE: Final = 1 / 2

# Pages are present once a file is mapped.
_PRESENT: Final = getattr(mmap, "MAP_POPULATE", 0)
# linux/fcntl.h and linux/magic.h; Python names the first two from 3.13 on.
_F_GET_SEALS: Final = 1034
_SEALS: Final = 0x0001 | 0x0002 | 0x0004  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW
_TMPFS_MAGIC: Final = 0x01021994
_STATFS_BYTES: Final = 256


class Segments:
    """All registered segments, by handle. Used from one event loop only.

    nbytes     bytes of all segments
    are_taken  whether a listener takes further ones
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._most_bytes = int(admission.max_memory_bytes * _SHARE)
        # Memory stays mapped as long as a view of it exists.
        self._all: dict[str, Bytes] = {}
        self._handles: defaultdict[int, set[str]] = defaultdict(set)  # by connection
        self.nbytes = 0
        self.are_taken = False

    def __len__(self) -> int:
        return len(self._all)

    async def register(self, connection: int, file: int, length: int) -> str:
        """Map a file and return its handle.

        Raises InvalidFieldError if the file is not such a memory file, or there is no room.
        """
        _check_file(file, length)
        admission = self._admission
        own = len(self._handles[connection])
        if own >= _MOST_SEGMENTS:
            raise InvalidFieldError("segment", f"{own} are registered; at most {own} are taken")
        held = admission.memory_bytes
        if self.nbytes + length > self._most_bytes or held + length > admission.max_memory_bytes:
            # No ServerFullError: it reserves a time for a retry, and clients do not retry here.
            raise InvalidFieldError(
                "segment",
                f"segments of all clients hold {self.nbytes} bytes of memory, "
                f"{self._most_bytes} at most, requests and they {held} of max_memory_bytes, "
                f"{admission.max_memory_bytes}, and this one needs {length}",
            )
        admission.take_memory(length)
        admission.lasting_bytes += length
        self.nbytes += length
        try:
            mapping = await asyncio.to_thread(mapped, "segment", file, length, _PRESENT)
        except BaseException:
            self._free(length)
            raise
        loop = asyncio.get_running_loop()
        weakref.finalize(mapping, self._unmapped, loop, length).atexit = False
        handle = secrets.token_hex(16)
        self._all[handle] = np.frombuffer(memoryview(mapping), np.uint8)
        self._handles[connection].add(handle)
        return handle

    def forget(self, connection: int, handle: str) -> None:
        """Make one handle of a connection invalid."""
        if handle in self._handles[connection]:
            self._handles[connection].remove(handle)
            del self._all[handle]

    def forget_all(self, connection: int) -> None:
        """Make all handles of a connection invalid."""
        for handle in self._handles.pop(connection, ()):
            del self._all[handle]

    def view(self, named: v1.SharedRange, field: str, nbytes: int) -> Bytes:
        """Return the bytes of a range.

        The range must be as long as its tensor.

        Raises InvalidFieldError, or UnknownSegmentError if the handle is not valid.
        """
        memory = self._all.get(named.handle)
        if memory is None:
            raise UnknownSegmentError(
                f"{field}.handle: it is of no memory that is registered with this worker; register "
                "it again, or send the bytes"
            )
        if named.length != nbytes:
            raise InvalidFieldError(
                f"{field}.length", f"{named.length} bytes; the descriptor takes {nbytes}"
            )
        if named.offset < 0 or named.offset % ALIGNMENT or named.offset + nbytes > len(memory):
            raise InvalidFieldError(
                f"{field}.offset",
                f"{named.offset}; a multiple of {ALIGNMENT} is needed, and {nbytes} bytes from "
                f"there on, of the {len(memory)} of this memory",
            )
        return memory[named.offset : named.offset + nbytes]

    def _unmapped(self, loop: asyncio.AbstractEventLoop, length: int) -> None:
        """Free the budget of a mapping.

        Called in the thread that drops its last view.
        """
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._free, length)

    def _free(self, length: int) -> None:
        self.nbytes -= length
        self._admission.lasting_bytes -= length
        self._admission.free_memory(length, measured=False)


def _check_file(file: int, length: int) -> None:
    """Raise InvalidFieldError unless this is a sealed memory file of this length."""
    statfs = ctypes.create_string_buffer(_STATFS_BYTES)
    magic = -1
    if _LIBC.fstatfs(file, statfs) == 0:
        magic = int.from_bytes(statfs.raw[: ctypes.sizeof(ctypes.c_long)], "little")
    try:
        seals = fcntl.fcntl(file, _F_GET_SEALS)
    except OSError:
        seals = 0
    if magic != _TMPFS_MAGIC or seals & _SEALS != _SEALS:
        raise InvalidFieldError(
            "segment",
            "the file is not a memfd of ordinary pages with F_SEAL_SEAL, F_SEAL_SHRINK and "
            "F_SEAL_GROW",
        )
    size = os.fstat(file).st_size
    if not 0 < length == size:
        raise InvalidFieldError("segment", f"length {length}; the file has {size} bytes")


_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class SegmentListener:
    """The unix socket that takes segments.

    path      of the socket
    segments  what it has taken
    users     ids of the users whose processes may connect, beside this process's own
    """

    def __init__(self, path: str, segments: Segments, *, users: Collection[int] = ()) -> None:
        self.path = path
        self.segments = segments
        self._users = {os.geteuid(), *users}
        self._refused_users: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None
        self._place: tuple[int, int] | None = None

    def start(self) -> None:
        """Listen. Raises OSError if the path cannot be used."""
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(self.path).st_mode):
                raise FileExistsError(errno.EEXIST, "it is not a socket", self.path)
        self._remove()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.settimeout(0)
        self._listener.bind(self.path)
        self._listener.listen()
        self._place = _place(self.path)
        asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)
        self.segments.are_taken = True

    async def stop(self) -> None:
        """Close the socket and every connection."""
        if self._listener is None:
            return
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        self._listener = None
        if _place(self.path) == self._place:  # otherwise it belongs to the next server
            self._remove()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _remove(self) -> None:
        Path(self.path).unlink(missing_ok=True)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}:
                # Otherwise the event loop would call this again at once.
                loop = asyncio.get_running_loop()
                loop.remove_reader(listener)
                loop.call_later(_PAUSE_S, self._listen_again, listener)
            return
        connection.settimeout(0)
        if len(self._tasks) >= _MOST_CONNECTIONS or not self._is_allowed(connection):
            connection.close()
            return
        task = asyncio.ensure_future(self._serve(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _listen_again(self, listener: socket.socket) -> None:
        if self._listener is listener:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _is_allowed(self, connection: socket.socket) -> bool:
        """Whether the process at the other end runs as an allowed user."""
        credentials = struct.Struct("iII")
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
        _, user, _ = credentials.unpack(found)
        if user not in self._users | self._refused_users:  # one line of each is enough
            self._refused_users.add(user)
            setting = "shared_memory_users"
            logs.warning("shared memory refused: another user", user=user, setting=setting)
        return user in self._users

    async def _serve(self, connection: socket.socket) -> None:
        loop, number = asyncio.get_running_loop(), connection.fileno()
        try:
            while (received := await _receive(connection)) is not None:
                packet, files = received
                try:
                    reply = await self._answer(number, packet, files)
                finally:
                    for file in files:
                        os.close(file)
                if reply:
                    await loop.sock_sendall(connection, reply)
        except OSError:
            pass  # the client has gone
        finally:
            self.segments.forget_all(number)
            connection.close()

    async def _answer(self, connection: int, packet: bytes, files: list[int]) -> bytes:
        kind, rest = packet[:1], packet[1:]
        if kind == _FORGET:
            self.segments.forget(connection, rest.decode(errors="replace"))
            return b""
        try:
            if kind != _REGISTER or len(rest) != _LENGTH.size or len(files) != 1:
                raise InvalidFieldError(
                    "segment", f"a packet of {len(packet)} bytes and {len(files)} files came"
                )
            (length,) = _LENGTH.unpack(rest)
            handle = await self.segments.register(connection, files[0], length)
            return _HANDLE + handle.encode()
        except (EvaluationError, MemoryError) as error:
            return _ERROR + str(error).encode()


async def _receive(connection: socket.socket) -> tuple[bytes, list[int]] | None:
    """Return the next packet, or None at the end.

    It has at most one file. The kernel closes further files of a packet.
    """
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(connection, _set, readable)
    try:
        await readable
    finally:
        loop.remove_reader(connection)
    packet, files, _, _ = socket.recv_fds(
        connection, _PACKET_BYTES, 1, socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
    )
    if not packet:  # the end, or an empty packet, which may have a file too
        for file in files:
            os.close(file)
        return None
    return packet, list(files)


def _place(path: str) -> tuple[int, int] | None:
    """Return device and inode of a path, if it is there."""
    with contextlib.suppress(OSError):
        found = os.lstat(path)
        return found.st_dev, found.st_ino
    return None


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
