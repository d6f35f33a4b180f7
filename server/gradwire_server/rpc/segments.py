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
import errno
import fcntl
import mmap
import os
import secrets
import socket
import stat
import struct
import weakref
from collections.abc import Collection, Coroutine, Generator, Iterable
from pathlib import Path
from typing import Final

import numpy as np

from gradwire import v1
from gradwire_server.errors import EvaluationError, InvalidFieldError, UnknownSegmentError
from gradwire_server.observability import logs
from gradwire_server.rpc.codec import Bytes
from gradwire_server.rpc.mapped_files import ALIGNMENT, mapped
from gradwire_server.scheduling import tasks
from gradwire_server.scheduling.admission import Admission

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
# linux/fcntl.h; not every build of Python has the names.
_F_GET_SEALS: Final = 1034
_SEALS: Final = 0x0001 | 0x0002 | 0x0004  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW


class Segments:
    """All registered segments, by handle, and the unix socket that takes them.

    Used from one event loop only.

    users      ids of the users whose processes may connect
    are_taken  whether the socket takes further ones
    """

    def __init__(self, admission: Admission, users: Collection[int]) -> None:
        self._admission = admission
        self._most_bytes = int(admission.max_memory_bytes * _SHARE)
        # Memory stays mapped as long as a view of it exists.
        self._all: dict[str, Bytes] = {}
        self.are_taken = False
        self._users = users
        self._refusals = logs.Refusals()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = contextlib.ExitStack()

    async def _register(self, own: set[str], file: int, length: int) -> str:
        """Map a file; return its handle, added to the connection's own.

        Raises InvalidFieldError if the file is not such a memory file, or there is no room.
        """
        _check_file(file, length)
        admission = self._admission
        if len(own) >= _MOST_SEGMENTS:
            most = _MOST_SEGMENTS
            raise InvalidFieldError("segment", f"{most} are registered; at most {most} are taken")
        every, held = admission.lasting_bytes, admission.memory_bytes
        if every + length > self._most_bytes or held + length > admission.max_memory_bytes:
            # No ServerFullError: it reserves a time for a retry, and clients do not retry here.
            raise InvalidFieldError(
                "segment",
                f"segments of all clients hold {every} bytes of memory, "
                f"{self._most_bytes} at most, requests and they {held} of max_memory_bytes, "
                f"{admission.max_memory_bytes}, and this one needs {length}",
            )
        admission.take_memory(length)
        admission.lasting_bytes += length
        try:
            mapping = await asyncio.to_thread(mapped, "segment", file, length, _PRESENT)
        except BaseException:
            self._free(length)
            raise
        loop = asyncio.get_running_loop()
        weakref.finalize(mapping, self._unmapped, loop, length).atexit = False
        handle = secrets.token_hex(16)
        self._all[handle] = np.frombuffer(memoryview(mapping), np.uint8)
        own.add(handle)
        return handle

    def _forget(self, own: set[str], handles: Iterable[str]) -> None:
        """Make handles of a connection invalid; ignore all others."""
        for handle in own.intersection(handles):
            own.remove(handle)
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
        self._admission.lasting_bytes -= length
        self._admission.free_memory(length, measured=False)

    def start(self, path: Path) -> None:
        """Take segments. Raises OSError if the path cannot be used."""
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise FileExistsError(errno.EEXIST, "it is not a socket", str(path))
            path.unlink()
        listener = self._open.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listener.settimeout(0)
        listener.bind(str(path))
        self._open.enter_context(_removing(path))
        listener.listen()
        self._begin(self._accept(listener))
        self.are_taken = True

    async def stop(self) -> None:
        """Close the socket and every connection."""
        await tasks.end(self._tasks)
        self._open.close()

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
                if len(self._tasks) > _MOST_CONNECTIONS or not self._is_allowed(connection):
                    connection.close()
                else:
                    self._begin(self._serve(connection))
                await asyncio.sleep(0)  # other work of the loop comes between connections
            except OSError:  # too many files are open, or there is no memory
                await asyncio.sleep(_PAUSE_S)

    def _is_allowed(self, connection: socket.socket) -> bool:
        """Whether the process at the other end runs as an allowed user."""
        size = struct.calcsize("iII")
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        _, user, _ = struct.unpack("iII", credentials)
        if user not in self._users:
            self._refusals.note("shared_memory_users", user=str(user))
        return user in self._users

    async def _serve(self, connection: socket.socket) -> None:
        own = set[str]()
        try:
            while True:
                packet, files = await _receive(connection)
                try:
                    if not packet:  # the end, or an empty packet, which may have a file too
                        return
                    reply = await self._answer(own, packet, files)
                finally:
                    for file in files:
                        os.close(file)
                if reply:
                    await asyncio.get_running_loop().sock_sendall(connection, reply)
        except OSError:
            pass  # the client has gone
        finally:
            self._forget(own, own.copy())
            connection.close()

    async def _answer(self, own: set[str], packet: bytes, files: list[int]) -> bytes:
        kind, rest = packet[:1], packet[1:]
        if kind == _FORGET:
            self._forget(own, [rest.decode(errors="replace")])
            return b""
        try:
            if kind != _REGISTER or len(rest) != _LENGTH.size or len(files) != 1:
                raise InvalidFieldError(
                    "segment", f"a packet of {len(packet)} bytes and {len(files)} files came"
                )
            (length,) = _LENGTH.unpack(rest)
            handle = await self._register(own, files[0], length)
            return _HANDLE + handle.encode()
        except (EvaluationError, MemoryError) as error:
            return _ERROR + str(error).encode()


def _check_file(file: int, length: int) -> None:
    """Raise InvalidFieldError unless this is a sealed memory file of this length."""
    try:
        seals = fcntl.fcntl(file, _F_GET_SEALS)
    except OSError:
        seals = 0
    # Files of huge pages have larger blocks.
    if seals & _SEALS != _SEALS or os.statvfs(file).f_bsize != mmap.PAGESIZE:
        raise InvalidFieldError(
            "segment",
            "the file is not a memfd of ordinary pages with F_SEAL_SEAL, F_SEAL_SHRINK and "
            "F_SEAL_GROW",
        )
    size = os.fstat(file).st_size
    if not 0 < length == size:
        raise InvalidFieldError("segment", f"length {length}; the file has {size} bytes")


@contextlib.contextmanager
def _removing(path: Path) -> Generator[None]:
    """Remove a file in the end, unless another one is there."""
    inode = path.lstat().st_ino
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if path.lstat().st_ino == inode:
                path.unlink()


async def _receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next packet and its file, if it has one.

    The kernel closes further files of a packet.
    """
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)
    flags = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
    packet, files, _, _ = socket.recv_fds(connection, _PACKET_BYTES, 1, flags)
    return packet, list(files)
