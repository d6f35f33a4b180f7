"""A server listens at once and serves once its backend is ready; until then it says so."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gradwire import Client, RetryPolicy, UnavailableError, ops, v1
from gradwire_server.backends import NumpyCpu
from gradwire_server.errors import RETRY_AFTER_S
from gradwire_server.plans import Plan
from support.command_line import run_here
from support.processes import environment, run_command
from support.raw_calls import (
    BOTH_WAYS,
    PATIENCE_S,
    RawClient,
    as_stream,
    published_request,
    refused,
    wait_until,
)
from support.servers import ServerThread

COPY = ops.DmlResample(interpolation_mode="linear")
SMALL = np.ones((4, 4), np.float32)


class Leisurely(NumpyCpu):
    """Takes until `ready` is set to get ready, and then computes as NumPy does.

    hurried  whether something was computed before
    """

    name = "leisurely"

    def __init__(self, fault: Exception | None = None) -> None:
        super().__init__()
        self.ready = threading.Event()
        self.hurried = False
        self._fault = fault

    def warm_up(self) -> None:
        assert self.ready.wait(PATIENCE_S)
        if self._fault is not None:
            raise self._fault

    def apply(self, plan: Plan, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> None:
        self.hurried |= not self.ready.is_set()
        super().apply(plan, x, y)


@pytest.fixture
def backend() -> Iterator[Leisurely]:
    backend = Leisurely()
    yield backend
    assert not backend.hurried


@pytest.fixture
def server(backend: Leisurely) -> Iterator[ServerThread]:
    """Start a server that is not ready until a test sets `ready`."""
    server = ServerThread(warm_up=True, backend=backend)
    server.listen()
    yield server
    backend.ready.set()
    server.wait_until_serving()
    server.stop()


@pytest.mark.parametrize("how", BOTH_WAYS)
def test_an_evaluation_is_told_that_the_server_starts(server: ServerThread, how: str) -> None:
    with RawClient(server.address) as client:
        answer = client.ask(published_request(), how)
    refusal = refused(answer, "STARTING", in_band=how == "EvaluateStream")
    assert refusal.retry_after_s == RETRY_AFTER_S


def test_questions_about_the_server_are_answered_while_it_starts(server: ServerThread) -> None:
    with RawClient(server.address) as client:
        told = client.stub.GetServerInfo(v1.GetServerInfoRequest(), timeout=PATIENCE_S)
        listed = client.stub.ListOperators(v1.ListOperatorsRequest(), timeout=PATIENCE_S)
    assert told.backend == "leisurely"
    assert listed.operators


@pytest.mark.parametrize("service", ["", "gradwire.v1.GradientService"])
def test_health_turns_serving_when_the_backend_is_ready(
    server: ServerThread, backend: Leisurely, service: str
) -> None:
    with RawClient(server.address) as client:
        health: Any = health_pb2_grpc.HealthStub(client.channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE_S)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        backend.ready.set()
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        client.check_alive()
        watch.cancel()


def test_the_command_line_says_that_it_waits_for_a_server_that_starts(
    server: ServerThread,
) -> None:
    done = run_here("health", "--target", server.address, "--wait", "0.2")
    assert done.code == 7
    waiting, _ = done.stderr.splitlines()
    assert waiting.startswith(f"gradwire: waiting up to 0.2 s for the server at {server.address}: ")
    assert waiting.endswith(": NOT_SERVING")
    at_once = run_here("health", "--target", server.address, "--json")
    assert at_once.code == 7
    assert json.loads(at_once.stdout)["status"] == "NOT_SERVING"
    assert "is NOT_SERVING" in at_once.stderr


@pytest.mark.parametrize("shape", [(4, 4), (2048, 1024)], ids=["Evaluate", "EvaluateStream"])
def test_the_sdk_waits_for_a_server_that_starts(
    server: ServerThread,
    backend: Leisurely,
    caplog: pytest.LogCaptureFixture,
    shape: tuple[int, ...],
) -> None:
    caplog.set_level(logging.INFO, "gradwire_server")
    array = np.ones(shape, np.float32)
    with Client(server.address) as client:
        results: list[npt.NDArray[Any]] = []

        def evaluate() -> None:
            results.append(client.evaluate(COPY, array, output_shape=shape))

        evaluating = threading.Thread(target=evaluate)
        evaluating.start()
        wait_until(lambda: any("STARTING" in str(vars(one)) for one in caplog.records))
        backend.ready.set()
        evaluating.join(PATIENCE_S)
    (result,) = results
    np.testing.assert_array_equal(result, array)


def test_without_retries_the_sdk_raises_that_the_server_is_unavailable(
    server: ServerThread,
) -> None:
    with (
        Client(server.address, retry=RetryPolicy(max_attempts=1)) as client,
        pytest.raises(UnavailableError, match="getting ready") as caught,
    ):
        client.evaluate(COPY, SMALL, output_shape=SMALL.shape)
    assert (caught.value.reason, caught.value.retry_after_s) == ("STARTING", RETRY_AFTER_S)


def test_a_backend_that_cannot_get_ready_stops_the_server() -> None:
    backend = Leisurely(RuntimeError("no compiler"))
    server = ServerThread(warm_up=True, backend=backend)
    server.listen()
    backend.ready.set()
    with pytest.raises(RuntimeError, match="no compiler"):
        server.wait_until_serving()
    with RawClient(server.address) as client:
        refusal = client.evaluate(published_request()).refusal
    assert refusal is not None
    assert refusal.code is grpc.StatusCode.UNAVAILABLE


def test_without_warm_up_a_server_serves_at_once() -> None:
    backend = Leisurely()
    server = ServerThread(backend=backend, warm_up=False)
    server.start()
    with RawClient(server.address) as client:
        client.check_alive()
        assert client.stream(as_stream(published_request())).refusal is None
    server.stop()


SERVE_LEISURELY = """
import asyncio
from gradwire_server.config.settings import Settings
from gradwire_server.processes import serve
from test_starting import Leisurely

serve.run(serve.serve(Settings(address="127.0.0.1:0"), backend=Leisurely()))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_server_that_starts(number: int) -> None:
    with subprocess.Popen(  # noqa: S603 - the script above
        [sys.executable, "-c", SERVE_LEISURELY],
        stderr=subprocess.PIPE,
        text=True,
        env=environment({"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}),
    ) as process:
        assert process.stderr is not None
        assert "warming up" in process.stderr.readline()
        process.send_signal(number)
        assert "stopped while starting" in process.stderr.readline()
        assert process.wait(PATIENCE_S) == 0


def test_compile_only_compiles_and_serves_nothing() -> None:
    done = run_command("--compile-only", "--backend", "numpy_cpu")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("numpy_cpu is ready after ")


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv.pop(1)),) * 2)
from gradwire_server.__main__ import main
main()
"""


@pytest.mark.parametrize(("limit", "lines"), [(900 << 20, 1), (1 << 30, 0)])
def test_little_address_space_is_told_before_anything_can_crash(limit: int, lines: int) -> None:
    done = run_command(str(limit), "--print-config", program=("-c", LIMITED))
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "RLIMIT_AS" in line]
    assert len(told) == lines
    assert all(f"is allowed {limit} bytes of address space" in line for line in told)
