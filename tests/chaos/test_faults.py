"""Connections, disks, memory, clocks and processes fail, and callers flood a server.

No call is lost, no bit is wrong, memory is bounded and others are served.
"""

import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from chaos.link import may_link
from gradwire import Client, DeadlineExceededError, GradwireError, Item, UnavailableError
from gradwire_server import LocalClient
from gradwire_server.backends.numpy_cpu import NumpyCpu
from support import raw_frames as raw
from support.clients import AWAITED, BILINEAR, CALLS, ONCE, PROMPT, half, halved
from support.load import PATIENT, Callers, repeated
from support.processes import EAGER, environment, memory_kib, run_command, running_command
from support.raw_calls import (
    PUBLISHED_RESULT,
    RawClient,
    float32,
    identity_request,
    published_request,
    wait_until,
)
from support.raw_frames import RawConnection, call_headers, data_frames, frame, message, settings
from support.relay import drawn_cuts, relaying
from support.servers import commanded, serving, wait_idle

MIB = 1 << 20
# Calls at once of the attacks that are slow.
AT_ONCE = 100
STALL_S = 3.0
BUDGET_MIB = 256
# A share of the budget for what the flood is about, and what grpc and Python need to see it off.
MOST_MIB = 160
# While they last so many calls of others are answered.
OTHERS = 10


def test_a_log_that_nobody_reads_any_more_costs_nothing_else():
    reading, writing = os.pipe()
    with commanded("--access-log", log=Path(f"/dev/fd/{writing}")) as (command, client):
        os.close(writing)
        os.close(reading)
        for _ in range(40):
            client.check_alive()
        command.stop()


