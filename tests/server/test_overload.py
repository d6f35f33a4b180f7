"""A full server refuses at once and says when to come back; others wait for a thread."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import pytest

from gradwire import AsyncClient, RetryPolicy, v1
from gradwire_server.errors import RETRY_AFTER_S
from support.clients import halved
from support.raw_calls import (
    BOTH_WAYS,
    PATIENCE_S,
    Answer,
    ManyCall,
    RawClient,
    WaitingStream,
    as_stream,
    chunks,
    copies,
    ended,
    identity_request,
    named,
    opening,
    published_request,
    read_all,
    refused,
    silence,
    wait_until,
)
from support.refusals import Refusal, check_in_band
from support.servers import ServerThread, gated, laborious, served, serving, wait_for, wait_idle

# One that computes and one that is next.
SLOTS = 2


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
        refusal = check_overload(
            client.ask(published_request(), how), "max_memory_bytes", None if known else 0.25
        )
        if how == "EvaluateStream":
            check_in_band(refusal)
        held.cancel()
        wait_idle(server)
        # One alone is let in, however little is allowed.
        client.check_alive()


def test_refused_streams_leave_their_place_to_others() -> None:
    with served(max_streams=1) as (server, client):
        bad = published_request()
        bad.output.sizes[0] = 0
        for _ in range(20):
            assert client.stream(as_stream(bad)).refusal is not None
            wait_idle(server)
            assert client.stream(as_stream(published_request())).refusal is None
            wait_idle(server)


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
        # What is small is not in their way, nor they in its.
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
    middle = [
        opening(identity_request(1 << 20)),
        *itertools.islice(chunks(bytes(4 << 20), 1 << 20), 3),
    ]
    with (
        silence([opening(published_request())]) as at_once,
        silence(middle) as later,
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
    filled = threading.Event()

    def messages() -> Iterator[v1.EvaluateStreamRequest]:
        start, *rest = as_stream(laborious())
        yield start
        filled.wait(PATIENCE_S)
        yield from rest

    with (
        gated(max_queue=1) as (server, gate),
        RawClient(server.address) as client,
        ManyCall(client) as many,
    ):
        streams = [client.start(messages()) for _ in range(3)]
        opened = [next(stream) for stream in streams]
        calls = [client.stub.Evaluate.future(laborious()) for _ in range(3)]
        wait_for(server, computing=SLOTS, waiting=1)
        filled.set()
        wait_for(server, computing=SLOTS, waiting=4)
        many.send(*(named(laborious(), name) for name in "abc"))
        wait_for(server, computing=SLOTS, waiting=5)  # equal ones of one caller are a batch
        gate.set()
        data = calls[0].result().data
        for stream, first in zip(streams, opened, strict=True):
            answer = read_all(stream, itertools.chain([first], stream))
            assert (answer.refusal, answer.data) == (None, data)
        results = {name: each.result.data for name, each in many.answers().items()}
        assert results == dict.fromkeys("abc", data)
        wait_idle(server)


def test_a_burst_of_one_client_is_served_whole() -> None:
    array = np.ones((1, 1, 4, 4), np.float32)

    async def burst(address: str) -> list[bytes]:
        once = RetryPolicy(max_attempts=1)
        async with AsyncClient(address, retry=once) as client:
            calls = [halved(client, array) for _ in range(600)]
            return [each.tobytes() for each in await asyncio.gather(*calls)]

    with serving(max_connection_calls=16) as server:
        assert len(set(asyncio.run(burst(server.address)))) == 1
        wait_idle(server)
