"""Calls before a server is ready; its warm-up leaves no trace."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from click.testing import CliRunner
from grpc_health.v1 import health_pb2, health_pb2_grpc
from numpy.typing import NDArray

from gradwire import Client, v1
from gradwire_server.backends import NumpyCpu
from gradwire_server.command import gradwire_server
from gradwire_server.errors import RETRY_AFTER_S
from gradwire_server.plans import Plan
from support.certificates import Papers
from support.clients import LARGE, SMALL, copied
from support.command_line import GRADWIRE, run_here
from support.processes import environment, run_command, running_command
from support.raw_calls import (
    BOTH_WAYS,
    PATIENCE_S,
    ManyCall,
    RawClient,
    ended,
    named,
    published_request,
    refused,
    wait_until,
)
from support.scraping import scrape
from support.servers import ServerThread, serving

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Leisurely(NumpyCpu):
    """Takes until `ready` is set to get ready, and then computes as NumPy does, if it can.

    hurried  whether something was computed before
    """

    name = "leisurely"
    hurried = False
    fault: Exception | None = None

    def __init__(self) -> None:
        self.ready = threading.Event()

    def warm_up(self) -> None:
        assert self.ready.wait(PATIENCE_S)
        if self.fault is not None:
            raise self.fault

    def apply(self, plan: Plan, x: NDArray[Any], y: NDArray[Any]) -> None:
        self.hurried |= not self.ready.is_set()
        super().apply(plan, x, y)


@contextmanager
def getting_ready() -> Generator[tuple[ServerThread, threading.Event]]:
    """Start a server that is not ready until a test sets the event; it then is, and stops."""
    backend = Leisurely()
    server = ServerThread(warm_up=True, backend=backend)
    server.listen()
    try:
        yield server, backend.ready
    finally:
        backend.ready.set()
        server.wait_until_serving()
        server.stop()
    assert not backend.hurried


def test_calls_are_told_that_the_server_starts_and_questions_are_answered() -> None:
    with getting_ready() as (server, _), RawClient(server.address) as client:
        for how in BOTH_WAYS:
            answer = client.ask(published_request(), how)
            refusal = refused(answer, "STARTING", in_band=how == "EvaluateStream")
            assert refusal.retry_after_s == RETRY_AFTER_S
        with ManyCall(client) as many:
            many.send(named(published_request(), "a"))
            assert ended(many.refusal(), "STARTING").retry_after_s == RETRY_AFTER_S
        told = client.stub.GetServerInfo(v1.GetServerInfoRequest(), timeout=PATIENCE_S)
        listed = client.stub.ListOperators(v1.ListOperatorsRequest(), timeout=PATIENCE_S)
        assert told.backend == "leisurely"
        assert listed.operators
        done = run_here("health", "--target", server.address, "--wait", "0.2")
        at_once = run_here("health", "--target", server.address, "--json")
        assert done.code == at_once.code == 7
        waiting, _ = done.stderr.splitlines()
        start = f"gradwire: waiting up to 0.2 s for the server at {server.address}: "
        assert waiting.startswith(start)
        assert waiting.endswith(": NOT_SERVING")
        assert json.loads(at_once.stdout)["status"] == "NOT_SERVING"


def test_a_command_that_waits_finds_a_server_with_tls_that_starts_later(tmp_path: Path) -> None:
    papers = Papers(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    trusted = ("--tls-ca", str(papers.mutual["tls_client_ca"]))
    ask = ("health", "--target", address, "--wait", str(PATIENCE_S), *trusted)
    with subprocess.Popen((*GRADWIRE, *ask), stderr=subprocess.PIPE, text=True) as waiting:  # noqa: S603
        assert waiting.stderr is not None
        assert "waiting up to" in waiting.stderr.readline()
        with running_command("--address", address, *papers.flags, log=tmp_path / "log"):
            assert waiting.wait(PATIENCE_S) == 0


def test_health_turns_serving_when_the_backend_is_ready_and_ends_with_the_server() -> None:
    with getting_ready() as (server, ready):
        client = RawClient(server.address)
        health: Any = health_pb2_grpc.HealthStub(client.channel)
        watches = [
            health.Watch(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE_S)
            for service in ("", "gradwire.v1.GradientService")
        ]
        assert [next(watch).status for watch in watches] == [NOT_SERVING] * 2
        ready.set()
        assert [next(watch).status for watch in watches] == [SERVING] * 2
        client.check_alive()
    for watch in watches:
        assert next(watch).status == NOT_SERVING
        with pytest.raises(grpc.RpcError):
            next(watch)
    client.channel.close()


def test_the_sdk_waits_for_a_server_that_starts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gradwire_server")

    def told() -> set[object]:
        facts = [vars(one)["facts"] for one in caplog.records if "STARTING" in str(vars(one))]
        return {each["method"] for each in facts}

    with (
        getting_ready() as (server, ready),
        Client(server.address) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        arrays = (SMALL, LARGE)  # by Evaluate and by EvaluateStream
        evaluating = [pool.submit(copied, client, array) for array in arrays]
        wait_until(lambda: told() == {"Evaluate", "EvaluateStream"})
        ready.set()
        for future, array in zip(evaluating, arrays, strict=True):
            np.testing.assert_array_equal(future.result(PATIENCE_S), array)


def test_a_backend_that_cannot_get_ready_stops_the_server() -> None:
    backend = Leisurely()
    backend.fault = RuntimeError("no compiler")
    server = ServerThread(warm_up=True, backend=backend)
    server.listen()
    backend.ready.set()
    with pytest.raises(RuntimeError, match="no compiler"):
        server.wait_until_serving()
    with RawClient(server.address) as client:
        refusal = client.evaluate(published_request()).refusal
    assert refusal is not None
    assert refusal.code is grpc.StatusCode.UNAVAILABLE


def test_compile_only_compiles_and_serves_nothing() -> None:
    done = CliRunner().invoke(gradwire_server, ["--compile-only", "--backend", "numpy_cpu"])
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("numpy_cpu is ready after ")


# Tells what it has imported since it serves, once all that came was answered.
SERVE = """
import asyncio, sys
from gradwire_server.server import Server
from gradwire_server.config.settings import Settings