def test_a_disk_that_has_room_again_is_told_how_many_lines_it_lacks(tmp_path):
    log = tmp_path / "log"
    with commanded("--access-log", log=log) as (command, client):
        client.check_alive()
        command.wait_for_log("method=EvaluateStream")
        before = log.stat().st_size
        _, hard = resource.prlimit(command.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(command.pid, resource.RLIMIT_FSIZE, (before, hard))
        for _ in range(40):
            client.check_alive()
        assert log.stat().st_size == before
        resource.prlimit(command.pid, resource.RLIMIT_FSIZE, (hard, hard))
        client.check_alive()
        command.wait_for_log(" lines lost lines=")


@pytest.mark.slow
def test_calls_that_find_no_memory_end_and_the_server_goes_on(tmp_path):
    request = identity_request(512 * 1024, data=bytes(2 * MIB))
    with commanded(log=tmp_path / "log", env=EAGER) as (command, client):
        assert client.evaluate(request).refusal is None
        _, hard = resource.prlimit(command.pid, resource.RLIMIT_AS)
        # The least of a while: what the call before had is given back, or grpc would find it.
        mapped = 1 << 62
        for _ in range(8):
            time.sleep(0.05)
            mapped = min(mapped, memory_kib(command.pid, "VmSize") * 1024)
        # Too little for a result and its message.
        resource.prlimit(command.pid, resource.RLIMIT_AS, (mapped + MIB, hard))
        answers = [client.evaluate(request) for _ in range(20)]
        assert {each.data for each in answers if each.refusal is None} <= {request.data}
        reasons = {each.refusal.info.reason for each in answers if each.refusal}
        assert reasons == {"OUT_OF_MEMORY"}
        resource.prlimit(command.pid, resource.RLIMIT_AS, (hard, hard))
        client.check_alive()
        assert "Traceback" not in command.log


@pytest.mark.slow
def test_a_worker_without_memory_brings_no_wrong_bits_and_loses_no_call(tmp_path):
    with running_command("--workers", "2", log=tmp_path / "log") as command:
        with Callers(command.address, "unary", "stream", "copy", retry=PATIENT) as callers:
            callers.wait_for_more()
            pid = command.workers[0]
            _, hard = resource.prlimit(pid, resource.RLIMIT_AS)
            mapped = memory_kib(pid, "VmSize") * 1024
            resource.prlimit(pid, resource.RLIMIT_AS, (mapped, hard))
            callers.wait_for_more()
            # Whatever it could not do, it was not to answer with other bits.
            command.kill_worker(0)
            command.wait_for_log("worker serves worker=0 ", times=2)
            callers.wait_for_more()
        for tally in callers.tallies:
            assert tally.wrong == 0
            assert all(text.startswith("OutOfMemoryError: ") for text in tally.lost), tally.lost


def test_no_call_is_lost_while_every_connection_is_cut():
    down, up = drawn_cuts(0)
    with (
        serving(backend=NumpyCpu()) as server,
        relaying(server.address, cuts=down, cuts_up=up) as relay,
    ):
        kinds = ("unary", "async unary", "many", "small stream", "stream", "async stream")
        with Callers(relay.address, *kinds, retry=PATIENT) as callers:
            wait_until(lambda: relay.cut >= 15)
            relay.spare()
            callers.wait_for_more()
        callers.check()


@pytest.mark.parametrize("call", ["Evaluate", "EvaluateStream", "EvaluateMany"])
def test_a_call_ends_at_both_ends_where_the_line_between_is_dead(call):
    with (
        serving(backend=NumpyCpu(), stall_timeout_s=0.5) as server,
        relaying(server.address) as relay,
        Client(relay.address, retry=ONCE, timeout_s=0.5) as client,
    ):
        client.wait_ready()
        relay.swallow()
        with pytest.raises((DeadlineExceededError, UnavailableError)):
            CALLS[call](client)
        wait_idle(server)


def play(*words, before=()):
    """Run a program of this folder; return what it prints as JSON."""
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    done = subprocess.run(  # noqa: S603 - our own program
        ["/usr/bin/env", *before, sys.executable, "-m", *words],
        env=environment({"PYTHONPATH": paths}),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(not may_link(), reason="no networks of one's own may be made here")
@pytest.mark.slow
def test_no_call_is_lost_over_a_line_that_loses_packets_and_those_to_one_that_is_gone_end():
    seen = play("chaos.link", before=("unshare", "-rn"))
    assert min(seen["calls"], seen["packets_lost"]) > 0
    assert (seen["wrong"], seen["lost"]) == (0, [])
    assert set() < set(seen["gone"]) <= {"DeadlineExceededError", "UnavailableError"}
    assert seen["slowest_gone_s"] < 30
    assert seen["there"] == ["a result"]


@pytest.mark.slow
def test_a_stopped_worker_is_replaced_and_none_after_a_stop_of_the_parent(tmp_path):
    stall_s = 2.0
    flags = ("--workers", "2", "--compute-threads", "1", "--stall-timeout-s", str(stall_s))
    with running_command(*flags, log=tmp_path / "log") as command:
        before = command.workers
        command.signal(signal.SIGSTOP)
        time.sleep(3 * stall_s)
        command.signal(signal.SIGCONT)
        time.sleep(2 * stall_s)
        assert command.workers == before
        assert "hangs" not in command.log
        kinds = ("unary", "async unary", "stream")
        with Callers(command.address, *kinds, retry=PATIENT) as callers:
            callers.wait_for_more()
            stopped = command.workers[0]
            os.kill(stopped, signal.SIGSTOP)
            command.wait_for_log(f"worker hangs pid={stopped} ")
            command.wait_for_log("worker serves worker=0 ", times=2)
            callers.wait_for_more()
            assert command.workers[0] != stopped
    callers.check()


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_clock_that_is_set_costs_no_call(tmp_path):
    day_s, offset, clock = 86_400, tmp_path / "offset", str(tmp_path / "clock.so")
    source = str(Path(__file__).with_name("clock.c"))
    command = ["/usr/bin/env", "cc", "-O1", "-shared", "-fPIC", "-o", clock, source]
    subprocess.run(command, check=True)  # noqa: S603 - our own source
    offset.write_text(str(day_s))
    variables = {"LD_PRELOAD": clock, "CLOCK_OFFSET": str(offset)}
    said = run_command("-c", "import time; print(time.time())", env=variables, program=())
    assert float(said.stdout) > time.time() + day_s / 2
    offset.write_text("0")
    log = tmp_path / "log"
    with running_command("--workers", "2", log=log, env=variables) as server:
        with Callers(server.address, "unary", "async unary", "stream", "many") as callers:
            for seconds in (day_s, -day_s, 400 * day_s, 0):
                offset.write_text(str(seconds))
                callers.wait_for_more()
        callers.check()
        assert [tally.retried for tally in callers.tallies] == [0] * 4
        assert "hangs" not in server.log


def damage(seed, counts):
    """Return what changes, drops, swaps or repeats bytes of some blocks, and counts these."""
    draw, lock = random.Random(seed), threading.Lock()  # noqa: S311 - repeatable

    def damaged(block):
        with lock:
            # Most blocks of few bytes are frames of HTTP/2 that end the connection when damaged.
            if not block or draw.randrange(12 if len(block) > 1 << 10 else 192):
                return block
            counts["damaged"] += 1
            # A length that changes shifts the frames of HTTP/2 that follow, and mostly ends or
            # blocks the connection: those are fewer.
            way = draw.choice(["flip"] * 3 + ["swap"] * 3 + ["repeat"] * 2 + ["insert", "drop"])
            at, size = draw.randrange(len(block)), draw.choice((1, 4, 16, 1 << 10))
            before, piece, behind = block[:at], block[at : at + size], block[at + size :]
            end = {
                "flip": bytes([piece[0] ^ 1 << draw.randrange(8)]) + piece[1:] + behind,
                "swap": behind[:size] + piece + behind[size:],
                "repeat": piece + piece + behind[size:],  # as a buffer that is sent twice
                "insert": piece + piece + behind,
                "drop": behind,
            }
            return before + end[way]

    return damaged


@pytest.mark.parametrize(
    ("calls", "checksums"),
    [
        *((60, True), (60, False)),
        pytest.param(600, True, marks=[pytest.mark.slow, pytest.mark.heavy]),
    ],
)
def test_damaged_results_are_taken_only_without_checksums(calls, checksums):
    options = {"timeout_s": 2.0, "retry": PROMPT, "chunk_bytes": 64 << 10, "checksums": checksums}
    counts = Counter()
    with (
        serving() as server,
        relaying(server.address) as relay,
        LocalClient() as local,
        Client(relay.address, **options) as client,
        AWAITED(relay.address, **options) as other,
        ThreadPoolExecutor(8) as at_once,
    ):
        relay.alter, relay.alter_up = damage(calls, counts), damage(calls + 1, counts)
        # Of one request, and of one with several items.
        shapes = ((1, 2, 32, 32), (1, 4, 256, 384), (8, 1, 2, 32, 32))
        ways = list(product(shapes, (client, other)))

        def outcome(number):
            shape, caller = ways[number % len(ways)]
            array = np.random.default_rng((calls, number)).normal(size=shape).astype(np.float32)
            items = [Item(BILINEAR, x, half(x)) for x in array.reshape(-1, *shape[-4:])]
            try:
                if len(items) > 1:
                    found = list(caller.evaluate_many(items))
                else:
                    found = [halved(caller, array)]
            except GradwireError:
                return "failed"
            expected = list(local.evaluate_many(items))
            same = [x.tobytes() for x in found] == [x.tobytes() for x in expected]
            return "right" if same else "wrong"

        for future in [at_once.submit(outcome, number) for number in range(calls)]:
            # With its retries a call that takes longer hangs.
            counts[future.result(60.0)] += 1
    assert min(counts["right"], counts["damaged"]) > 0, counts
    assert (counts["wrong"] == 0) == checksums, counts


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory files are Linux's")
@pytest.mark.parametrize(
    ("clients", "servers"),
    [(30, 2), pytest.param(1000, 50, marks=[pytest.mark.slow, pytest.mark.heavy])],
)
def test_the_killed_leave_nothing(clients, servers):
    # A process of its own: clients are forked.
    found = play("chaos.shared_memory", str(clients), str(servers))
    assert found == {"clients": clients, "killed": clients, "servers": servers, "left": {}}


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
    reads = (part for stream in range(1, 2 * AT_ONCE, 2) for part in repetition(stream))
    on_four_connections(address, b"".join(reads), window=0)


def slow_writes(address):
    """Begin requests of megabytes, a hundred at once, and send a part of each."""
    on_four_connections(address, b"".join(unfinished(AT_ONCE)))


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


def read_ends(connection, calls):
    """Read until so many calls have ended."""
    received = bytearray()

    def all_ended():
        received.extend(connection.drain(0.1))
        return len(ends(received)) >= calls

    wait_until(all_ended)
    return bytes(received)


def test_a_request_that_does_not_come_whole_is_ended(command):
    with ExitStack() as stack:
        connections = [stack.enter_context(RawConnection(command.address)) for _ in range(3)]
        methods = ("Evaluate", "ListOperators", "GetServerInfo")
        for connection, method in zip(connections, methods, strict=True):
            connection.send(*unfinished(1, method=f"/gradwire.v1.GradientService/{method}"))
        for connection in connections:
            received = read_ends(connection, 1)
            # DEADLINE_EXCEEDED
            assert ends(received) == [4]
            assert received.count(b"the request was not there after %.1f s" % STALL_S) == 1


def test_requests_that_are_slow_to_come_hold_a_share_of_the_memory(command):
    with RawConnection(command.address) as slow:
        slow.send(*unfinished(40))
        received = read_ends(slow, 40)
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
