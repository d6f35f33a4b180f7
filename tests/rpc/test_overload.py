"""Full servers, callers that stop or break off, and memory: what one takes hurts no other."""

import asyncio
import itertools
import logging
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import grpc
import numpy as np
import pytest

import gradwire
from gradwire import Client, ops, v1
from gradwire_server import LocalClient
from gradwire_server.engine import EvaluationRequest, Preparer, TensorSpec
from support import raw_calls, servers
from support.clients import ONCE, halved
from support.processes import EAGER, memory_kib, running_command
from support.raw_calls import ManyCall, RawClient, named, published_request, refused, wait_until
from support.relay import relaying
from support.servers import gated, laborious, served, serving, wait_for, wait_idle

MIB = 1 << 20


def check_overload(answer, setting, *, in_band=False):
    refusal = refused(answer, "OVERLOADED", in_band=in_band, limit=setting)
    assert f"GRADWIRE_{setting.upper()})" in refusal.message


def test_streams_beyond_max_streams_are_asked_to_come_back():
    with served(max_streams=3) as (server, client):
        with ManyCall(client) as many:
            many.send(named(published_request(), "a"))
            many.receive()
            held = [raw_calls.WaitingStream(client, early=1) for _ in range(2)]
            answer = client.stream(raw_calls.as_stream(published_request()))
            check_overload(answer, "max_streams", in_band=True)
            # Before its open is read.
            assert client.stream([]).refusal is not None
            with ManyCall(client) as other:
                raw_calls.ended(other.refusal(), "OVERLOADED")
            # Unary calls take no place.
            assert client.evaluate(published_request()).refusal is None
            for each in held:
                each.finish()
        wait_idle(server)
        client.check_alive()


def test_requests_beyond_max_memory_bytes_are_asked_to_come_back():
    with served(max_memory_bytes=1) as (server, client):
        held = raw_calls.WaitingStream(client, early=1)
        for how in raw_calls.BOTH_WAYS:
            answer = client.ask(published_request(), how)
            check_overload(answer, "max_memory_bytes", in_band=how == "EvaluateStream")
        held.cancel()
        wait_idle(server)
        # One alone is let in, however little is allowed.
        client.check_alive()


def test_evaluations_wait_for_a_thread_and_those_beyond_max_queue_are_refused_at_once():
    with (
        gated(max_queue=1) as (server, gate),
        RawClient(server.address) as client,
        ManyCall(client) as many,
    ):
        streams = [raw_calls.WaitingStream(client, laborious()) for _ in range(3)]
        calls = [client.stub.Evaluate.future(laborious()) for _ in range(3)]
        # One computes and one is next.
        wait_for(server, computing=2, waiting=1)
        check_overload(client.evaluate(laborious()), "max_queue")
        # Small evaluations neither wait for them nor delay them.
        assert client.evaluate(published_request()).refusal is None
        # Streams wait for their turns and are refused none.
        for stream in streams:
            stream.send()
        wait_for(server, computing=2, waiting=4)
        many.send(*(named(laborious(), name) for name in "abc"))
        wait_for(server, computing=2, waiting=5)  # equal ones of one caller are a batch
        gate.set()
        (data,) = {call.result().data for call in calls}
        for stream in streams:
            answer = raw_calls.read_all(stream.call, itertools.chain([stream.opened], stream.call))
            assert (answer.refusal, answer.data) == (None, data)
        results = {name: each.result.data for name, each in many.answers().items()}
        assert results == dict.fromkeys("abc", data)
        wait_idle(server)
        assert server.server.service.admission.refusals == {"max_queue": 1}


def test_callers_that_fall_silent_or_do_not_read_hold_no_thread():
    with (
        raw_calls.silence([raw_calls.opening(published_request())]) as at_once,
        raw_calls.silence(raw_calls.unfinished()) as later,
        served(compute_threads=1, max_queue_s=60.0) as (server, client),
        ThreadPoolExecutor(4) as pool,
    ):
        calls = [client.start(each()) for each in (at_once, later) for _ in range(6)]
        calls += [client.start(raw_calls.as_stream(raw_calls.copies(1 << 15))) for _ in range(4)]
        for call in calls:
            assert next(call).WhichOneof("message") == "opened"
        wait_for(server, computing=0, waiting=0)
        answers = pool.map(client.evaluate, [laborious()] * 8)
        assert [answer.refusal for answer in answers] == [None] * 8
        assert server.server.service.admission.streams == len(calls)
        for call in calls:
            call.cancel()
        wait_idle(server)


