"""Full servers, slow callers, long work: memory stays bounded, others are served."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import resource
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from gradwire import (
    AsyncClient,
    CallCancelledError,
    Client,
    DeadlineExceededError,
    RetryPolicy,
    ops,
    v1,
)
from gradwire_server import LocalClient
from gradwire_server.engine import EvaluationRequest, Limits, Preparer, TableCache, TensorSpec
from gradwire_server.errors import RETRY_AFTER_S
from support.clients import halved
from support.processes import EAGER, Command, memory_kib, running_command
from support.raw_calls import (
    BOTH_WAYS,
    PATIENCE_S,
    PUBLISHED_RESULT,
    Answer,
    ManyCall,
    RawClient,
    WaitingStream,
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
    read_all,
    refused,
    silence,
    summed,
    wait_until,
)
from support.refusals import Refusal, check_in_band
from support.relay import relaying
from support.servers import (
    Gated,
    ServerThread,
    commanded,
    gated,
    laborious,
    served,
    serving,
    wait_for,
    wait_idle,
)

MIB = 1 << 20
# One that computes and one that is next.
SLOTS = 2
MIDDLE = [opening(identity_request(1 << 20)), *(chunk(each * MIB, bytes(MIB)) for each in range(3))]


def check_overload(answer: Answer, setting: str, retry_after_s: float | None = None) -> Refusal:
    refusal = refused(answer, "OVERLOADED", limit=setting)
    assert retry_after_s is None or refusal.retry_after_s == retry_after_s
    assert f"GRADWIRE_{setting.upper()})" in refusal.message
    return refusal


def test_streams_beyond_max_streams_are_asked_to_come_back() -> None:
    with served(max_streams=3) as (server, client):
        with ManyCall(client) as many:
            many.send(named(published_request(), "a"))
            many.receive()
            held = [WaitingStream(client, early=1) for _ in range(2)]
            answer = client.stream(as_stream(published_request()))
            check_in_band(check_overload(answer, "max_streams", RETRY_AFTER_S))
            # Before its open is read.
            assert client.stream([]).refusal is not None
            with ManyCall(client) as other:
                ended(other.refusal(), "OVERLOADED")
            # Unary calls take no place.
            assert client.evaluate(published_request()).refusal is None
            for each in held:
                each.finish()
        wait_idle(server)
        client.check_alive()


@pytest.mark.parametrize("how", BOTH_WAYS)
@pytest.mark.parametrize("known", [False, True])
def test_requests_beyond_max_memory_bytes_are_asked_to_come_back(how: str, *, known: bool) -> None:
    with served(max_memory_bytes=1) as (server, client):
        if known:
            client.check_alive()
        held = WaitingStream(client, early=1)
        # Once calls were measured the delay is an estimate.
        retry_after_s = None if known else 0.25
        answer = client.ask(published_request(), how)
        refusal = check_overload(answer, "max_memory_bytes", retry_after_s)
        if how == "EvaluateStream":
            check_in_band(refusal)
        held.cancel()
        wait_idle(server)
        # One alone is let in, however little is allowed.
        client.check_alive()


@contextmanager
def busy(
    count: int, **settings: Any
) -> Generator[tuple[ServerThread, threading.Event, RawClient, list[Any]]]:
    """Give a server that computes and so many calls, of which all but two wait behind its gate.

    In the end all that were not cancelled are served, and the server is idle and goes on.
    """
    with gated(**settings) as (server, gate), RawClient(server.address) as client:
        calls = [client.stub.Evaluate.future(laborious()) for _ in range(count)]
        wait_for(server, computing=SLOTS, waiting=count - SLOTS)
        yield server, gate, client, calls
        gate.set()
        results = {call.result().data for call in calls if not call.cancelled()}
        assert len(results) == 1
        wait_for(server, computing=0, waiting=0)
        wait_idle(server)
        client.check_alive()


def test_evaluations_wait_for_a_thread_and_those_beyond_max_queue_are_refused_at_once() -> None:
    with busy(3, max_queue=1) as (server, _, client, _):
        check_overload(client.evaluate(laborious()), "max_queue")
        # Small evaluations neither wait for them nor delay them.
        assert client.evaluate(published_request()).refusal is None
    assert server.server.service.admission.refusals == {"max_queue": 1}


def test_a_caller_that_is_gone_or_beyond_its_deadline_frees_its_place() -> None:
    with busy(5) as (server, _, client, calls):
        admission = server.server.service.admission
        held = admission.memory_bytes
        late = client.evaluate(laborious(), timeout_s=0.2)
        assert late.code is grpc.StatusCode.DEADLINE_EXCEEDED
        wait_for(server, computing=SLOTS, waiting=3)
        for call in calls[2:]:
            call.cancel()
        # Those two may be others than the first.
        wait_until(lambda: admission.memory_bytes <= held * 2 // 5)


def test_callers_that_fall_silent_or_do_not_read_hold_no_thread() -> None:
    with (
        silence([opening(published_request())]) as at_once,
        silence(MIDDLE) as later,
        served(compute_threads=1, max_queue_s=60.0) as (server, client),
        ThreadPoolExecutor(4) as pool,
    ):
        calls = [client.start(each()) for each in (at_once, later) for _ in range(6)]
        calls += [client.start(as_stream(copies(1 << 15))) for _ in range(4)]
        for call in calls:
            assert next(call).WhichOneof("message") == "opened"
        wait_for(server, computing=0, waiting=0)
        answers = pool.map(client.evaluate, [laborious()] * 8)
        assert [answer.refusal for answer in answers] == [None] * 8
        assert server.server.service.admission.streams == len(calls)
        for call in calls:
            call.cancel()
        wait_idle(server)


def test_streams_wait_for_their_turn_and_are_never_refused_one() -> None:
    with (
        gated(max_queue=1) as (server, gate),
        RawClient(server.address) as client,
        ManyCall(client) as many,
    ):
        streams = [WaitingStream(client, laborious()) for _ in range(3)]
        calls = [client.stub.Evaluate.future(laborious()) for _ in range(3)]
        wait_for(server, computing=SLOTS, waiting=1)
        for stream in streams:
            stream.send()
        wait_for(server, computing=SLOTS, waiting=4)
        many.send(*(named(laborious(), name) for name in "abc"))
        wait_for(server, computing=SLOTS, waiting=5)  # equal ones of one caller are a batch
        gate.set()
        data = calls[0].result().data
        for stream in streams:
            answer = read_all(stream.call, itertools.chain([stream.opened], stream.call))
            assert (answer.refusal, answer.data) == (None, data)
        results = {name: each.result.data for name, each in many.answers().items()}
        assert results == dict.fromkeys("abc", data)
        wait_idle(server)


def test_a_burst_of_one_client_is_served_whole() -> None:
    array = np.ones((1, 1, 4, 4), np.float32)

    async def burst(address: str) -> list[bytes]:
        async with AsyncClient(address, retry=RetryPolicy(max_attempts=1)) as client:
            calls = [halved(client, array) for _ in range(600)]
            return [each.tobytes() for each in await asyncio.gather(*calls)]

    with serving(max_connection_calls=16) as server:
        assert len(set(asyncio.run(burst(server.address)))) == 1
        wait_idle(server)


LANCZOS = ops.JaxResize(method="lanczos5")
# Seconds of work in float64, in thousands of blocks.
LENGTHS = 500_000, 1_000_000


def evaluation(inputs: int, outputs: int) -> EvaluationRequest:
    float64 = np.dtype(np.float64)
    source, result = (TensorSpec.packed(float64, (length,)) for length in (inputs, outputs))
    return EvaluationRequest(LANCZOS.name, LANCZOS, source, result)


def build_long(client: Client | LocalClient, **options: Any) -> object:
    """Evaluate what takes long tables."""
    array = np.broadcast_to(np.ones(1), LENGTHS[:1])
    return client.evaluate(LANCZOS, array, output_shape=LENGTHS[1:], **options)


def test_a_check_is_called_between_blocks_and_ends_what_it_refuses() -> None:
    preparer = Preparer(Limits(), TableCache(max_entries=1 << 24))
    asked = evaluation(50_000, 40_000)
    calls: list[int] = []

    def check() -> None:
        calls.append(len(calls))
        if len(calls) == 5:
            raise KeyError

    with pytest.raises(KeyError):
        preparer.prepare(asked, check=check)
    assert not preparer.preparation(asked).is_quick
    calls[:] = range(5)
    expected = Preparer(Limits(), TableCache(max_entries=0)).prepare(asked)
    assert preparer.prepare(asked, check=check).digest == expected.digest
    assert preparer.preparation(asked).is_quick
    assert len(calls) > 10


def test_a_server_stops_building_when_the_deadline_has_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Tables that were built would be found in a cache large enough for them.
    large = partial(TableCache, max_entries=1 << 26)
    monkeypatch.setattr("gradwire_server.server.TableCache", large)
    with serving(compute_threads=1) as server:
        with Client(server.address) as client, pytest.raises(DeadlineExceededError):
            build_long(client, timeout_s=0.2)
        service = server.server.service
        wait_until(lambda: not service.admission.computing)
        assert not service.preparer.preparation(evaluation(*LENGTHS)).is_quick


def test_the_time_of_a_local_call_is_looked_at_between_blocks() -> None:
    late = pytest.raises(DeadlineExceededError, match="while tables were built")
    with LocalClient("numpy_cpu") as client, late:
        build_long(client, timeout_s=0.2)


def short_message(length: int) -> v1.EvaluateRequest:
    """Ask in a few bytes for a table of many."""
    operator = v1.JaxResize(method=v1.JaxResize.METHOD_LANCZOS5)
    return v1.EvaluateRequest(
        operator=v1.Operator(jax_resize_grad=operator),
        input=float32(length, strides=(0,)),
        output=float32(16),
        data=bytes(4),
    )


def test_tables_that_do_not_fit_in_memory_are_refused_for_now() -> None:
    with (
        served(compute_threads=1, max_memory_bytes=1 << 27) as (server, client),
        ThreadPoolExecutor(1) as pool,
    ):
        admission = server.server.service.admission
        first = pool.submit(client.evaluate, short_message(300_000))
        wait_until(lambda: admission.memory_bytes)
        refused(client.evaluate(short_message(300_001)), "OVERLOADED", limit="max_memory_bytes")
        assert first.result(timeout=PATIENCE_S).refusal is None
        wait_until(lambda: not admission.memory_bytes)


def test_tables_larger_than_the_memory_of_all_are_refused_before_they_are_built() -> None:
    limits = {"max_memory_bytes": 1 << 26, "max_request_memory_bytes": 1 << 26}
    with served(compute_threads=1, **limits) as (server, client):
        answer = client.evaluate(short_message(1_000_000))
        refused(answer, "LIMIT_EXCEEDED", limit="max_memory_bytes")
        assert server.server.service.admission.entered == 0


def test_shorter_tables_are_ready_before_longer_ones_that_came_first() -> None:
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
        with pytest.raises(CallCancelledError):
            first.result(timeout=PATIENCE_S)
        wait_until(lambda: not (admission.memory_bytes or admission.computing))


def test_many_tables_of_one_address_hold_up_no_table_of_another() -> None:
    with (
        serving(address="[::]:0", insecure=True, compute_threads=1, max_queue_s=60) as server,
        ThreadPoolExecutor(12) as pool,
        contextlib.ExitStack() as stack,
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
        # Two are built at once: those under way, and those beside the other's.
        assert sum(call.done() for call in greedy) <= 5
        assert [call.result(timeout=PATIENCE_S).refusal for call in greedy] == [None] * len(greedy)


def test_a_backend_that_may_wait_holds_up_no_other_call() -> None:
    backend = Gated(least_work=0, may_wait=True)
    backend.gate.clear()
    with (
        served(backend=backend, compute_threads=3) as (_, client),
        ManyCall(client) as many,
        ThreadPoolExecutor(2) as pool,
    ):
        many.send(named(published_request(), "one"))
        calls = [pool.submit(client.ask, published_request(), how) for how in BOTH_WAYS]
        for _ in range(3):
            assert backend.at_work.acquire(timeout=PATIENCE_S)
        question = v1.ListOperatorsRequest()
        assert client.stub.ListOperators(question, timeout=PATIENCE_S).operators
        backend.gate.set()
        results = {call.result(timeout=PATIENCE_S).data for call in calls}
        assert results | {many.receive().result.data} == {PUBLISHED_RESULT}


STALL_S = 0.4


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    """Run a server that soon ends callers that stop."""
    with serving(stall_timeout_s=STALL_S, compute_threads=1) as server:
        yield server


@pytest.fixture
def client(server: ServerThread) -> Iterator[RawClient]:
    with RawClient(server.address) as client:
        yield client
        client.check_alive()
    wait_idle(server)


MUTE = {
    "from the start": [],
    "after open": [opening(published_request())],
    "in the middle": MIDDLE,
    "before the half-close": as_stream(published_request()),
}


@pytest.mark.parametrize("messages", MUTE.values(), ids=list(MUTE))
def test_a_writer_that_falls_silent_is_ended(
    client: RawClient, messages: list[v1.EvaluateStreamRequest]
) -> None:
    with silence(messages) as silent:
        refusal = ended(client.stream(silent()), "STALLED", timeout_s=STALL_S)
    assert str(STALL_S) in refusal.message


@pytest.mark.parametrize("answered", [0, 3])
def test_a_caller_of_many_that_falls_silent_is_ended(client: RawClient, answered: int) -> None:
    with ManyCall(client) as call:
        for number in range(answered):
            call.send(named(published_request(), str(number)))
            call.receive()
        ended(call.refusal(), "STALLED", timeout_s=STALL_S)


def pass_time(seconds: float) -> None:
    assert not threading.Event().wait(seconds)


def test_each_message_renews_the_stall_timeout() -> None:
    data = bytes(64 << 10)

    def messages() -> Iterator[v1.EvaluateStreamRequest]:
        yield opening(identity_request(4, 4 << 10))
        for each in chunks(data, 16 << 10):
            pass_time(0.4)
            yield each

    with served(stall_timeout_s=1.2) as (_, client):
        assert client.stream(messages()).data == data


@pytest.mark.parametrize(("count", "read"), [(4, 0), (1, 3)])
def test_readers_that_stop_are_ended_and_give_their_memory_back(
    server: ServerThread, client: RawClient, count: int, read: int
) -> None:
    admission = server.server.service.admission
    before = admission.entered
    calls = [client.start(as_stream(copies(1 << 15))) for _ in range(count)]
    first = [[next(call) for _ in range(read)] for call in calls]
    wait_until(lambda: admission.entered >= before + count)
    wait_idle(server)
    for came, call in zip(first, calls, strict=True):
        # Chunks in transit still arrive, and then the error.
        answer = read_all(call, itertools.chain(came, call))
        refused(answer, "STALLED")
        assert len(answer.data) < 64 * MIB


def test_a_caller_of_many_that_does_not_read_is_held_back_and_ended(
    server: ServerThread, client: RawClient
) -> None:
    admission = server.server.service.admission
    before = admission.entered
    with ManyCall(client) as call:
        # Answers of 1 MiB: far more of them than any buffers on the way could hold.
        call.send(*(named(copies(512), str(number)) for number in range(500)))
        # It may have been ended before anybody looks.
        wait_until(lambda: admission.entered > before)
        wait_idle(server)
        refused(call.refusal(), "STALLED", timeout_s=STALL_S)
        assert call.answered < 100


@pytest.mark.parametrize(("size", "fits"), [(32 << 10, True), (256 << 20, False)])
def test_writing_all_before_reading_is_served_where_flow_control_lets_it_through(
    server: ServerThread, client: RawClient, size: int, *, fits: bool
) -> None:
    written, pattern = list[int](), bytes(range(256))

    def messages() -> Iterator[v1.EvaluateStreamRequest]:
        yield opening(identity_request(size >> 14, 1 << 12))
        for each in chunks(pattern * (size // 256), 256 << 10):
            yield each
            written.append(len(each.chunk.data))

    call = client.start(messages())
    if fits:
        wait_until(lambda: sum(written) == size)
        assert read_all(call).data == pattern * (size // 256)
        return
    # On a busy machine it may have come and gone before anybody looks.
    wait_until(lambda: server.server.service.admission.streams or not call.is_active())
    wait_idle(server)
    # No more was written than the buffers in transit hold.
    assert sum(written) < 64 * MIB
    refused(read_all(call), "STALLED")


@pytest.mark.parametrize("how", [*BOTH_WAYS, "EvaluateMany", "cancelled"])
def test_work_stops_when_the_deadline_passes_or_the_call_is_cancelled(
    server: ServerThread, client: RawClient, how: str
) -> None:
    late = grpc.StatusCode.DEADLINE_EXCEEDED
    if how == "cancelled":
        call = client.stub.Evaluate.future(summed(1 << 18), timeout=PATIENCE_S)
        wait_until(lambda: server.server.service.admission.memory_bytes)
        call.cancel()
    elif how == "EvaluateMany":
        with ManyCall(client, timeout_s=0.3) as many:
            many.send(*(named(summed(1 << 18), str(number)) for number in range(8)))
            assert many.refusal().code is late
    else:
        assert client.ask(summed(1 << 18), how, timeout_s=0.3).code is late
    wait_idle(server)
    # Threads are free: this is too long for the event loop.
    assert client.evaluate(laborious()).refusal is None


def test_a_computation_longer_than_the_stall_timeout_is_no_stall() -> None:
    with (
        gated(stall_timeout_s=0.6) as (server, gate),
        RawClient(server.address) as client,
        ManyCall(client) as many,
    ):
        call = client.start(as_stream(laborious()))
        wait_for(server, computing=1, waiting=0)
        many.send(named(laborious(), "one"))
        pass_time(0.9)  # nothing moves but the computing thread
        gate.set()
        data = read_all(call).data
        assert len(data) == 16
        assert many.receive().result.data == data


# What a write tells of a broken connection comes sometimes before and sometimes after its end.
TIMES = 30


def many_copies(client: RawClient) -> object:
    """Order more results than any buffers on the way hold, and read none."""
    call = ManyCall(client)
    call.send(*(named(copies(512), str(number)) for number in range(40)))
    return call


def stream_of_copies(client: RawClient) -> object:
    """Order one such result."""
    return client.start(as_stream(copies(1 << 12)))


@pytest.mark.parametrize("ask", [many_copies, stream_of_copies])
def test_a_connection_that_breaks_while_the_server_writes_is_no_fault_of_the_server(
    ask: Callable[[RawClient], object], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), serving(compute_threads=1) as server:
        in_phase = server.server.service.active.in_phase
        for _ in range(TIMES):
            with relaying(server.address) as relay, RawClient(relay.address) as client:
                call = ask(client)
                wait_until(lambda: in_phase["send"])
                pass_time(0.05)  # until all buffers are full and a write waits for them
                relay.close()
                del call
                wait_idle(server)
    ended = [vars(each)["facts"] for each in caplog.records if each.getMessage() == "call"]
    assert [each["status"] for each in ended] == ["CANCELLED"] * TIMES
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


ROWS = 1024
DATA = bytes(ROWS * 4096)
# Kernels that are loaded later would count as memory of calls.
BACKEND = ("--backend", "auto", "--wait-for-kernels")


def doubling(*data: v1.EvaluateStreamRequest) -> list[v1.EvaluateStreamRequest]:
    """Ask for twice the rows of a 4 MiB input."""
    request = identity_request(ROWS, 1024)
    request.output.sizes[0] = 2 * ROWS
    return [opening(request), *data]


def complete(client: RawClient) -> None:
    answer = client.stream(doubling(*chunks(DATA, MIB)))
    assert answer.refusal is None
    assert len(answer.data) == 2 * len(DATA)


def fail(client: RawClient) -> None:
    messages = doubling(*chunks(DATA[: 3 * MIB], MIB), chunk(3, b"\0"))
    assert client.stream(messages).code is grpc.StatusCode.INVALID_ARGUMENT


def cancel(client: RawClient) -> None:
    with silence(doubling(*chunks(DATA[: 3 * MIB], MIB))) as silent:
        call = client.start(silent())
        for _ in range(2):
            next(call)
        call.cancel()


def complete_many(client: RawClient) -> None:
    with ManyCall(client) as many:
        many.send(named(published_request(), "one"))
        assert list(many.answers()) == ["one"]


def fail_many(client: RawClient) -> None:
    with ManyCall(client) as many:
        many.send(named(published_request(), "one"), v1.EvaluateManyRequest())
        assert many.refusal().code is grpc.StatusCode.INVALID_ARGUMENT


def burst(client: RawClient, end: Callable[[RawClient], None] = complete) -> None:
    """Run eight streams, four at once."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(end, [client] * 8))


