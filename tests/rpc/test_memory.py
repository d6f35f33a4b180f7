"""Memory follows arrived bytes, is bounded and returns to its level."""

import asyncio
import itertools
import resource
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from gradwire import v1
from support.processes import EAGER, memory_kib, running_command
from support.raw_calls import (
    ManyCall,
    RawClient,
    as_stream,
    chunk,
    chunks,
    copies,
    ended,
    float32,
    identity_request,
    named,
    opening,
    published_request,
    silence,
    wait_until,
)
from support.servers import commanded, served, wait_idle

MIB = 1 << 20

ROWS = 1024
DATA = bytes(ROWS * 4096)
# Kernels that are loaded later would count as memory of calls.
BACKEND = ("--backend", "auto", "--wait-for-kernels")


def doubling(*data):
    """Ask for twice the rows of a 4 MiB input."""
    request = identity_request(ROWS, 1024)
    request.output.sizes[0] = 2 * ROWS
    return [opening(request), *data]


def complete(client):
    answer = client.stream(doubling(*chunks(DATA, MIB)))
    assert answer.refusal is None
    assert len(answer.data) == 2 * len(DATA)


def fail(client):
    messages = doubling(*chunks(DATA[: 3 * MIB], MIB), chunk(3, b"\0"))
    assert client.stream(messages).code is grpc.StatusCode.INVALID_ARGUMENT


def cancel(client):
    with silence(doubling(*chunks(DATA[: 3 * MIB], MIB))) as silent:
        call = client.start(silent())
        for _ in range(2):
            next(call)
        call.cancel()


def complete_many(client):
    with ManyCall(client) as many:
        many.send(named(published_request(), "one"))
        assert list(many.answers()) == ["one"]


def fail_many(client):
    with ManyCall(client) as many:
        many.send(named(published_request(), "one"), v1.EvaluateManyRequest())
        assert many.refusal().code is grpc.StatusCode.INVALID_ARGUMENT


def burst(client, end=complete):
    """Run eight streams, four at once."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(end, [client] * 8))


def test_no_task_is_left_however_streams_end():
    with served() as (server, client):
        client.check_alive()

        def tasks():
            return len(asyncio.all_tasks(server.loop))

        wait_idle(server)
        before = tasks()
        for end in (complete, fail, cancel, complete_many, fail_many):
            for _ in range(3):
                end(client)
            wait_until(lambda: tasks() <= before)


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """Run a server that has loaded what calls use."""
    log = tmp_path_factory.mktemp("memory") / "log"
    with running_command(*BACKEND, log=log, env=EAGER) as command:
        with RawClient(command.address) as client:
            complete(client)
        yield command


@pytest.mark.slow
def test_memory_returns_to_its_level_however_streams_end(command):
    with RawClient(command.address) as client:
        burst(client)
        level = memory_kib(command.pid, "RssAnon")
        for end in (complete, fail, cancel) * 3:
            burst(client, end)
            client.check_alive()
            # A few MiB for each stream that ended would be more.
            assert memory_kib(command.pid, "RssAnon") < level + 24 * 1024


def test_memory_goes_back_to_the_system_once_calls_are_over(tmp_path):
    request = identity_request(896, 1024, data=bytes(896 * 4096))
    with commanded(log=tmp_path / "log") as (command, client), ThreadPoolExecutor(8) as pool:
        # The first call loads what all later ones use.
        client.evaluate(request)
        client.check_alive()
        idle = memory_kib(command.pid, "RssAnon")
        list(pool.map(client.evaluate, [request] * 64))
        wait_until(lambda: memory_kib(command.pid, "RssAnon") < 1.2 * idle)


GIANTS = {
    "256 GiB": (float32(1 << 18, 1 << 18), float32(1 << 18, 1 << 18)),
    "long rows": (float32(2, 1 << 23), float32(2, 1 << 23)),
    "held whole": (float32(4096, 4096), float32(4096, 4096, strides=(1, 4096))),
}


@pytest.mark.parametrize(("source", "result"), GIANTS.values(), ids=list(GIANTS))
def test_nothing_is_allocated_before_bytes_arrive(command, source, result):
    request = identity_request(1)
    request.input.CopyFrom(source)
    request.output.CopyFrom(result)
    with RawClient(command.address) as client, silence([opening(request)]) as silent:
        client.check_alive()
        resident, mapped = (memory_kib(command.pid, name) for name in ("RssAnon", "VmSize"))
        calls = [client.start(silent()) for _ in range(3)]
        for call in calls:
            assert next(call).WhichOneof("message") == "opened"
        assert memory_kib(command.pid, "RssAnon") < resident + 8 * 1024
        assert memory_kib(command.pid, "VmSize") < mapped + 32 * 1024
        for call in calls:
            call.cancel()
        client.check_alive()


@pytest.mark.slow
def test_a_stream_needs_memory_for_what_overlaps_and_not_for_the_tensor(tmp_path):
    # A server of its own: another stream's high water would hide this one's.
    with commanded(*BACKEND, log=tmp_path / "log", env=EAGER) as (command, client):
        burst(client)
        level = memory_kib(command.pid, "VmHWM")
        opened = opening(identity_request(1 << 14, 1024))
        data = (chunk(number * MIB, bytes(MIB)) for number in range(64))
        received = client.start(itertools.chain([opened], data))
        assert sum(len(each.chunk.data) for each in received) == 64 * MIB
        assert memory_kib(command.pid, "VmHWM") < level + 48 * 1024


@pytest.mark.slow
def test_a_server_out_of_memory_says_so_and_stays_up(tmp_path):
    flags = ("--max-request-memory-bytes", str(64 << 30), "--max-memory-bytes", str(64 << 30))
    with commanded(*BACKEND, *flags, log=tmp_path / "log", env=EAGER) as (command, client):
        burst(client)
        mapped = memory_kib(command.pid, "VmSize") * 1024
        _, hard = resource.prlimit(command.pid, resource.RLIMIT_AS)
        resource.prlimit(command.pid, resource.RLIMIT_AS, (mapped + 512 * MIB, hard))
        # Held whole: 4 GiB are needed as soon as the first byte is there.
        request = identity_request(1 << 15, 1 << 15)
        request.output.strides[:] = [1, 1 << 15]
        ended(client.stream([opening(request), chunk(0, bytes(MIB))]), "OUT_OF_MEMORY")
        client.check_alive()
        assert "Traceback" not in command.log


@pytest.mark.slow
def test_memory_returns_when_callers_that_never_read_are_gone(tmp_path):
    flags = (*BACKEND, "--stall-timeout-s", "0.2", "--max-streams", "11")
    with commanded(*flags, log=tmp_path / "log", env=EAGER) as (command, client):
        client.check_alive()
        idle = memory_kib(command.pid, "RssAnon")
        for number in range(1, 4):
            messages = as_stream(copies(1 << 15))
            calls = [client.start(messages, timeout_s=None) for _ in range(8)]
            command.wait_for_log("STALLED", times=8 * number)
            for call in calls:
                call.cancel()
            client.check_alive()
        # A few MiB for each of them would be more.
        assert memory_kib(command.pid, "RssAnon") < idle + 24 * 1024