def test_a_burst_of_one_client_is_served_whole():
    array = np.ones((1, 1, 4, 4), np.float32)

    async def burst(address):
        async with gradwire.AsyncClient(address, retry=ONCE) as client:
            calls = [halved(client, array) for _ in range(600)]
            return [each.tobytes() for each in await asyncio.gather(*calls)]

    with serving(max_connection_calls=16) as server:
        assert len(set(asyncio.run(burst(server.address)))) == 1
        wait_idle(server)


LANCZOS = ops.JaxResize(method="lanczos5")
# Seconds of work in float64, in thousands of blocks.
LENGTHS = 500_000, 1_000_000


def build_long(client, **options):
    """Evaluate what takes long tables."""
    array = np.broadcast_to(np.ones(1), LENGTHS[:1])
    return client.evaluate(LANCZOS, array, output_shape=LENGTHS[1:], **options)


def test_a_server_stops_building_when_the_deadline_has_passed(monkeypatch):
    # Tables that were built would be found in a cache large enough for them.
    large = partial(Preparer, most_kept=1 << 26)
    monkeypatch.setattr("gradwire_server.rpc.service_context.Preparer", large)
    with serving(compute_threads=1) as server:
        with Client(server.address) as client, pytest.raises(gradwire.DeadlineExceededError):
            build_long(client, timeout_s=0.2)
        service, float64 = server.server.service, np.dtype(np.float64)
        wait_until(lambda: not service.admission.computing)
        source, result = (TensorSpec.packed(float64, (length,)) for length in LENGTHS)
        asked = EvaluationRequest(LANCZOS.name, LANCZOS, source, result)
        assert not service.preparer.preparation(asked).is_quick


def test_the_time_of_a_local_call_is_looked_at_between_blocks():
    late = pytest.raises(gradwire.DeadlineExceededError, match="after 0 result bytes")
    with LocalClient("numpy_cpu") as client, late:
        build_long(client, timeout_s=0.2)


def short_message(length):
    """Ask in a few bytes for a table of many."""
    operator = v1.JaxResize(method=v1.JaxResize.METHOD_LANCZOS5)
    return v1.EvaluateRequest(
        operator=v1.Operator(jax_resize_grad=operator),
        input=raw_calls.float32(length, strides=(0,)),
        output=raw_calls.float32(16),
        data=bytes(4),
    )


def test_tables_that_do_not_fit_in_memory_are_refused_for_now_or_for_ever():
    limits = {"max_memory_bytes": 1 << 27, "max_request_memory_bytes": 1 << 27}
    with served(compute_threads=1, **limits) as (server, client), ThreadPoolExecutor(1) as pool:
        admission = server.server.service.admission
        never = client.evaluate(short_message(300_000))
        refused(never, "LIMIT_EXCEEDED", limit="max_memory_bytes")
        assert admission.entered == 0, "it is known before they are built"
        first = pool.submit(client.evaluate, short_message(250_000))
        wait_until(lambda: admission.memory_bytes)
        refused(client.evaluate(short_message(250_001)), "OVERLOADED", limit="max_memory_bytes")
        assert first.result(timeout=raw_calls.PATIENCE_S).refusal is None
        wait_until(lambda: not admission.memory_bytes)


def test_many_tables_of_one_address_hold_up_no_table_of_another():
    with (
        serving(address="[::]:0", insecure=True, compute_threads=1, max_queue_s=60) as server,
        ThreadPoolExecutor(12) as pool,
        ExitStack() as stack,
    ):
        port = server.address.rpartition(":")[2]
        callers = [stack.enter_context(RawClient(f"127.0.0.1:{port}")) for _ in range(12)]
        other = stack.enter_context(RawClient(f"[::1]:{port}"))
        greedy = [
            pool.submit(caller.evaluate, short_message(100_000 + number))
            for number, caller in enumerate(callers)
        ]
        active = server.server.service.active
        wait_until(lambda: active.in_phase["queue"] >= len(greedy))
        assert other.evaluate(short_message(100_100)).refusal is None
        assert not all(call.done() for call in greedy)
        assert [call.result(timeout=raw_calls.PATIENCE_S).refusal for call in greedy] == [
            None
        ] * len(greedy)


