"""Connections, disks, memory, clocks and processes fail: no call is lost, and no bit is wrong."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from chaos.link import may_link
from gradwire import Client, DeadlineExceededError, GradwireError, Item, UnavailableError
from gradwire_server import LocalClient
from gradwire_server.backends.numpy_cpu import NumpyCpu
from support.clients import AWAITED, BILINEAR, CALLS, ONCE, PROMPT, half, halved
from support.load import PATIENT, Callers
from support.processes import EAGER, environment, memory_kib, run_command, running_command
from support.raw_calls import PATIENCE_S, identity_request, wait_until
from support.relay import drawn_cuts, relaying
from support.servers import commanded, serving, wait_idle

MIB = 1 << 20


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
        CALLS[call](client)
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
    assert seen["slowest_gone_s"] < PATIENCE_S
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
    "calls", [60, pytest.param(600, marks=[pytest.mark.slow, pytest.mark.heavy])]
)
def test_no_damaged_result_is_taken(calls):
    options = {"timeout_s": 2.0, "retry": PROMPT, "chunk_bytes": 64 << 10, "checksums": True}
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
    assert counts.keys() <= {"right", "failed", "damaged"}, counts
    assert min(counts["right"], counts["damaged"]) > 0


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory files are Linux's")
@pytest.mark.parametrize(
    ("clients", "servers"),
    [(30, 2), pytest.param(1000, 50, marks=[pytest.mark.slow, pytest.mark.heavy])],
)
def test_the_killed_leave_nothing(clients, servers):
    # A process of its own: clients are forked.
    found = play("chaos.shared_memory", str(clients), str(servers))
    assert found == {"clients": clients, "killed": clients, "servers": servers, "left": {}}
