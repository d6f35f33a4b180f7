"""HTTP/2 as raw frames, for what no client library would send."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from typing import Self

from gradwire._wire.framing import varint

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS = 1, 4
TABLE_SIZE, INITIAL_WINDOW = 1, 4  # settings
CANCEL = 8  # the error code
EVALUATE = "/gradwire.v1.GradientService/Evaluate"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    length = len(payload)
    return struct.pack(">BHBBI", length >> 16, length & 0xFFFF, kind, flags, stream) + payload


def settings(**numbers: int) -> bytes:
    pairs = (struct.pack(">HI", int(name[1:]), value) for name, value in numbers.items())
    return frame(SETTINGS, 0, 0, b"".join(pairs))


def literal(name: bytes, value: bytes) -> bytes:
    """Encode a header that no table knows, nor is to keep."""
    encoded = b"\0"
    for text in (name, value):
        # A length with a prefix of seven bits, RFC 7541 section 5.1.
        size = len(text)
        encoded += (bytes((size,)) if size < 0x7F else b"\x7f" + varint(size - 0x7F)) + text
    return encoded


def call_headers(*more: tuple[bytes, bytes], method: str = EVALUATE) -> bytes:
    own = {b":path": method.encode(), b":authority": b"localhost", b"te": b"trailers"}
    pairs = [*own.items(), (b"content-type", b"application/grpc"), *more]
    # The first two are entries of the static table: :method POST, :scheme http.
    return b"\x83\x86" + b"".join(literal(*pair) for pair in pairs)


def message(data: bytes, *, compressed: bool = False) -> bytes:
    return struct.pack(">BI", compressed, len(data)) + data


def data_frames(stream: int, data: bytes) -> Iterable[bytes]:
    """Cut bytes into frames of the size that everyone takes; the last ends the stream."""
    for at in range(0, max(1, len(data)), 1 << 14):
        piece = data[at : at + (1 << 14)]
        end = at + len(piece) == len(data)
        yield frame(DATA, END_STREAM if end else 0, stream, piece)


class RawConnection:
    """A TCP connection that is told what to send, byte by byte.

    greet   whether to begin as HTTP/2 does; headers then come without compression
    window  bytes that the other end may send on each stream; None for the default
    source  the address that it comes from; empty for the usual one
    """

    def __init__(
        self, address: str, *, greet: bool = True, window: int | None = None, source: str = ""
    ) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection(
            (host, int(port)), timeout=30, source_address=(source, 0) if source else None
        )
        if greet:
            numbers = {} if window is None else {f"s{INITIAL_WINDOW}": window}
            self.send(PREFACE, settings(**{f"s{TABLE_SIZE}": 0}, **numbers))

    def send(self, *parts: bytes) -> bool:
        """Send; return whether the other end still takes it."""
        try:
            self.socket.sendall(b"".join(parts))
        except OSError:
            return False
        return True

    def drain(self, seconds: float) -> bytes:
        """Read what comes until nothing did for so long, or the end."""
        self.socket.settimeout(seconds)
        received = bytearray()
        with suppress(OSError):
            while data := self.socket.recv(1 << 16):
                received += data
        return bytes(received)

    def drop(self) -> None:
        """Reset the connection, so that no port stays taken."""
        if self.socket.fileno() < 0:
            return
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()
