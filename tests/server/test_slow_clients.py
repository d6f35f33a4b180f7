"""Callers that stop reading or writing, run out of time or break off cost nothing for long."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator

import grpc
import pytest

from gradwire import v1
from support.raw_calls import (
    BOTH_WAYS,
    PATIENCE_S,
    ManyCall,
    RawClient,
    StreamCall,
    as_stream,
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
from support.relay import relaying
from support.servers import ServerThread, gated, laborious, serving, wait_for, wait_idle

STALL_S = 0.4


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
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
    "in the middle": [
        opening(identity_request(1 << 20)),
        *itertools.islice(chunks(bytes(4 << 20), 1 << 20), 3),
    ],
    "before the half-close": as_stream(published_request()),
}


@pytest.mark.parametrize("messages", MUTE.values(), ids=list(MUTE))
def test_a_writer_that_falls_silent_is_ended(
    client: RawClient, messages: list[v1.EvaluateStreamRequest]
) -> None:
    with silence(messages) as silent:
        answer = client.stream(silent())
    refusal = ended(answer, "STALLED", timeout_s=STALL_S)
    assert str(STALL_S) in refusal.message


def test_a_reader_that_stops_is_ended_and_gives_its_memory_back(
    server: ServerThread, client: RawClient
) -> None:
    call = client.start(as_stream(copies(1 << 15)))
    first = [next(call) for _ in range(3)]
    wait_idle(server)
    # What was on its way still arrives, then the truth.
    answer = read_all(call, itertools.chain(first, call))
    refused(answer, "STALLED")
    assert len(answer.data) < 64 << 20


def test_a_reader_that_never_starts_is_ended(server: ServerThread, client: RawClient) -> None:
    admission = server.server.service.admission
    before = admission.entered
    calls = [client.start(as_stream(copies(1 << 15))) for _ in range(4)]
    wait_until(lambda: admission.entered == before + 4)
    wait_idle(server)
    for call in calls:
        refused(read_all(call), "STALLED")


def written_first(client: RawClient, size: int) -> tuple[StreamCall, threading.Event]:
    """Copy so many bytes, reading nothing; the event tells that all are written."""
    written = threading.Event()

    def messages() -> Iterator[v1.EvaluateStreamRequest]:
        yield opening(identity_request(size >> 14, 1 << 12))
        yield from chunks(bytes(range(256)) * (size // 256), 256 << 10)
        written.set()

    return client.start(messages()), written


def test_writing_all_before_reading_is_served_where_flow_control_lets_it_through(
    client: RawClient,
) -> None:
    call, written = written_first(client, 32 << 10)
    assert written.wait(PATIENCE_S)
    answer = read_all(call)
    assert answer.refusal is None
    assert answer.data == bytes(range(256)) * 128


def test_writing_all_of_a_large_tensor_before_reading_is_ended(
    server: ServerThread, client: RawClient
) -> None:
    call, written = written_first(client, 256 << 20)
    # On a busy machine it may have come and gone before anybody looks.
    wait_until(lambda: server.server.service.admission.streams or not call.is_active())
    wait_idle(server)
    assert not written.is_set()
    refused(read_all(call), "STALLED")


def check_threads_are_free(client: RawClient) -> None:
    """Assert that work too long for the event loop is done."""
    request = identity_request(1, 1, data=bytes(4))
    request.input.CopyFrom(float32(300, 300, strides=(0, 0)))
    request.output.CopyFrom(float32(600, 600))
    assert client.evaluate(request).refusal is None


@pytest.mark.parametrize("how", BOTH_WAYS)
def test_work_stops_when_the_deadline_passes(
    server: ServerThread, client: RawClient, how: str
) -> None:
    answer = client.ask(summed(1 << 18), how, timeout_s=0.3)
    assert answer.code is grpc.StatusCode.DEADLINE_EXCEEDED
    wait_idle(server)
    check_threads_are_free(client)


def test_work_stops_when_the_call_is_cancelled(server: ServerThread, client: RawClient) -> None:
    admission = server.server.service.admission
    for _ in range(4):
        call = client.stub.Evaluate.future(summed(1 << 18), timeout=PATIENCE_S)
        wait_until(lambda: admission.memory_bytes)
        call.cancel()
        wait_idle(server)
    check_threads_are_free(client)


def test_a_computation_longer_than_the_stall_timeout_is_no_stall() -> None:
    with gated(stall_timeout_s=1.0) as (server, gate), RawClient(server.address) as client:
        call = client.start(as_stream(laborious()))
        wait_for(server, computing=1, waiting=0)
        # Nothing moves but the computing thread.
        assert not threading.Event().wait(1.5)
        gate.set()
        answer = read_all(call)
    assert answer.refusal is None
    assert len(answer.data) == 16


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
                # Until all buffers are full and a write waits for them.
                assert not threading.Event().wait(0.05)
                relay.close()
                del call
                wait_idle(server)
    ended = [vars(each)["facts"] for each in caplog.records if each.getMessage() == "call"]
    assert [each["status"] for each in ended] == ["CANCELLED"] * TIMES
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
