"""Whatever a caller floods a server with, its memory is bounded and the others are served."""

import random
import re
import struct
import time
import zlib
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from support import raw_frames as raw
from support.load import repeated
from support.processes import EAGER, memory_kib, running_command
from support.raw_calls import (
    PUBLISHED_RESULT,
    RawClient,
    float32,
    identity_request,
    published_request,
    wait_until,
)
from support.raw_frames import RawConnection, call_headers, data_frames, frame, message, settings

MIB = 1 << 20
# Calls at once of the attacks that are slow.
CALLS = 100
STALL_S = 1.5
BUDGET_MIB = 256
# A share of the budget for what the flood is about, and what grpc and Python need to see it off.
MOST_MIB = 160
# While they last so many calls of others are answered.
OTHERS = 10


def rapid_resets(address):
    """Start calls and take them back at once (CVE-2023-44487)."""
    block, cancel = call_headers(), struct.pack(">I", raw.CANCEL)
    with RawConnection(address) as connection:
        for first in range(1, 20_000, 200):
            streams = range(first, first + 200, 2)
            pairs = (
                frame(raw.HEADERS, raw.END_HEADERS, one, block) + frame(raw.RESET, 0, one, cancel)
                for one in streams
            )
            if not connection.send(*pairs):
                return
        connection.drain(0.2)


def many_headers(address):
    """Send a megabyte of headers with one call."""
    block = call_headers(*((b"x-%d" % number, bytes(100)) for number in range(9000)))
    pieces = [block[at : at + (1 << 14)] for at in range(0, len(block), 1 << 14)]
    with RawConnection(address) as connection:
        connection.send(frame(raw.HEADERS, 0, 1, pieces[0]))
        connection.send(*(frame(raw.CONTINUATION, 0, 1, piece) for piece in pieces[1:]))
        connection.drain(0.2)


def endless_headers(address):
    """Send headers that do not end, large ones and empty ones (CVE-2024-27316)."""
    begun = frame(raw.HEADERS, 0, 1, call_headers())
    large = frame(raw.CONTINUATION, 0, 1, raw.literal(b"x", bytes(16_000)))
    flood(address, begun, large, times=2_000)
    flood(address, begun, frame(raw.CONTINUATION, 0, 1) * 1000, times=200)


def questions(address):
    """Ask for signs of life and change settings, and read no answer (CVE-2019-9512, 9515)."""
    for part in (frame(raw.PING, 0, 0, bytes(8)), settings(s4=65_535)):
        flood(address, b"", part * 1000, times=20, patience_s=0.5)


def empty_data(address):
    """Send frames of data that hold none (CVE-2019-9518)."""
    begun = frame(raw.HEADERS, raw.END_HEADERS, 1, call_headers())
    flood(address, begun, frame(raw.DATA, 0, 1) * 1000, times=100)


def flood(address, begun, part, *, times, patience_s=30):
    """Send a part again and again, as long as it is taken."""
    with RawConnection(address) as connection:
        connection.socket.settimeout(patience_s)
        connection.send(begun)
        for _ in range(times):
            if not connection.send(part):
                break


def dropped_connections(address):
    """Open 10 000 connections, a thousand at once, greet with every second, and drop them."""
    for _ in range(10):
        with ExitStack() as held:
            for number in range(1000):
                held.enter_context(RawConnection(address, greet=bool(number % 2)))


def half_greetings(address):
    """Hold connections that have not said all it takes to begin."""
    with ExitStack() as held:
        for number in range(500):
            connection = held.enter_context(RawConnection(address, greet=False))
            connection.send(raw.PREFACE[: number % len(raw.PREFACE)])
            if number % 3 == 0:
                connection.send(raw.PREFACE[number % len(raw.PREFACE) :], settings())
                connection.send(frame(raw.HEADERS, 0, 1, call_headers()[:20]))


