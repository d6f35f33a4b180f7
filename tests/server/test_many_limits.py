"""A stream of EvaluateMany stays within what it may take, and ends with the right word."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import numpy.typing as npt
import pytest

from gradwire import v1
from gradwire_server.backends import NumpyCpu
from gradwire_server.errors import RETRY_AFTER_S
from gradwire_server.plans import Plan
from gradwire_server.rpc.batch import find_prepared
from many_calls import ManyCall, named, rows
from nobody import Nobody
from raw_calls import (
    PATIENCE_S,
    PUBLISHED_RESULT,
    RawClient,
    as_stream,
    identity_request,
    published_request,
    wait_idle,
    wait_until,
)
from refusals import check_in_band, check_refusal
from serving import ServerThread, in_threads, serving

STALL_S = 0.4
NAMES = [str(number) for number in range(100)]


class Gated(NumpyCpu):
    """Computes as NumPy does, once the gate is open.

    at_work  set when something waits at the gate
    tensors  how many outer slices each call had
    """

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.at_work = threading.Event()
        self.tensors: list[int] = []

    def apply(self, plan: Plan, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> None:
        """Wait, then as NumPy."""
        self.at_work.set()
        assert self.gate.wait(PATIENCE_S)
        self.tensors.append(len(x))
        super().apply(plan, x, y)


@pytest.fixture
def backend() -> Iterator[Gated]:
    backend = Gated()
    yield backend
    backend.gate.set()


def needed(server: ServerThread, request: v1.EvaluateRequest) -> int:
    """Return the memory that a request takes of a server's budget."""
    backend = server.server.service.backend
    assert isinstance(backend, Gated)
    in_threads(server)
    with RawClient(server.address) as client:
        call = client.stub.Evaluate.future(request, timeout=PATIENCE_S)
        assert backend.at_work.wait(PATIENCE_S)
        memory = server.server.service.admission.memory_bytes
        backend.gate.set()
        call.result()
    backend.gate.clear()
    backend.at_work.clear()
    backend.tensors.clear()
    wait_idle(server)
    return memory


def test_what_waits_for_a_thread_and_is_alike_is_computed_together(backend: Gated) -> None:
    with serving(backend=backend, warm_up=False, compute_threads=1) as server:
        in_threads(server)
        each = needed(server, rows(4))
        admission = server.server.service.admission
        with RawClient(server.address) as client, ManyCall(client) as call:
            call.send(named(rows(4), "first"))
            assert backend.at_work.wait(PATIENCE_S)
            call.send(*(named(rows(4), name) for name in NAMES[:10]), named(rows(5), "other"))
            wait_until(lambda: admission.memory_bytes > 11 * each)
            backend.gate.set()
            answers = call.answers()
        assert list(answers) == ["first", *NAMES[:10], "other"]
        # Ten are filled up to sixteen.
        assert backend.tensors == [1, 16, 1]


def test_no_more_requests_are_read_than_may_be_in_flight(backend: Gated) -> None:
    with serving(backend=backend, warm_up=False, compute_threads=1, max_in_flight=3) as server:
        in_threads(server)
        each = needed(server, rows(4))
        most = 0
        admission = server.server.service.admission
        with RawClient(server.address) as client, ManyCall(client) as call:
            call.send(*(named(rows(4), name) for name in NAMES))
            wait_until(lambda: admission.memory_bytes == 3 * each)
            backend.gate.set()
            call.half_close()
            names: list[str] = []
            for answer in call:
                most = max(most, admission.memory_bytes)
                names.append(answer.request_id)
        assert most <= 3 * each
        assert sorted(names) == sorted(NAMES)


def test_requests_of_one_stream_wait_for_the_memory_of_one_another(backend: Gated) -> None:
    with serving(backend=backend, warm_up=False) as probe:
        each = needed(probe, rows(4))
    settings = {"compute_threads": 1, "max_memory_bytes": 2 * each}
    with (
        serving(backend=backend, warm_up=False, **settings) as server,
        RawClient(server.address) as client,
        ManyCall(client) as call,
    ):
        in_threads(server)
        call.send(*(named(rows(4), name) for name in NAMES))
        assert backend.at_work.wait(PATIENCE_S)
        wait_until(lambda: server.server.service.admission.memory_bytes == 2 * each)
        with ManyCall(client) as other:
            other.send(named(rows(4), "one too many"))
            refused = other.receive().error
        assert refused.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        assert refused.reason == v1.ErrorReason.ERROR_REASON_OVERLOADED
        assert refused.HasField("retry_after")
        # Of the other stream: who waits was not refused.
        assert server.server.service.admission.refusals == {"max_memory_bytes": 1}
        backend.gate.set()
        answers = call.answers()
        assert len(answers) == len(NAMES)
        assert {each.WhichOneof("outcome") for each in answers.values()} == {"result"}


def test_a_stream_leaves_memory_to_others(backend: Gated) -> None:
    with serving(backend=backend, warm_up=False) as probe:
        each = needed(probe, rows(4))
    settings = {"compute_threads": 1, "max_memory_bytes": 64 * each}
    with (
        serving(backend=backend, warm_up=False, **settings) as server,
        RawClient(server.address) as client,
        ManyCall(client) as call,
        ManyCall(client) as other,
    ):
        in_threads(server)
        admission = server.server.service.admission
        call.send(*(named(rows(4), name) for name in NAMES))
        wait_until(lambda: admission.memory_bytes == 4 * each)
        other.send(named(rows(4), "other"))
        wait_until(lambda: admission.memory_bytes == 5 * each)
        backend.gate.set()
        assert other.receive().WhichOneof("outcome") == "result"
        answers = call.answers()
    assert {each.WhichOneof("outcome") for each in answers.values()} == {"result"}
    assert not admission.refusals