def test_a_backend_that_may_wait_holds_up_no_other_call():
    backend = servers.Gated(least_work=0, may_wait=True)
    backend.gate.clear()
    with (
        served(backend=backend, compute_threads=3) as (_, client),
        ManyCall(client) as many,
        ThreadPoolExecutor(2) as pool,
    ):
        many.send(named(published_request(), "one"))
        calls = [pool.submit(client.ask, published_request(), how) for how in raw_calls.BOTH_WAYS]
        for _ in range(3):
            assert backend.at_work.acquire(timeout=raw_calls.PATIENCE_S)
        question = v1.ListOperatorsRequest()
        assert client.stub.ListOperators(question, timeout=raw_calls.PATIENCE_S).operators
        backend.gate.set()
        results = {call.result(timeout=raw_calls.PATIENCE_S).data for call in calls}
        assert results | {many.receive().result.data} == {raw_calls.PUBLISHED_RESULT}


STALL_S = 2.5


@pytest.fixture(scope="module")
def server():
    """Run a server that soon ends callers that stop."""
    with serving(stall_timeout_s=STALL_S, compute_threads=1) as server:
        yield server


client = pytest.fixture(servers.lasting_client)
# Open and the data.
WHOLE = raw_calls.as_stream(published_request())


@pytest.mark.parametrize("messages", [[], WHOLE[:1], raw_calls.unfinished(), WHOLE], ids=len)
def test_silent_writers_end(client, messages):
    with raw_calls.silence(messages) as silent:
        refusal = raw_calls.ended(client.stream(silent()), "STALLED", timeout_s=STALL_S)
    assert str(STALL_S) in refusal.message


def test_a_caller_of_many_that_falls_silent_is_ended(client):
    for answered in (0, 3):
        with ManyCall(client) as call:
            for number in range(answered):
                call.send(named(published_request(), str(number)))
                call.receive()
            raw_calls.ended(call.refusal(), "STALLED", timeout_s=STALL_S)


def test_each_message_renews_the_stall_timeout():
    data = bytes(64 << 10)

    def messages():
        yield raw_calls.opening(raw_calls.identity_request(4, 4 << 10))
        for each in raw_calls.chunks(data, 16 << 10):
            time.sleep(1.0)
            yield each

    with served(stall_timeout_s=3.0) as (_, client):
        assert client.stream(messages()).data == data


def test_readers_that_stop_are_ended(server, client):
    admission = server.server.service.admission
    before = admission.entered
    calls = [client.start(raw_calls.as_stream(raw_calls.copies(1 << 15))) for _ in range(4)]
    first = [next(calls[0]) for _ in range(3)]
    wait_until(lambda: admission.entered >= before + len(calls))
    wait_idle(server)
    for came, call in zip((first, [], [], []), calls, strict=True):
        # Chunks in transit still arrive, and then the error.
        answer = raw_calls.read_all(call, itertools.chain(came, call))
        refused(answer, "STALLED")
        assert len(answer.data) < 64 * MIB


def test_a_caller_of_many_that_does_not_read_ends(server, client):
    admission = server.server.service.admission
    before = admission.entered
    with ManyCall(client) as call:
        # Answers of 1 MiB: far more of them than any buffers on the way could hold.
        call.send(*(named(raw_calls.copies(512), str(number)) for number in range(500)))
        # It may have been ended before anybody looks.
        wait_until(lambda: admission.entered > before)
        wait_idle(server)
        refused(call.refusal(), "STALLED", timeout_s=STALL_S)
        assert call.answered < 100


