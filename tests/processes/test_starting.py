"""Calls before a server is ready; its warm-up leaves no trace."""

import json
import logging
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gradwire import Client, v1
from gradwire_server.backends import NumpyCpu
from gradwire_server.errors import RETRY_AFTER_S
from support import raw_calls
from support.certificates import Papers
from support.clients import LARGE, SMALL, copied
from support.command_line import GRADWIRE, run_here
from support.processes import run_command, running_command
from support.raw_calls import PATIENCE_S, RawClient, published_request
from support.scraping import scrape
from support.servers import ServerThread


class Leisurely(NumpyCpu):
    """Takes until `ready` is set to get ready, and then computes as NumPy does.

    hurried  whether something was computed before
    """

    name = "leisurely"
    hurried = False

    def __init__(self):
        self.ready = threading.Event()

    def warm_up(self):
        assert self.ready.wait(PATIENCE_S)

    def apply(self, plan, x, y):
        self.hurried |= not self.ready.is_set()
        super().apply(plan, x, y)


def test_calls_wait_for_a_server_that_starts_and_questions_are_answered(caplog):
    backend = Leisurely()
    server = ServerThread(warm_up=True, backend=backend)
    server.listen()
    address = server.address
    with RawClient(address) as client, Client(address) as sdk, ThreadPoolExecutor(2) as pool:
        for how in raw_calls.BOTH_WAYS:
            answer = client.ask(published_request(), how)
            refusal = raw_calls.refused(answer, "STARTING", in_band=how == "EvaluateStream")
            assert refusal.retry_after_s == RETRY_AFTER_S
        with raw_calls.ManyCall(client) as many:
            many.send(raw_calls.named(published_request(), "a"))
            assert raw_calls.ended(many.refusal(), "STARTING").retry_after_s == RETRY_AFTER_S
        told = client.stub.GetServerInfo(v1.GetServerInfoRequest(), timeout=PATIENCE_S)
        listed = client.stub.ListOperators(v1.ListOperatorsRequest(), timeout=PATIENCE_S)
        assert told.backend == "leisurely"
        assert listed.operators
        done = run_here("health", "--target", address, "--wait", "0.2")
        at_once = run_here("health", "--target", address, "--json")
        assert done.code == at_once.code == 7
        waiting, _ = done.stderr.splitlines()
        assert waiting.startswith(f"gradwire: waiting up to 0.2 s for the server at {address}: ")
        assert waiting.endswith(": NOT_SERVING")
        assert json.loads(at_once.stdout)["status"] == "NOT_SERVING"

        health = health_pb2_grpc.HealthStub(client.channel)
        watches = [
            health.Watch(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE_S)
            for service in ("", "gradwire.v1.GradientService")
        ]
        status = health_pb2.HealthCheckResponse
        assert [next(watch).status for watch in watches] == [status.NOT_SERVING] * 2
        caplog.set_level(logging.INFO, "gradwire_server")

        def refused():
            facts = [vars(one)["facts"] for one in caplog.records if "STARTING" in str(vars(one))]
            return {each["method"] for each in facts}

        arrays = (SMALL, LARGE)  # by Evaluate and by EvaluateStream
        evaluating = [pool.submit(copied, sdk, array) for array in arrays]
        raw_calls.wait_until(lambda: refused() == {"Evaluate", "EvaluateStream"})
        backend.ready.set()
        assert [next(watch).status for watch in watches] == [status.SERVING] * 2
        for future, array in zip(evaluating, arrays, strict=True):
            np.testing.assert_array_equal(future.result(PATIENCE_S), array)
    server.stop()
    assert not backend.hurried


def test_a_command_that_waits_finds_a_server_with_tls_that_starts_later(tmp_path):
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


# Tells what was imported by the first calls.
CALLS = """
import asyncio, sys
import numpy as np
from gradwire import AsyncClient, Item, ops
from gradwire_server.config.settings import Settings
from gradwire_server.server import Server

async def main():
    server = Server(Settings(address="127.0.0.1:0", wait_for_kernels=True, log_level="error"))
    await server.start()
    before = set(sys.modules)
    copy, large = ops.DmlResample(interpolation_mode="linear"), np.ones((512, 512), np.float32)
    async with AsyncClient(server.bound) as client:
        for each in (large[:4, :4], large):
            await client.evaluate(copy, each, output_shape=each.shape)
            await anext(client.evaluate_many([Item(copy, each, each.shape)]))
    print("imported:", *sorted(set(sys.modules) - before))
    await server.stop(0)

asyncio.run(main())
"""


def test_the_first_calls_of_a_server_and_a_client_import_nothing():
    done = run_command(program=("-c", CALLS))
    assert (done.stdout.split(), done.returncode) == (["imported:"], 0), done.stderr


def test_no_trace_of_the_warm_up_is_left(tmp_path):
    folder = tmp_path / "own"  # the path of a socket has at most 107 bytes
    folder.mkdir()
    flags = ("--http-port", "127.0.0.1:0", "--workers", "2")
    with running_command(*flags, log=tmp_path / "log", env={"TMPDIR": str(folder)}) as command:
        told = scrape(command.http_address)
        command.wait_for_log(" serving ", times=2)
        assert "call" not in command.log
        assert list(folder.iterdir()) == []
    for counted in ("gradwire_request", "gradwire_phase", "gradwire_plan_cache"):
        assert [name for name in told.kinds if name.startswith(counted)]
        values = {each: told.value(each) for each, _ in told.samples if each.startswith(counted)}
        assert not any(values.values()), values
