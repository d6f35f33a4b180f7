"""A server that stops says so, lets running calls finish and ends the rest with the right error."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gradwire import v1
from support.processes import is_running
from support.raw_calls import (
    PATIENCE_S,
    REQUEST_ID,
    RawClient,
    WaitingStream,
    chunk,
    ended,
    identity_request,
    named,
    opening,
    published_request,
    read_all,
    rows,
    wait_until,
)
from support.refusals import Refusal
from support.servers import ServerThread, commanded, served_many


def endless(piece: int) -> Iterator[v1.EvaluateStreamRequest]:
    """Open a stream of 64 GiB and write it piece by piece."""
    yield opening(identity_request(1 << 17, 1 << 17))
    data = bytes(piece)
    for number in itertools.count():
        yield chunk(number * piece, data)


def check_told(refusal: Refusal | None) -> None:
    """Assert that the last message said it, whatever became of the trailers behind it."""
    assert refusal is not None
    error = refusal.in_band
    assert error is not None
    assert error.code == grpc.StatusCode.UNAVAILABLE.value[0]
    assert error.reason == v1.ErrorReason.ERROR_REASON_DRAINING
    assert error.metadata["request_id"] == REQUEST_ID


@pytest.mark.parametrize(
    "number", [*range(10), *(pytest.param(each, marks=pytest.mark.slow) for each in range(10, 60))]
)
def test_a_writer_in_full_flow_learns_that_the_server_drains(number: int) -> None:
    server = ServerThread()
    server.start()

    def stop() -> None:
        wait_until(lambda: server.server.service.admission.memory_bytes)
        server.stop()

    with RawClient(server.address) as client, ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(stop)
        check_told(client.stream(endless((1 << 10, 64 << 10, 1 << 20)[number % 3])).refusal)
        stopped.result()


@pytest.mark.parametrize("flow", ["idle", "full"])
def test_streams_that_wait_learn_that_the_server_drains(flow: str) -> None:
    with served_many() as (server, client, many):
        stream = WaitingStream(client)
        many.send(named(published_request(), "a"))
        many.receive()
        if flow == "full":
            many.send(*(named(rows(1 << 10), str(number)) for number in range(4000)))
        server.loop.call_soon_threadsafe(server.server.service.draining.set)
        ended(many.refusal(), "DRAINING")
        ended(read_all(stream.call, itertools.chain([stream.opened], stream.call)), "DRAINING")
        stream.send()


@pytest.mark.parametrize(
    ("workers", "number"),
    [
        (1, signal.SIGTERM),
        (1, signal.SIGINT),
        pytest.param(2, signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(2, signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_a_draining_server_finishes_what_runs_and_takes_nothing_new(
    tmp_path: Path, workers: int, number: int
) -> None:
    flags = ("--grace-s", "30", "--workers", str(workers))
    with commanded(*flags, log=tmp_path / "log") as (command, client):
        if workers == 1:
            for times in (1, 2):
                command.signal(signal.SIGUSR2)
                command.wait_for_log("no rolling restart", times=times)
        stream = WaitingStream(client)
        health: Any = health_pb2_grpc.HealthStub(client.channel)
        question = health_pb2.HealthCheckRequest(service="gradwire.v1.GradientService")
        watch = health.Watch(question, timeout=PATIENCE_S)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        command.signal(number)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()
        command.wait_for_log(" draining ", times=workers)

        def refuses() -> bool:
            with RawClient(command.address) as client:
                answer = client.evaluate(published_request(), timeout_s=5)
            return answer.code is grpc.StatusCode.UNAVAILABLE

        # The listener is closed at some moment after that.
        wait_until(refuses)
        assert command.running
        stream.finish()
        assert command.wait() == 0
        assert command.log.count(" stopped") >= workers
        assert "Traceback" not in command.log
        assert not any(map(is_running, command.workers.values()))
