"""Load generator with little overhead: unary calls written as HTTP/2 frames.

grpcio's client takes 0.2 ms of a core for a call, about as much as a server: on a few shared cores
it would distort the figures. This one takes some 10 us for the same frames. It respects flow
control, answers pings, and turns header compression off, so that a status is found by searching for
its bytes.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _WINDOW = 0, 1, 3, 4, 6, 8
_END_STREAM = _ACK = 1
_END_HEADERS = 4
_TABLE_SIZE, _WINDOW_SIZE, _FRAME_SIZE, _TRUE_BINARY = 1, 4, 5, 0xFE03
_WHOLE_WINDOW = (1 << 31) - 1
_FIRST_WINDOW = (1 << 16) - 1
_CANCEL = 8
# Received bytes after which the peer may send as many more.
_TOP_UP = 1 << 24


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished call.

    due      when it was to start, by time.perf_counter
    seconds  since then
    status   number of the gRPC status, -1 for a stream that was reset
    retry    whether the response has a retry delay
    """

    due: float
    seconds: float
    status: int
    retry: bool


class _Stream:
    """A call in progress.

    It holds the time it was due, bytes sent, and bytes that may be sent.
    """

    __slots__ = ("due", "number", "sent", "window")

    def __init__(self, number: int, due: float, window: int) -> None:
        self.number, self.due, self.window, self.sent = number, due, window, 0


class Connection:
    """A connection that repeats one unary call.

    message  of each call
    over     calls that have ended
    open     calls under way
    """

    def __init__(self, address: str, method: str, message: bytes) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(0)
        self._headers = _header_block(method, address)
        self.message = message
        self._message = memoryview(b"\0" + struct.pack(">I", len(message)) + message)
        self.over: list[Outcome] = []
        self.open: dict[int, _Stream] = {}
        self._sending: dict[int, _Stream] = {}
        self._number = 1
        self._window = self._stream_window = _FIRST_WINDOW
        self._frame_size = 1 << 14
        self._received, self._buffer = 0, bytearray()
        settings = {_TABLE_SIZE: 0, _WINDOW_SIZE: _WHOLE_WINDOW, _FRAME_SIZE: 1 << 20}
        settings[_TRUE_BINARY] = 1
        pairs = b"".join(struct.pack(">HI", *pair) for pair in settings.items())
        widen = struct.pack(">I", _WHOLE_WINDOW - _FIRST_WINDOW)
        self.out: deque[bytes | memoryview] = deque(
            (_PREFACE, _frame(_SETTINGS, 0, 0, pairs), _frame(_WINDOW, 0, 0, widen))
        )

    def start(self, due: float) -> None:
        """Start a call that was due at a time of time.perf_counter."""
        stream = _Stream(self._number, due, self._stream_window)
        self._number += 2
        self.open[stream.number] = stream
        self.out.append(_frame(_HEADERS, _END_HEADERS, stream.number, self._headers))
        self._send(stream)

    def flush(self) -> None:
        """Write as many bytes as the socket takes."""
        while self.out:
            try:
                written = self.socket.sendmsg(list(islice(self.out, 256)))
            except BlockingIOError:
                return
            while written:
                first = self.out[0]
                if len(first) > written:
                    self.out[0] = memoryview(first)[written:]
                    break
                written -= len(first)
                self.out.popleft()

    def receive(self) -> None:
        """Read the bytes that have arrived."""
        try:
            data = self.socket.recv(1 << 18)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionError("the server closed the connection")
        now = time.perf_counter()
        self._buffer += data
        at, end = 0, len(self._buffer)
        while end - at >= 9:
            high, low, kind, flags, number = struct.unpack_from(">BHBBI", self._buffer, at)
            length = (high << 16) | low
            if end - at < 9 + length:
                break
            payload = self._buffer[at + 9 : at + 9 + length]
            self._take(kind, flags, number, payload, now)
            at += 9 + length
        del self._buffer[:at]

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def _take(self, kind: int, flags: int, number: int, payload: bytearray, now: float) -> None:
        if kind == _DATA:
            self._received += len(payload)
            if self._received > _TOP_UP:
                more = struct.pack(">I", self._received)
                self.out.append(_frame(_WINDOW, 0, 0, more))
                self._received = 0
        elif (kind == _HEADERS and flags & _END_STREAM) or kind == _RESET:
            self._end(number, bytes(payload) if kind == _HEADERS else b"", now)
        elif kind == _SETTINGS and not flags & _ACK:
            self._configure(payload)
        elif kind == _PING and not flags & _ACK:
            self.out.append(_frame(_PING, _ACK, 0, bytes(payload)))
        elif kind == _WINDOW:
            self._widen(number, int.from_bytes(payload, "big"))
            self._send_on()

    def _widen(self, number: int, more: int) -> None:
        if number == 0:
            self._window += more
        elif number in self.open:
            self.open[number].window += more

    def _configure(self, payload: bytearray) -> None:
        for setting, value in struct.iter_unpack(">HI", payload):
            if setting == _WINDOW_SIZE:
                for stream in self.open.values():
                    stream.window += value - self._stream_window
                self._stream_window = value
            elif setting == _FRAME_SIZE:
                self._frame_size = value
        self.out.append(_frame(_SETTINGS, _ACK, 0, b""))
        self._send_on()

    def _send_on(self) -> None:
        for stream in list(self._sending.values()):
            if self._window <= 0:
                return
            self._send(stream)

    def _send(self, stream: _Stream) -> None:
        total = len(self._message)
        stop = stream.sent + max(0, min(self._window, stream.window, total - stream.sent))
        self._window -= stop - stream.sent
        stream.window -= stop - stream.sent
        while stream.sent < stop:
            piece = self._message[stream.sent : min(stop, stream.sent + self._frame_size)]
            stream.sent += len(piece)
            last = _END_STREAM if stream.sent == total else 0
            self.out.append(_head(len(piece), _DATA, last, stream.number))
            self.out.append(piece)
        if stream.sent < total:
            self._sending[stream.number] = stream
        else:
            self._sending.pop(stream.number, None)

    def _end(self, number: int, block: bytes, now: float) -> None:
        stream = self.open.pop(number, None)
        if stream is None:
            return
        if self._sending.pop(number, None) is not None:
            self.out.append(_frame(_RESET, 0, number, struct.pack(">I", _CANCEL)))
        _, found, rest = block.partition(b"grpc-status")
        status = int(rest[1 : 1 + rest[0]]) if found else -1
        retry = b"google.rpc.RetryInfo" in block
        self.over.append(Outcome(stream.due, now - stream.due, status, retry))