def test_no_task_is_left_however_streams_end() -> None:
    with served() as (server, client):
        client.check_alive()

        def tasks() -> int:
            return len(asyncio.all_tasks(server.loop))

        wait_idle(server)
        before = tasks()
        for end in (complete, fail, cancel, complete_many, fail_many):
            for _ in range(3):
                end(client)
            wait_until(lambda: tasks() <= before)


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """Run a server that has loaded what calls use."""
    log = tmp_path_factory.mktemp("memory") / "log"
    with running_command(*BACKEND, log=log, env=EAGER) as command:
        with RawClient(command.address) as client:
            complete(client)
        yield command


@pytest.mark.slow
def test_memory_returns_to_its_level_however_streams_end(command: Command) -> None:
    with RawClient(command.address) as client:
        burst(client)
        level = memory_kib(command.pid, "RssAnon")
        for end in (complete, fail, cancel) * 3:
            burst(client, end)
            client.check_alive()
            # A few MiB for each stream that ended would be more.
            assert memory_kib(command.pid, "RssAnon") < level + 24 * 1024


@pytest.mark.slow
def test_memory_returns_when_callers_that_never_read_are_gone(tmp_path: Path) -> None:
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


def test_memory_goes_back_to_the_system_once_calls_are_over(tmp_path: Path) -> None:
    request = identity_request(896, 1024, data=bytes(896 * 4096))
    with commanded(log=tmp_path / "log") as (command, client), ThreadPoolExecutor(8) as pool:
        # The first call loads what all later ones use.
        client.evaluate(request)
        client.check_alive()
        idle = memory_kib(command.pid, "RssAnon")
        list(pool.map(client.evaluate, [request] * 64))
        wait_until(lambda: memory_kib(command.pid, "RssAnon") < 1.2 * idle)


GIANTS: dict[str, tuple[v1.TensorDescriptor, v1.TensorDescriptor]] = {
    "256 GiB": (float32(1 << 18, 1 << 18), float32(1 << 18, 1 << 18)),
    "long rows": (float32(2, 1 << 23), float32(2, 1 << 23)),
    "held whole": (float32(4096, 4096), float32(4096, 4096, strides=(1, 4096))),
}


@pytest.mark.parametrize(("source", "result"), GIANTS.values(), ids=list(GIANTS))
def test_nothing_is_allocated_before_bytes_arrive(
    command: Command, source: v1.TensorDescriptor, result: v1.TensorDescriptor
) -> None:
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
def test_a_stream_needs_memory_for_what_overlaps_and_not_for_the_tensor(tmp_path: Path) -> None:
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
def test_a_server_out_of_memory_says_so_and_stays_up(tmp_path: Path) -> None:
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