def garbage(address):
    """Speak something else: HTTP/1.1, TLS, noise, noise after a greeting, nothing."""
    noise = random.Random(0).randbytes(1 << 16)  # noqa: S311 - nothing secret
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + noise[:500]
    said = [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", hello, noise, raw.PREFACE + noise, b""]
    for words in said:
        with RawConnection(address, greet=False) as connection:
            connection.send(words)
            connection.drain(0.05)


def bombs(address):
    """Send messages of 60 KiB that are 60 MiB when they are unpacked."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = b"".join(packer.compress(bytes(MIB)) for _ in range(60)) + packer.flush()
    block = call_headers((b"grpc-encoding", b"gzip"))
    for _ in range(10):
        with RawConnection(address) as connection:
            connection.send(frame(raw.HEADERS, raw.END_HEADERS, 1, block))
            # Less than a window: nobody has to listen.
            connection.send(*data_frames(1, message(packed, compressed=True)))
            connection.drain(0.1)


def slow_reads(address):
    """Ask for megabytes, a hundred at once, with no window for any byte of them."""
    reads = (part for stream in range(1, 2 * CALLS, 2) for part in repetition(stream))
    on_four_connections(address, b"".join(reads), window=0)


def slow_writes(address):
    """Begin requests of megabytes, a hundred at once, and send a part of each."""
    on_four_connections(address, b"".join(unfinished(CALLS)))


def on_four_connections(address, sent, *, window=None):
    with ExitStack() as held:
        for _ in range(4):
            connection = held.enter_context(RawConnection(address, window=window))
            connection.send(sent)
        connection.drain(0.5)


def repetition(stream):
    """Yield the frames of a call that asks for a megabyte with 4 bytes."""
    request = identity_request(MIB // 4, data=bytes(4))
    request.input.CopyFrom(float32(MIB // 4, strides=(0,)))
    yield frame(raw.HEADERS, raw.END_HEADERS, stream, call_headers())
    yield from data_frames(stream, message(request.SerializeToString()))


def unfinished(calls, *, method=raw.EVALUATE):
    """Yield the frames of calls whose requests have begun."""
    for stream in range(1, 2 * calls, 2):
        yield frame(raw.HEADERS, raw.END_HEADERS, stream, call_headers(method=method))
        yield frame(raw.DATA, 0, stream, struct.pack(">BI", 0, 4 * MIB) + bytes(500))


ATTACKS = [
    *(rapid_resets, many_headers, endless_headers, questions, empty_data, dropped_connections),
    *(half_greetings, garbage, bombs, slow_reads, slow_writes),
]


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    flags = f"--log-level warning --stall-timeout-s {STALL_S} --max-memory-bytes {BUDGET_MIB << 20}"
    log = tmp_path_factory.mktemp("floods") / "log"
    with running_command(*flags.split(), log=log, env=EAGER) as command:
        yield command
        assert "Traceback" not in command.log


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_floods_take_bounded_memory_and_others_are_served(command, attack):
    others = RawClient(command.address)

    def ask():
        answer = others.evaluate(published_request())
        return None if answer.data == PUBLISHED_RESULT else answer

    with others, repeated(ask, threads=1) as load:
        load.wait_for_more(OTHERS)
        folder = Path(f"/proc/{command.pid}/fd")
        files = len(list(folder.iterdir()))
        resident = memory_kib(command.pid, "VmRSS")
        Path(f"/proc/{command.pid}/clear_refs").write_text("5")  # forgets the highest VmRSS
        least = load.calls + OTHERS
        attack(command.address)
        while load.calls < least:
            time.sleep(0.1)  # they share an interpreter with the attack
            attack(command.address)
        assert memory_kib(command.pid, "VmHWM") < resident + MOST_MIB * 1024
        # The server finds some reset connections by its keepalive pings only, 20 s later.
        wait_until(lambda: len(list(folder.iterdir())) <= files, patience_s=45.0)
    with RawClient(command.address) as client:
        client.check_alive()


def ends(received):
    """Return the status of every call that has ended, of frames without header compression."""
    return [int(found) for found in re.findall(rb"grpc-status[\x01\x02](1?\d)", received)]


def test_a_request_that_does_not_come_whole_is_ended(command):
    with ExitStack() as stack:
        connections = [stack.enter_context(RawConnection(command.address)) for _ in range(3)]
        methods = ("Evaluate", "ListOperators", "GetServerInfo")
        for connection, method in zip(connections, methods, strict=True):
            connection.send(*unfinished(1, method=f"/gradwire.v1.GradientService/{method}"))
        for connection, quiet_s in zip(connections, (STALL_S + 1.0, 0.5, 0.5), strict=True):
            received = connection.drain(quiet_s)
            # DEADLINE_EXCEEDED
            assert ends(received) == [4]
            assert received.count(b"the request was not there after 1.5 s") == 1


def test_requests_that_are_slow_to_come_hold_a_share_of_the_memory(command):
    with RawConnection(command.address) as slow:
        slow.send(*unfinished(40))
        received = slow.drain(STALL_S + 1.0)
    # 16 MiB may come with each, and a quarter of 256 MiB is one caller's: for the others
    # RESOURCE_EXHAUSTED, and DEADLINE_EXCEEDED, which a busy machine may write earlier.
    assert Counter(ends(received)) == {8: 36, 4: 4}
    assert received.count(b"requests of this caller that have not come whole reserve") == 36
    assert b"retry after 0.0 s" not in received


def test_requests_that_do_not_come_leave_room_for_those_that_do(command):
    with ExitStack() as stack, RawClient(command.address) as client:
        for number in range(1, 7):
            slow = RawConnection(command.address, source=f"127.0.1.{number}")
            stack.enter_context(slow).send(*unfinished(8))
        time.sleep(STALL_S / 2 + 0.5)
        assert client.evaluate(published_request()).refusal is None


@pytest.mark.slow
def test_replies_that_are_not_read_hold_a_share_of_the_memory(command):
    with RawConnection(command.address, window=0) as connection:
        for stream in range(1, 180, 2):
            connection.send(*repetition(stream))
            # One after the other: at once they would be refused for what they need meanwhile.
            assert connection.socket.recv(1 << 16)
        connection.drain(1.0)
        # Now they are read.
        connection.send(settings(s4=2 * MIB), frame(raw.WINDOW, 0, 0, struct.pack(">I", 1 << 30)))
        received = connection.drain(1.0)
    statuses = Counter(ends(received))
    # Of 90 MiB a quarter of the budget, 64 MiB, is one caller's: OK and RESOURCE_EXHAUSTED.
    assert statuses.keys() == {0, 8}
    assert statuses.total() == 90
    assert statuses[0] * MIB <= BUDGET_MIB * MIB // 4
    assert 0 < received.count(b"replies that this caller has not read hold") <= statuses[8]
