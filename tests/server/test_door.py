"""While the event loop is behind calls are refused unread; those let in are served as ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import grpc
import pytest

from gated import gated, laborious, wait_for
from gradwire import v1
from gradwire_server.engine.intake import LEAST
from raw_calls import (
    PATIENCE_S,
    TRACEPARENT,
    RawClient,
    identity_request,
    published_request,
    wait_idle,
    wait_until,
)
from refusals import check_refusal, refusal_of
from serving import ServerThread, serving

StreamUnary: TypeAlias = "grpc.StreamUnaryMultiCallable[bytes, bytes]"
EVALUATE = "/gradwire.v1.GradientService/Evaluate"


@contextmanager
def behind(server: ServerThread) -> Generator[None]:
    """Keep a server's event loop late."""
    done = threading.Event()

    def dawdle() -> None:
        time.sleep(0.004)
        if not done.is_set():
            server.loop.call_soon(dawdle)

    server.loop.call_soon_threadsafe(dawdle)
    intake = server.server.workshop.intake
    wait_until(lambda: intake.is_behind)
    try:
        yield
    finally:
        done.set()
        wait_until(lambda: not intake.is_behind)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with serving(stall_timeout_s=0.5) as server:
        yield server


@pytest.fixture
def client(server: ServerThread) -> Iterator[RawClient]:
    with RawClient(server.address) as client:
        yield client
        client.check_alive()
    wait_idle(server)


@contextmanager
def full() -> Generator[tuple[ServerThread, RawClient, threading.Event, list[Any]]]:
    """Run a server that is behind and has as many requests as it takes in then."""
    with (
        gated(max_queue_s=0.001) as (server, gate),
        RawClient(server.address) as client,
        behind(server),
    ):
        # So slow it is that it takes in no more than the least.
        intake = server.server.workshop.intake
        while intake.most > LEAST:
            client.check_alive()
        calls = [client.stub.Evaluate.future(laborious()) for _ in range(LEAST)]
        wait_until(lambda: len(intake) == LEAST)
        yield server, client, gate, calls
        gate.set()
        assert {call.result().data for call in calls} == {calls[0].result().data}


def wrong() -> v1.EvaluateRequest:
    request = published_request()
    request.output.sizes[0] = 0
    return request


REQUESTS = {
    "small": published_request(),
    "laborious": laborious(),
    "large": identity_request(512, 512, data=bytes(range(256)) * (4 << 10)),
    "wrong": wrong(),
    "without its data": identity_request(4),
    "empty": v1.EvaluateRequest(),
}


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=list(REQUESTS))
def test_behind_a_late_loop_answers_are_the_same(
    server: ServerThread, client: RawClient, request_: v1.EvaluateRequest
) -> None:
    before = client.evaluate(request_)
    with behind(server):
        late = client.evaluate(request_)
    assert (late.data, late.output) == (before.data, before.output)
    assert late.trailers.keys() == before.trailers.keys()
    assert (late.refusal is None) == (before.refusal is None)
    if late.refusal is not None and before.refusal is not None:
        assert late.refusal.code is before.refusal.code
        assert late.refusal.message == before.refusal.message
        assert late.refusal.violations == before.refusal.violations


def test_bytes_that_are_no_request_are_refused_in_the_same_words(
    server: ServerThread, client: RawClient
) -> None:
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = client.channel.unary_unary(EVALUATE)
    with behind(server), pytest.raises(grpc.RpcError) as caught:
        call(b"\xff\xff", timeout=PATIENCE_S)
    check_refusal(
        refusal_of(caught.value),
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_DATA",
        field="message",
    )


def test_more_than_the_loop_is_through_with_in_time_is_refused_unread() -> None:
    with full() as (server, client, gate, calls):
        for _ in range(2):
            # Nobody looks at what is wrong with it.
            refusal = check_refusal(
                client.evaluate(wrong()).refusal,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "OVERLOADED",
            )
            assert refusal.info.metadata["limit"] == "max_queue_s"
            assert "GRADWIRE_MAX_QUEUE_S" in refusal.message
            assert refusal.trailers["traceparent"] == TRACEPARENT
        workshop = server.server.workshop
        assert workshop.admission.refusals == {"unread": 2}
        gate.set()
        for call in calls:
            call.result()
        wait_until(lambda: not len(workshop.intake))
        assert client.evaluate(laborious()).refusal is None


def test_refusals_have_names_of_their_own() -> None:
    with full() as (_, client, _, _):
        refusals = [client.evaluate(laborious(), traceparent="").refusal for _ in range(3)]
        for key in ("request_id", "traceparent"):
            names = {one.info.metadata[key] for one in refusals if one is not None}
            assert len(names) == 3


def test_questions_about_the_server_are_answered_by_one_that_refuses_requests() -> None:
    with full() as (_, client, _, _):
        assert client.stub.GetServerInfo(v1.GetServerInfoRequest()).version


def test_a_writer_that_sends_no_request_is_ended_and_keeps_nobody_out(
    server: ServerThread, client: RawClient
) -> None:
    release = threading.Event()

    def silent() -> Iterator[bytes]:
        release.wait(PATIENCE_S)
        yield b""

    method: StreamUnary = client.channel.stream_unary(EVALUATE)
    with behind(server):
        calls = [method.future(silent(), timeout=PATIENCE_S) for _ in range(20)]
        errors = [call.exception() for call in calls]
        assert client.evaluate(published_request()).refusal is None
    release.set()
    for error in errors:
        refusal = refusal_of(error)
        if refusal.info.reason != "OVERLOADED":
            check_refusal(refusal, grpc.StatusCode.DEADLINE_EXCEEDED, "STALLED")


def test_a_half_close_without_a_request_is_refused_by_name(
    server: ServerThread, client: RawClient
) -> None:
    method: StreamUnary = client.channel.stream_unary(EVALUATE)
    with behind(server), pytest.raises(grpc.RpcError) as caught:
        method(iter(()), timeout=PATIENCE_S)
    check_refusal(
        refusal_of(caught.value),
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_DATA",
        field="message",
    )


def test_callers_that_go_away_leave_nothing_behind() -> None:
    with gated() as (server, gate), RawClient(server.address) as client, behind(server):
        for _ in range(3):
            calls = [client.stub.Evaluate.future(laborious()) for _ in range(3)]
            wait_until(lambda: len(server.server.workshop.intake) == 3)
            for call in calls:
                call.cancel()
            wait_until(lambda: not len(server.server.workshop.intake))
            gate.set()
            wait_for(server, computing=0, waiting=0)
            gate.clear()
        gate.set()
        client.check_alive()
