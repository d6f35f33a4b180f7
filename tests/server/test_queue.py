"""Evaluations wait for a thread, small ones and others' do not; whoever is over frees its place."""

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

from gradwire import AsyncClient, Client, RetryPolicy, ops, v1
from support.raw_calls import (
    PATIENCE_S,
    ManyCall,
    RawClient,
    as_stream,
    chunks,
    copies,
    identity_request,
    named,
    opening,
    published_request,
    read_all,
    refused,
    silence,
    wait_until,
)
from support.servers import ServerThread, gated, laborious, served, serving, wait_for, wait_idle

# One that computes and one that is next.
SLOTS = 2
PATIENT: dict[str, Any] = {"compute_threads": 1, "max_queue_s": 60.0}


def check_served(client: RawClient, count: int) -> None:
    """Have as much work done, several at once."""
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(client.evaluate, [laborious()] * count)
        assert [answer.refusal for answer in answers] == [None] * count


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


def test_evaluations_wait_for_a_thread_and_are_all_served() -> None:
    with busy(6) as (server, _, client, _):
        # What is small is not in their way, nor they in its.
        assert client.evaluate(published_request()).refusal is None
    assert not server.server.service.admission.refusals


def test_beyond_max_queue_evaluations_are_refused_at_once() -> None:
    with busy(3, max_queue=1) as (server, _, client, _):
        refusal = refused(client.evaluate(laborious()), "OVERLOADED", limit="max_queue")
        assert "GRADWIRE_MAX_QUEUE)" in refusal.message
        assert server.server.service.admission.refusals == {"max_queue": 1}


def test_a_caller_that_is_gone_frees_its_place() -> None:
    with busy(5) as (server, _, _client, calls):
        admission = server.server.service.admission
        held = admission.memory_bytes
        for call in calls[2:]:
            call.cancel()
        # Those two may be others than the first.
        wait_until(lambda: admission.memory_bytes <= held * 2 // 5)


def test_who_waits_beyond_its_deadline_leaves_the_queue() -> None:
    with busy(2) as (server, _, client, _):
        late = client.evaluate(laborious(), timeout_s=0.2)
        assert late.code is grpc.StatusCode.DEADLINE_EXCEEDED
        wait_for(server, computing=SLOTS, waiting=0)


MUTE = {
    "after open": [opening(published_request())],
    "in the middle": [
        opening(identity_request(1 << 20)),
        *itertools.islice(chunks(bytes(4 << 20), 1 << 20), 3),
    ],
}


@pytest.mark.parametrize("messages", MUTE.values(), ids=list(MUTE))
def test_writers_that_fall_silent_hold_no_thread(messages: list[v1.EvaluateStreamRequest]) -> None:
    with silence(messages) as silent, served(**PATIENT) as (server, client):
        calls = [client.start(silent()) for _ in range(8)]
        for call in calls:
            assert next(call).WhichOneof("message") == "opened"
        wait_for(server, computing=0, waiting=0)
        check_served(client, 8)
        for call in calls:
            call.cancel()
        wait_idle(server)


def test_readers_that_stop_hold_no_thread() -> None:
    request = copies(1 << 15)
    with served(**PATIENT) as (server, client):
        calls = [client.start(as_stream(request)) for _ in range(4)]
        for call in calls:
            next(call)
        wait_for(server, computing=0, waiting=0)
        check_served(client, 8)
        assert server.server.service.admission.streams == 4
        for call in calls:
            call.cancel()
        wait_idle(server)


def test_a_stream_waits_for_its_turn_and_is_never_refused_one() -> None:
    filled = threading.Event()

    def messages() -> Iterator[v1.EvaluateStreamRequest]:
        start, *rest = as_stream(laborious())
        yield start
        filled.wait(PATIENCE_S)
        yield from rest

    with gated(max_queue=1) as (server, gate), RawClient(server.address) as client:
        streams = [client.start(messages()) for _ in range(3)]
        opened = [next(stream) for stream in streams]
        calls = [client.stub.Evaluate.future(laborious()) for _ in range(3)]
        wait_for(server, computing=SLOTS, waiting=1)
        filled.set()
        wait_for(server, computing=SLOTS, waiting=4)
        gate.set()
        data = calls[0].result().data
        for stream, first in zip(streams, opened, strict=True):
            answer = read_all(stream, itertools.chain([first], stream))
            assert (answer.refusal, answer.data) == (None, data)
        wait_idle(server)


def test_requests_of_one_stream_wait_for_a_thread_as_calls_do_and_are_never_refused_one() -> None:
    with busy(3, max_queue=1) as (server, gate, client, calls), ManyCall(client) as many:
        many.send(*(named(laborious(), name) for name in "abc"))
        wait_for(server, computing=SLOTS, waiting=2)
        gate.set()
        results = {name: each.result.data for name, each in many.answers().items()}
        assert results == dict.fromkeys("abc", calls[0].result().data)


def test_a_burst_of_one_client_is_served_whole() -> None:
    operator = ops.InterpolateBackward(mode="nearest", data_format="NCX")
    array = np.ones((1, 1, 4, 4), np.float32)

    async def burst(address: str) -> list[bytes]:
        once = RetryPolicy(max_attempts=1)
        async with AsyncClient(address, retry=once) as client:
            calls = [
                client.evaluate(operator, array, output_shape=(1, 1, 2, 2)) for _ in range(600)
            ]
            return [each.tobytes() for each in await asyncio.gather(*calls)]

    with serving(max_connection_calls=16) as server:
        assert len(set(asyncio.run(burst(server.address)))) == 1
        wait_idle(server)


def test_the_sdk_comes_back_to_a_full_server_until_it_is_served() -> None:
    array = np.random.default_rng(0).normal(size=(1, 1, 512, 512)).astype(np.float32)
    operator = ops.InterpolateBackward(mode="bilinear", data_format="NCX")
    policy = RetryPolicy(initial_backoff_s=0.01, max_backoff_s=0.1, max_attempts=1000)
    limits: dict[str, Any] = {"max_queue": 1, "max_queue_s": 0.001}
    with (
        serving(compute_threads=1, **limits) as server,
        Client(server.address, retry=policy) as client,
        ThreadPoolExecutor(12) as pool,
    ):

        def call(_: int) -> bytes:
            return client.evaluate(operator, array, output_shape=(1, 1, 256, 256)).tobytes()

        assert len(set(pool.map(call, range(60)))) == 1
        wait_idle(server)
