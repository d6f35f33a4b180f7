"""A stream of EvaluateMany stays within what it may take, and ends with the right word."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from gradwire import v1
from gradwire_server.errors import RETRY_AFTER_S
from gradwire_server.rpc.batch import find_prepared
from gradwire_server.scheduling.admission import Admission
from support.gated import Gated
from support.many_calls import ManyCall, named, rows
from support.nobody import Nobody
from support.raw_calls import (
    PATIENCE_S,
    PUBLISHED_RESULT,
    RawClient,
    as_stream,
    published_request,
    wait_idle,
    wait_until,
)
from support.served import copies, ended, refused, served, served_many
from support.serving import ServerThread, in_threads, serving

STALL_S = 0.4
NAMES = [str(number) for number in range(100)]


@contextmanager
def gated(**settings: Any) -> Generator[tuple[Gated, Admission, RawClient, ManyCall]]:
    """Run a server of one thread that computes behind a gate, with a stream of requests."""
    backend = Gated(least_work=0)
    backend.gate.clear()
    with served_many(backend=backend, compute_threads=1, **settings) as (server, client, call):
        in_threads(server)
        try:
            yield backend, server.server.service.admission, client, call
        finally:
            backend.gate.set()


@pytest.fixture(scope="module")
def each() -> int:
    """Return the memory that one of the requests takes of a server's budget."""
    with gated() as (backend, admission, _, call):
        call.send(named(rows(4), "one"))
        assert backend.at_work.acquire(timeout=PATIENCE_S)
        return int(admission.memory_bytes)


ALL = [named(rows(4), name) for name in NAMES]


def check_results(answers: dict[str, v1.EvaluateManyResponse]) -> None:
    assert sorted(answers) == sorted(NAMES)
    assert {each.WhichOneof("outcome") for each in answers.values()} == {"result"}


def test_what_waits_for_a_thread_and_is_alike_is_computed_together(each: int) -> None:
    with gated() as (backend, admission, _, call):
        call.send(named(rows(4), "first"))
        assert backend.at_work.acquire(timeout=PATIENCE_S)
        call.send(*ALL[:10], named(rows(5), "other"))
        wait_until(lambda: admission.memory_bytes > 11 * each)
        backend.gate.set()
        assert list(call.answers()) == ["first", *NAMES[:10], "other"]
    # Ten are filled up to sixteen.
    assert backend.tensors == [1, 16, 1]


def test_no_more_requests_are_read_than_may_be_in_flight(each: int) -> None:
    most, answers = 0, dict[str, v1.EvaluateManyResponse]()
    with gated(max_in_flight=3) as (backend, admission, _, call):
        call.send(*ALL)
        wait_until(lambda: admission.memory_bytes == 3 * each)
        backend.gate.set()
        call.half_close()
        for answer in call:
            most = max(most, admission.memory_bytes)
            answers[answer.request_id] = answer
    assert most <= 3 * each
    check_results(answers)


def test_requests_of_one_stream_wait_for_the_memory_of_one_another(each: int) -> None:
    with gated(max_memory_bytes=2 * each) as (backend, admission, client, call):
        call.send(*ALL)
        assert backend.at_work.acquire(timeout=PATIENCE_S)
        wait_until(lambda: admission.memory_bytes == 2 * each)
        with ManyCall(client) as other:
            other.send(named(rows(4), "one too many"))
            error = other.receive().error
        assert error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        assert error.reason == v1.ErrorReason.ERROR_REASON_OVERLOADED
        assert error.HasField("retry_after")
        # Of the other stream: who waits was not refused.
        assert admission.refusals == {"max_memory_bytes": 1}
        backend.gate.set()
        check_results(call.answers())


def test_a_stream_leaves_memory_to_others(each: int) -> None:
    with (
        gated(max_memory_bytes=64 * each) as (backend, admission, client, call),
        ManyCall(client) as other,
    ):
        call.send(*ALL)
        wait_until(lambda: admission.memory_bytes == 4 * each)
        other.send(named(rows(4), "other"))
        wait_until(lambda: admission.memory_bytes == 5 * each)
        backend.gate.set()
        assert other.receive().WhichOneof("outcome") == "result"
        check_results(call.answers())
        assert not admission.refusals


def test_streams_beyond_max_streams_are_asked_to_come_back() -> None:
    with served(max_streams=1) as (server, client):
        with ManyCall(client) as first:
            first.send(named(published_request(), "a"))
            first.receive()
            with ManyCall(client) as second:
                ended(second.refusal(), "OVERLOADED")
        wait_idle(server)
        with ManyCall(client) as third:
            third.send(named(published_request(), "a"))
            assert third.answers()["a"].result.data == PUBLISHED_RESULT


def test_a_stream_without_a_request_gives_way() -> None:
    with served_many(max_streams=1) as (server, client, first):
        wait_until(lambda: server.server.streams == 1)
        wait_until(lambda: client.stream(as_stream(published_request())).refusal is None)
        refusal = ended(first.refusal(), "OVERLOADED")
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
        refusal = ended(call.refusal(), "STALLED")
    assert refusal.info.metadata["timeout_s"] == str(STALL_S)


def test_a_caller_who_does_not_read_is_held_back_and_ended(brisk: ServerThread) -> None:
    admission = brisk.server.service.admission
    before = admission.entered
    names = iter(range(1 << 20))
    with RawClient(brisk.address) as client, ManyCall(client) as call:
        # Answers of 1 MiB: far more of them than any buffers on the way could hold.
        call.send(*(named(copies(512), str(next(names))) for _ in range(2000)))
        # It may have been ended before anybody looks.
        wait_until(lambda: admission.entered > before)
        wait_idle(brisk)
        # What was on its way still arrives, then the truth.
        refusal = refused(call.refusal(), "STALLED")
        assert call.answered < 100
    assert refusal.info.metadata["timeout_s"] == str(STALL_S)


def test_work_longer_than_the_stall_timeout_is_no_stall() -> None:
    with gated(stall_timeout_s=0.05) as (backend, _, _, call):
        call.send(named(rows(4), "a"))
        assert backend.at_work.acquire(timeout=PATIENCE_S)
        assert not threading.Event().wait(0.3)
        backend.gate.set()
        assert call.receive().request_id == "a"


@pytest.mark.parametrize("flow", ["idle", "full"])
def test_a_stream_learns_that_the_server_drains(flow: str) -> None:
    with served_many() as (server, _client, call):
        call.send(named(published_request(), "a"))
        call.receive()
        if flow == "full":
            call.send(*(named(rows(1 << 10), str(number)) for number in range(4000)))
        server.loop.call_soon_threadsafe(server.server.service.draining.set)
        ended(call.refusal(), "DRAINING")


def test_a_server_that_is_not_ready_says_so() -> None:
    server = ServerThread()
    server.listen()
    server.wait_until_serving()
    server.loop.call_soon_threadsafe(server.server.service.ready.clear)
    with RawClient(server.address) as client, ManyCall(client) as call:
        call.send(named(published_request(), "a"))
        refusal = ended(call.refusal(), "STARTING")
        assert refusal.retry_after_s == RETRY_AFTER_S
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