def test_streams_beyond_max_streams_are_asked_to_come_back() -> None:
    with serving(max_streams=1) as server, RawClient(server.address) as client:
        with ManyCall(client) as first:
            first.send(named(published_request(), "a"))
            first.receive()
            with ManyCall(client) as second:
                refusal = check_refusal(
                    second.refusal(), grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED"
                )
            check_in_band(refusal)
        wait_idle(server)
        with ManyCall(client) as third:
            third.send(named(published_request(), "a"))
            assert third.answers()["a"].result.data == PUBLISHED_RESULT


def test_a_stream_without_a_request_gives_way() -> None:
    with (
        serving(max_streams=1) as server,
        RawClient(server.address) as client,
        ManyCall(client) as first,
    ):
        wait_until(lambda: server.server.streams == 1)
        wait_until(lambda: client.stream(as_stream(published_request())).refusal is None)
        refusal = check_refusal(first.refusal(), grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
        check_in_band(refusal)
        assert "no data of this one has come" in refusal.message


@pytest.fixture
def brisk() -> Iterator[ServerThread]:
    with serving(stall_timeout_s=STALL_S, compute_threads=1) as server:
        yield server
        wait_idle(server)


@pytest.mark.parametrize("answered", [0, 3])
def test_a_caller_who_falls_silent_is_ended(brisk: ServerThread, answered: int) -> None:
    with RawClient(brisk.address) as client, ManyCall(client) as call:
        for name in NAMES[:answered]:
            call.send(named(published_request(), name))
            call.receive()
        refusal = check_refusal(call.refusal(), grpc.StatusCode.DEADLINE_EXCEEDED, "STALLED")
    assert refusal.info.metadata["timeout_s"] == str(STALL_S)
    check_in_band(refusal)


def copies(size: int) -> v1.EvaluateRequest:
    """Order copies of one number, with 4 bytes."""
    request = identity_request(size, size, data=bytes(4))
    request.input.strides[:] = [0, 0]
    return request


def test_a_caller_who_does_not_read_is_held_back_and_ended(brisk: ServerThread) -> None:
    admission = brisk.server.service.admission
    names = iter(range(1 << 20))
    with RawClient(brisk.address) as client, ManyCall(client) as call:
        # Answers of 1 MiB: far more of them than any buffers on the way could hold.
        call.send(*(named(copies(512), str(next(names))) for _ in range(2000)))
        wait_until(lambda: admission.memory_bytes)
        wait_idle(brisk)
        # What was on its way still arrives, then the truth.
        refusal = check_refusal(call.refusal(), grpc.StatusCode.DEADLINE_EXCEEDED, "STALLED")
        assert call.answered < 100
    assert refusal.info.metadata["timeout_s"] == str(STALL_S)


def test_work_longer_than_the_stall_timeout_is_no_stall(backend: Gated) -> None:
    with (
        serving(backend=backend, warm_up=False, stall_timeout_s=0.05) as server,
        RawClient(server.address) as client,
        ManyCall(client) as call,
    ):
        in_threads(server)
        call.send(named(rows(4), "a"))
        assert backend.at_work.wait(PATIENCE_S)
        assert not threading.Event().wait(0.3)
        backend.gate.set()
        assert call.receive().request_id == "a"


@pytest.mark.parametrize("flow", ["idle", "full"])
def test_a_stream_learns_that_the_server_drains(flow: str) -> None:
    with serving() as server, RawClient(server.address) as client, ManyCall(client) as call:
        call.send(named(published_request(), "a"))
        call.receive()
        if flow == "full":
            call.send(*(named(rows(1 << 10), str(number)) for number in range(4000)))
        server.loop.call_soon_threadsafe(server.server.service.draining.set)
        refusal = check_refusal(call.refusal(), grpc.StatusCode.UNAVAILABLE, "DRAINING")
    check_in_band(refusal)


def test_a_server_that_is_not_ready_says_so() -> None:
    server = ServerThread()
    server.listen()
    server.wait_until_serving()
    server.loop.call_soon_threadsafe(server.server.service.ready.clear)
    with RawClient(server.address) as client, ManyCall(client) as call:
        call.send(named(published_request(), "a"))
        refusal = check_refusal(call.refusal(), grpc.StatusCode.UNAVAILABLE, "STARTING")
        assert refusal.retry_after_s == RETRY_AFTER_S
        check_in_band(refusal)
    server.stop()


@pytest.mark.parametrize(("length", "kept"), [(1, True), (5000, False)])
def test_what_was_made_of_a_header_is_kept_unless_that_is_long(length: int, *, kept: bool) -> None:
    request = published_request()
    request.ClearField("data")
    # Another member of the same oneof, which the one behind it takes the place of.
    before = v1.Operator(interpolate=v1.Interpolate(sizes=[1] * length))
    header = v1.EvaluateRequest(operator=before).SerializeToString() + request.SerializeToString()
    with serving() as server:
        service = server.server.service
        first, second = (asyncio.run(find_prepared(header, service, Nobody())) for _ in range(2))
        # One memory serves Evaluate too.
        assert (service.preparer.find(header) is second) == kept
    assert first is second
    assert first.response_header
