"""A server that stops says so, lets running calls finish and ends the rest with the right error."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gradwire import v1
from support.processes import running_command
from support.raw_calls import (
    PATIENCE_S,
    REQUEST_ID,
    RawClient,
    WaitingStream,
    chunk,
    ended,
    identity_request,
    opening,
    published_request,
    read_all,
    wait_until,
)
from support.servers import ServerThread, commanded, served


def endless(piece: int) -> Iterator[v1.EvaluateStreamRequest]:
    """Open a stream of 64 GiB and write it piece by piece."""
    yield opening(identity_request(1 << 17, 1 << 17))
    data = bytes(piece)
    for number in itertools.count():
        yield chunk(number * piece, data)


@pytest.mark.parametrize(
    "number", [*range(10), *(pytest.param(each, marks=pytest.mark.slow) for each in range(10, 60))]
)
def test_a_writer_in_full_flow_learns_that_the_server_drains(number: int) -> None:
    server = ServerThread()
    server.start()

    def stop() -> None:
        wait_until(lambda: server.server.service.admission.memory_bytes)
        server.stop()

    with RawClient(server.address) as client:
        stopper = threading.Thread(target=stop)
        stopper.start()
        refusal = client.stream(endless((1 << 10, 64 << 10, 1 << 20)[number % 3])).refusal
        stopper.join()
    assert refusal is not None
    error = refusal.in_band
    assert error is not None
    assert error.code == grpc.StatusCode.UNAVAILABLE.value[0]
    assert error.reason == v1.ErrorReason.ERROR_REASON_DRAINING
    assert error.metadata["request_id"] == REQUEST_ID


def test_a_stream_that_waits_learns_that_the_server_drains() -> None:
    with served() as (server, client):
        stream = WaitingStream(client)
        server.loop.call_soon_threadsafe(server.server.service.draining.set)
        answer = read_all(stream.call, itertools.chain([stream.opened], stream.call))
        stream.send()
    ended(answer, "DRAINING")


def test_a_draining_server_finishes_what_runs_and_takes_nothing_new(tmp_path: Path) -> None:
    with commanded("--grace-s", "30", log=tmp_path / "log") as (command, client):
        stream = WaitingStream(client)
        health: Any = health_pb2_grpc.HealthStub(client.channel)
        question = health_pb2.HealthCheckRequest(service="gradwire.v1.GradientService")
        watch = health.Watch(question, timeout=PATIENCE_S)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        command.signal(signal.SIGTERM)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()
        # The listener is closed at some moment after that.
        wait_until(lambda: _refused(command.address))
        assert stream.opened.WhichOneof("message") == "opened"
        stream.finish()
        assert command.wait() == 0
        assert "draining" in command.log
        assert "stopped" in command.log
        assert "Traceback" not in command.log


def _refused(address: str) -> bool:
    with RawClient(address) as client:
        return client.evaluate(published_request(), timeout_s=5).code is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_idle_server_with_status_0(tmp_path: Path, number: int) -> None:
    with running_command("--backend", "auto", log=tmp_path / "log") as command:
        with RawClient(command.address) as client:
            client.check_alive()
        command.signal(number)
        assert command.wait() == 0
        assert "Traceback" not in command.log


def test_what_outlasts_the_grace_period_is_ended(tmp_path: Path) -> None:
    with running_command("--grace-s", "0", log=tmp_path / "log") as command:
        with RawClient(command.address) as client:
            call = client.start(endless(1 << 16))
            opened = next(call)
            command.signal(signal.SIGTERM)
            refusal = read_all(call, itertools.chain([opened], call)).refusal
        assert command.wait() == 0
    assert refusal is not None
    assert refusal.in_band is not None
    assert refusal.in_band.reason == v1.ErrorReason.ERROR_REASON_DRAINING