@pytest.mark.parametrize(("size", "fits"), [(32 << 10, True), (256 << 20, False)])
def test_writing_all_before_reading_is_served_where_flow_control_lets_it_through(
    server, client, size, fits
):
    admission = server.server.service.admission
    before = admission.entered
    written, data = [], bytes(range(256)) * (size // 256)

    def messages():
        yield raw_calls.opening(raw_calls.identity_request(size >> 14, 1 << 12))
        for each in raw_calls.chunks(data, 256 << 10):
            yield each
            written.append(len(each.chunk.data))

    call = client.start(messages())
    if fits:
        wait_until(lambda: sum(written) == size)
        assert raw_calls.read_all(call).data == data
        return
    # It may have been ended before anybody looks, which grpc does not tell who has not read.
    wait_until(lambda: admission.entered > before)
    held = 0
    # Once the stream has ended grpc takes the rest of the messages and drops them.
    while admission.streams:
        held = sum(written)
        time.sleep(0.001)
    wait_idle(server)
    # No more was written than the buffers in transit hold.
    assert held < 64 * MIB
    refused(raw_calls.read_all(call), "STALLED")


@pytest.mark.parametrize("how", [*raw_calls.BOTH_WAYS, "EvaluateMany", "cancelled"])
def test_work_stops_with_its_call(server, client, how):
    late = grpc.StatusCode.DEADLINE_EXCEEDED
    if how == "cancelled":
        call = client.stub.Evaluate.future(raw_calls.summed(1 << 18), timeout=raw_calls.PATIENCE_S)
        wait_until(lambda: server.server.service.admission.memory_bytes)
        call.cancel()
    elif how == "EvaluateMany":
        with ManyCall(client, timeout_s=0.3) as many:
            many.send(*(named(raw_calls.summed(1 << 18), str(number)) for number in range(8)))
            assert many.refusal().code is late
    else:
        assert client.ask(raw_calls.summed(1 << 18), how, timeout_s=0.3).code is late
    wait_idle(server)
    # Threads are free: this is too long for the event loop.
    assert client.evaluate(laborious()).refusal is None


def test_a_computation_longer_than_the_stall_timeout_is_no_stall():
    with gated(stall_timeout_s=3.0) as (server, gate), RawClient(server.address) as client:
        call = client.start(raw_calls.as_stream(laborious()))
        wait_for(server, computing=1, waiting=0)
        with ManyCall(client) as many:
            many.send(named(laborious(), "one"))
            time.sleep(3.5)  # nothing moves but the computing thread
            gate.set()
            data = raw_calls.read_all(call).data
            assert len(data) == 16
            assert many.receive().result.data == data


def test_a_broken_connection_is_no_fault_of_the_server(caplog):
    # A write reports a broken connection sometimes before and sometimes after the call has ended.
    times = 30
    with caplog.at_level(logging.INFO), serving(compute_threads=1) as server:
        in_phase = server.server.service.active.in_phase
        for _ in range(times):
            with relaying(server.address) as relay, RawClient(relay.address) as client:
                # More results than any buffers on the way hold, and none is read.
                many = ManyCall(client)
                stream = client.start(raw_calls.as_stream(raw_calls.copies(1 << 12)))
                many.send(*(named(raw_calls.copies(512), str(number)) for number in range(40)))
                wait_until(lambda: in_phase["send"] >= 2)
                time.sleep(0.05)  # until all buffers are full and writes wait for them
                relay.close()
                del many, stream
                wait_idle(server)
    calls = [vars(each)["facts"] for each in caplog.records if each.getMessage() == "call"]
    assert [each["status"] for each in calls] == ["CANCELLED"] * 2 * times
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


ROWS = 1024
DATA = bytes(ROWS * 4096)
# Kernels that are loaded later would count as memory of calls.
BACKEND = ("--backend", "auto", "--wait-for-kernels")


def doubling(*data):
    """Ask for twice the rows of a 4 MiB input."""
    request = raw_calls.identity_request(ROWS, 1024)
    request.output.sizes[0] = 2 * ROWS
    return [raw_calls.opening(request), *data]


def complete(client):
    answer = client.stream(doubling(*raw_calls.chunks(DATA, MIB)))
    assert answer.refusal is None
    assert len(answer.data) == 2 * len(DATA)


def fail(client):
    messages = doubling(*raw_calls.chunks(DATA[: 3 * MIB], MIB), raw_calls.chunk(3, b"\0"))
    assert client.stream(messages).code is grpc.StatusCode.INVALID_ARGUMENT


def cancel(client):
    with raw_calls.silence(doubling(*raw_calls.chunks(DATA[: 3 * MIB], MIB))) as silent:
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


GIANTS = {
    "256 GiB": (raw_calls.float32(1 << 18, 1 << 18), raw_calls.float32(1 << 18, 1 << 18)),
    "long rows": (raw_calls.float32(2, 1 << 23), raw_calls.float32(2, 1 << 23)),
    "held whole": (raw_calls.float32(4096, 4096), raw_calls.float32(4096, 4096, strides=(1, 4096))),
}


@pytest.mark.parametrize(("source", "result"), GIANTS.values(), ids=list(GIANTS))
def test_nothing_is_allocated_before_bytes_arrive(command, source, result):
    request = raw_calls.identity_request(1)
    request.input.CopyFrom(source)
    request.output.CopyFrom(result)
    with (
        RawClient(command.address) as client,
        raw_calls.silence([raw_calls.opening(request)]) as silent,
    ):
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
    with servers.commanded(*BACKEND, log=tmp_path / "log", env=EAGER) as (command, client):
        burst(client)
        level = memory_kib(command.pid, "VmHWM")
        opened = raw_calls.opening(raw_calls.identity_request(1 << 14, 1024))
        data = (raw_calls.chunk(number * MIB, bytes(MIB)) for number in range(64))
        received = client.start(itertools.chain([opened], data))
        assert sum(len(each.chunk.data) for each in received) == 64 * MIB
        assert memory_kib(command.pid, "VmHWM") < level + 48 * 1024


@pytest.mark.slow
def test_a_server_out_of_memory_says_so_and_stays_up(tmp_path):
    flags = ("--max-request-memory-bytes", str(64 << 30), "--max-memory-bytes", str(64 << 30))
    with servers.commanded(*BACKEND, *flags, log=tmp_path / "log", env=EAGER) as (command, client):
        burst(client)
        mapped = memory_kib(command.pid, "VmSize") * 1024
        _, hard = resource.prlimit(command.pid, resource.RLIMIT_AS)
        resource.prlimit(command.pid, resource.RLIMIT_AS, (mapped + 512 * MIB, hard))
        # Held whole: 4 GiB are needed as soon as the first byte is there.
        request = raw_calls.identity_request(1 << 15, 1 << 15)
        request.output.strides[:] = [1, 1 << 15]
        raw_calls.ended(
            client.stream([raw_calls.opening(request), raw_calls.chunk(0, bytes(MIB))]),
            "OUT_OF_MEMORY",
        )
        client.check_alive()
        assert "Traceback" not in command.log


@pytest.mark.slow
def test_memory_returns_when_callers_that_never_read_are_gone(tmp_path):
    flags = (*BACKEND, "--stall-timeout-s", "1", "--max-streams", "11")
    with servers.commanded(*flags, log=tmp_path / "log", env=EAGER) as (command, client):
        client.check_alive()
        idle = memory_kib(command.pid, "RssAnon")
        for number in range(1, 4):
            messages = raw_calls.as_stream(raw_calls.copies(1 << 15))
            calls = [client.start(messages, timeout_s=None) for _ in range(8)]
            command.wait_for_log("STALLED", times=8 * number)
            for call in calls:
                call.cancel()
            client.check_alive()
        # A few MiB for each of them would be more.
        assert memory_kib(command.pid, "RssAnon") < idle + 24 * 1024


def test_memory_goes_back_to_the_system_once_calls_are_over(tmp_path):
    request = raw_calls.identity_request(896, 1024, data=bytes(896 * 4096))
    with (
        servers.commanded(log=tmp_path / "log") as (command, client),
        ThreadPoolExecutor(8) as pool,
    ):
        # The first call loads what all later ones use.
        client.evaluate(request)
        client.check_alive()
        idle = memory_kib(command.pid, "RssAnon")
        answers = pool.map(client.evaluate, [request] * 64)
        assert None in {each.refusal for each in answers}
        # The C library would keep 30 MiB to 60 MiB.
        wait_until(lambda: memory_kib(command.pid, "RssAnon") < idle + 20 * 1024)


def test_shorter_tables_are_ready_before_longer_ones_that_came_first():
    with (
        serving(compute_threads=1) as server,
        Client(server.address) as client,
        Client(server.address) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        first = pool.submit(build_long, client)
        admission = server.server.service.admission
        wait_until(lambda: admission.computing)
        other.evaluate(LANCZOS, np.ones(16), output_shape=(5_000,))
        assert not first.done()
        client.close()
        with pytest.raises(gradwire.CallCancelledError):
            first.result(timeout=raw_calls.PATIENCE_S)
        wait_until(lambda: not (admission.memory_bytes or admission.computing))
