"""Callers that stop reading, stop writing, or run out of time cost the server nothing for long."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator

import grpc
import pytest

from gradwire import v1
from gradwire_server.backends import NumpyCpu
from raw_calls import (
    PATIENCE_S,
    RawClient,
    StreamCall,
    as_stream,
    chunks,
    float32,
    identity_request,
    opening,
    published_request,
    read_all,
    wait_idle,
    wait_until,
)
from refusals import check_in_band, check_refusal
from serving import ServerThread, serving

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
    release = threading.Event()

    def silent() -> Iterator[v1.EvaluateStreamRequest]:
        yield from messages
        release.wait(PATIENCE_S)

    answer = client.stream(silent())
    release.set()
    refusal = check_refusal(answer.refusal, grpc.StatusCode.DEADLINE_EXCEEDED, "STALLED")
    assert str(STALL_S) in refusal.message
    assert refusal.info.metadata["timeout_s"] == str(STALL_S)
    check_in_band(refusal)


def copies() -> v1.EvaluateRequest:
    """Order 4 GiB of copies of one element, with 4 bytes."""
    request = identity_request(1 << 15, 1 << 15, data=bytes(4))
    request.input.strides[:] = [0, 0]
    return request


def test_a_reader_that_stops_is_ended_and_gives_its_memory_back(
    server: ServerThread, client: RawClient
) -> None:
    call = client.start(as_stream(copies()))
    first = [next(call) for _ in range(3)]
    wait_idle(server)
    # What was on its way still arrives, then the truth.
    answer = read_all(call, itertools.chain(first, call))
    check_refusal(answer.refusal, grpc.StatusCode.DEADLINE_EXCEEDED, "STALLED")
    assert len(answer.data) < 64 << 20


def test_a_reader_that_never_starts_is_ended(server: ServerThread, client: RawClient) -> None:
    admission = server.server.service.admission
    before = admission.entered
    calls = [client.start(as_stream(copies())) for _ in range(4)]
    wait_until(lambda: admission.entered == before + 4)
    wait_idle(server)
    for call in calls:
        check_refusal(read_all(call).refusal, grpc.StatusCode.DEADLINE_EXCEEDED, "STALLED")


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
    answer = read_all(call)
    check_refusal(answer.refusal, grpc.StatusCode.DEADLINE_EXCEEDED, "STALLED")


def long_work() -> v1.EvaluateRequest:
    """Order hours of work with 4 bytes, for a result of 4 bytes."""
    request = identity_request(1, data=bytes(4))
    request.input.CopyFrom(float32(1 << 18, 1 << 18, strides=(0, 0)))
    request.output.CopyFrom(float32(1, 1))
    request.operator.dml_resample_grad.CopyFrom(request.operator.dml_resample)
    return request


def check_threads_are_free(client: RawClient) -> None:
    """Assert that work too long for the event loop is done."""
    request = identity_request(1, 1, data=bytes(4))
    request.input.CopyFrom(float32(300, 300, strides=(0, 0)))
    request.output.CopyFrom(float32(600, 600))
    assert client.evaluate(request).refusal is None


@pytest.mark.parametrize("how", ["Evaluate", "EvaluateStream"])
def test_work_stops_when_the_deadline_passes(
    server: ServerThread, client: RawClient, how: str
) -> None:
    if how == "Evaluate":
        refusal = client.evaluate(long_work(), timeout_s=0.3).refusal
    else:
        refusal = client.stream(as_stream(long_work()), timeout_s=0.3).refusal
    assert refusal is not None
    assert refusal.code is grpc.StatusCode.DEADLINE_EXCEEDED
    wait_idle(server)
    check_threads_are_free(client)


def test_work_stops_when_the_call_is_cancelled(server: ServerThread, client: RawClient) -> None:
    admission = server.server.service.admission
    for _ in range(4):
        call = client.stub.Evaluate.future(long_work(), timeout=PATIENCE_S)
        wait_until(lambda: admission.memory_bytes)
        call.cancel()
        wait_idle(server)
    check_threads_are_free(client)


def test_a_computation_longer_than_the_stall_timeout_is_no_stall() -> None:
    # One step of it takes longer than the stall timeout, and nothing else moves meanwhile.
    settings = {"slab_bytes": 512 << 20, "max_request_memory_bytes": 8 << 30}
    request = identity_request(1, data=bytes(4))
    request.input.CopyFrom(float32(1 << 13, 1 << 13, strides=(0, 0)))
    request.output.CopyFrom(float32(1 << 13, 1))
    request.operator.dml_resample_grad.CopyFrom(request.operator.dml_resample)
    with (
        serving(backend=NumpyCpu(), stall_timeout_s=0.1, **settings) as server,
        RawClient(server.address) as client,
    ):
        started = time.monotonic()
        answer = client.stream(as_stream(request))
        took_s = time.monotonic() - started
    assert answer.refusal is None
    assert len(answer.data) == 4 << 13
    assert took_s > 0.1, "too short to tell"