def closed_loop(connections: Sequence[Connection], callers: int, seconds: float) -> float:
    """Have callers call back to back for a while.

    Returns the seconds that it took.
    """
    began = time.perf_counter()
    until = began + seconds
    for number in range(callers):
        connections[number % len(connections)].start(began)
    while any(connection.open for connection in connections):
        _wait(connections, 1.0)
        for connection in connections:
            before = len(connection.over)
            connection.receive()
            now = time.perf_counter()
            if now < until:
                for _ in range(len(connection.over) - before):
                    connection.start(now)
            connection.flush()
    return time.perf_counter() - began


def open_loop(
    connections: Sequence[Connection], rate: float, seconds: float, *, patience_s: float = 5.0
) -> None:
    """Start calls at a rate for a while; await their ends.

    The rate does not depend on their results.
    """
    began = time.perf_counter()
    started, total = 0, int(rate * seconds)
    while started < total or any(connection.open for connection in connections):
        now = time.perf_counter()
        if now > began + seconds + patience_s:
            return
        while started < total and (due := began + started / rate) <= now:
            connections[started % len(connections)].start(due)
            started += 1
        for connection in connections:
            connection.flush()
        left = began + started / rate - time.perf_counter() if started < total else 0.05
        _wait(connections, min(max(0.0, left), 0.05))
        for connection in connections:
            connection.receive()


def _wait(connections: Sequence[Connection], seconds: float) -> None:
    sockets = [connection.socket for connection in connections]
    blocked = [connection.socket for connection in connections if connection.out]
    select.select(sockets, blocked, [], seconds)


def _head(length: int, kind: int, flags: int, number: int) -> bytes:
    return struct.pack(">BHBBI", length >> 16, length & 0xFFFF, kind, flags, number)


def _frame(kind: int, flags: int, number: int, payload: bytes) -> bytes:
    return _head(len(payload), kind, flags, number) + payload


def _header_block(method: str, authority: str) -> bytes:
    """Encode a request's headers literally.

    The first two are entries of the static table.
    """
    headers = {
        ":path": method,
        ":authority": authority,
        "te": "trailers",
        "content-type": "application/grpc",
    }
    block = b"\x83\x86"  # :method POST, :scheme http
    for name, value in headers.items():
        block += b"\0" + bytes((len(name),)) + name.encode()
        block += bytes((len(value),)) + value.encode()
    return block
