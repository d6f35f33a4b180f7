"""Messages between processes of one server: a JSON object each, with file descriptors beside it.

Sockets keep the bounds of messages (SOCK_SEQPACKET). They have no file: their names are Linux's
abstract ones, which the system makes up, and both sides ask it whose process the other one is.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

# Changes whenever processes that speak the one before would misunderstand each other.
PROTOCOL = 1

Message = dict[str, Any]

_MOST_BYTES = 1 << 16
_MOST_FDS = 1
_BACKLOG = 128


def listening() -> socket.socket:
    """Return a socket that others of this user can connect to by name_of() it."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.bind("")
    made.listen(_BACKLOG)
    return made


def name_of(listener: socket.socket) -> str:
    """Return the name of a socket that listens."""
    name: bytes = listener.getsockname()
    return name.removeprefix(b"\0").decode("ascii")


class Channel:
    """One side of a connection. One thread may send while another one receives.

    Its methods raise ConnectionError once the other side has gone.
    """

    def __init__(self, connected: socket.socket) -> None:
        """Take a socket; PermissionError where the other side is another user's."""
        self._socket = connected
        _, user, _ = struct.unpack(
            "3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        )
        if user != os.getuid():
            connected.close()
            raise PermissionError(f"a process of user {user} at a socket of this server")

    @classmethod
    def to(cls, name: str) -> Channel:
        """Connect to the socket of this name, whoever may be going to accept that."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            made.connect(b"\0" + name.encode("ascii"))
        except BaseException:
            made.close()
            raise
        return cls(made)

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send a message; the other side gets file descriptors of its own."""
        socket.send_fds(self._socket, [json.dumps(message).encode()], fds)

    def receive(self) -> tuple[Message, list[int]]:
        """Wait for a message and its file descriptors, which are the caller's to close."""
        data, fds, flags, _ = socket.recv_fds(
            self._socket, _MOST_BYTES, _MOST_FDS, socket.MSG_CMSG_CLOEXEC
        )
        if not data:
            raise ConnectionResetError("the process at the other side has gone")
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            for one in fds:
                os.close(one)
            raise ConnectionError(f"a message of more than {_MOST_BYTES} bytes")
        return json.loads(data), fds

    def hang_up(self) -> None:
        """End the connection, and whatever waits for it in other threads."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # it has ended already
            return

    def close(self) -> None:
        """Give the socket back; no other thread may be using it."""
        self._socket.close()