async def main():
    settings = Settings(address="127.0.0.1:0", wait_for_kernels=True, log_level="error")
    server = Server(settings)
    await server.start()
    before = set(sys.modules)
    print(server.bound, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(*sorted(set(sys.modules) - before))
    await server.stop(0)

asyncio.run(main())
"""

CALL = """
import sys
import numpy as np
from gradwire import Client, Item, ops

before = set(sys.modules)
copy = ops.DmlResample(interpolation_mode="linear")
arrays = [np.ones((4, 4), np.float32), np.ones((512, 512), np.float32)]
with Client(sys.argv[1]) as client:
    for each in arrays:
        client.evaluate(copy, each, output_shape=each.shape)
    for _ in client.evaluate_many(Item(copy, each, each.shape) for each in arrays):
        pass
print(*sorted(set(sys.modules) - before))
"""


def test_the_first_calls_of_a_server_and_a_client_import_nothing() -> None:
    with subprocess.Popen(  # noqa: S603 - the script above
        [sys.executable, "-c", SERVE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(None),
    ) as process:
        assert process.stdout is not None
        calls = run_command(process.stdout.readline().strip(), program=("-c", CALL))
        imported, _ = process.communicate()
    assert calls.returncode == 0, calls.stderr
    assert (imported.split(), calls.stdout.split()) == ([], [])


@pytest.mark.parametrize("workers", [1, 2])
def test_no_trace_of_the_warm_up_is_left(tmp_path: Path, workers: int) -> None:
    folder = tmp_path / "own"  # the path of a socket has at most 107 bytes
    folder.mkdir()
    flags = ("--http-port", "127.0.0.1:0", "--workers", str(workers))
    with running_command(*flags, log=tmp_path / "log", env={"TMPDIR": str(folder)}) as command:
        told = scrape(command.http_address)
        command.wait_for_log(" serving ", times=workers)
        assert "call" not in command.log
        assert list(folder.iterdir()) == []
    for counted in ("gradwire_request", "gradwire_phase", "gradwire_plan_cache"):
        assert [name for name in told.kinds if name.startswith(counted)]
        values = {each: told.value(each) for each, _ in told.samples if each.startswith(counted)}
        assert not any(values.values()), values


def test_nothing_of_the_warm_up_is_kept() -> None:
    with serving(warm_up=True) as server:
        service = server.server.service
        assert service.preparer.lookups == ([0, 0], [0, 0])
        assert (service.admission.memory_bytes, service.admission.streams) == (0, 0)
        assert service.active.none_left.is_set()
        assert not any(service.active.in_phase.values())
