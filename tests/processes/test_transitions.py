"""A server that starts, changes over to kernels, or stops, loses no call."""

import asyncio
import fcntl
import itertools
import logging
import os
import re
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gradwire import Client, ops, v1
from gradwire._wire.environment import GRPC_VARIABLES
from gradwire_server.backends import NumpyCpu, cache_files, changeover
from gradwire_server.errors import RETRY_AFTER_S
from support import raw_calls
from support.clients import LARGE, SMALL, copied
from support.kernels.numba_calls import compiled, needs_numba
from support.load import KINDS, PAUSE_S, Callers, problem
from support.processes import is_running, running_command
from support.raw_calls import PATIENCE_S, RawClient, named, published_request, read_all, wait_until
from support.scraping import scrape
from support.servers import ServerThread, commanded, served, served_many


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
        wait_until(lambda: refused() == {"Evaluate", "EvaluateStream"})
        backend.ready.set()
        assert [next(watch).status for watch in watches] == [status.SERVING] * 2
        for future, array in zip(evaluating, arrays, strict=True):
            np.testing.assert_array_equal(future.result(PATIENCE_S), array)
    server.stop()
    assert not backend.hurried


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


def endless(piece):
    """Open a stream of 64 GiB and write it piece by piece."""
    yield raw_calls.opening(raw_calls.identity_request(1 << 17, 1 << 17))
    for number in itertools.count():
        yield raw_calls.chunk(number * piece, bytes(piece))


@pytest.mark.parametrize(
    "times", [4, pytest.param(20, marks=[pytest.mark.slow, pytest.mark.heavy])]
)
def test_a_writer_in_full_flow_learns_that_the_server_drains(times):
    def stop(server):
        wait_until(lambda: server.server.service.admission.memory_bytes)
        server.stop()

    for piece in (1 << 10, 64 << 10, 1 << 20) * times:
        server = ServerThread()
        server.start()
        with RawClient(server.address) as client, ThreadPoolExecutor(1) as pool:
            stopped = pool.submit(stop, server)
            raw_calls.told(client.stream(endless(piece)).refusal, "DRAINING")
            stopped.result()


@pytest.mark.parametrize("flow", ["idle", "full"])
def test_streams_that_wait_learn_that_the_server_drains(flow):
    with served_many() as (server, client, many):
        stream = raw_calls.WaitingStream(client)
        many.send(named(published_request(), "a"))
        many.receive()
        if flow == "full":
            many.send(*(named(raw_calls.rows(1 << 10), str(number)) for number in range(4000)))
        server.loop.call_soon_threadsafe(server.server.service.draining.set)
        raw_calls.ended(many.refusal(), "DRAINING")
        answer = read_all(stream.call, itertools.chain([stream.opened], stream.call))
        raw_calls.ended(answer, "DRAINING")
        stream.send()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_draining_server_finishes_what_runs(tmp_path, workers, number):
    flags = ("--grace-s", "30", "--workers", str(workers))
    with commanded(*flags, log=tmp_path / "log") as (command, client):
        if workers == 1:
            for times in (1, 2):
                command.signal(signal.SIGUSR2)
                command.wait_for_log("no rolling restart", times=times)
        stream = raw_calls.WaitingStream(client)
        health = health_pb2_grpc.HealthStub(client.channel)
        question = health_pb2.HealthCheckRequest(service="gradwire.v1.GradientService")
        watch = health.Watch(question, timeout=PATIENCE_S)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        command.signal(number)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()
        command.wait_for_log(" draining ", times=workers)

        def refuses():
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


def test_what_outlasts_the_grace_period_is_ended(tmp_path):
    with running_command("--grace-s", "0", log=tmp_path / "log") as command:
        with RawClient(command.address) as client:
            call = client.start(endless(1 << 16))
            opened = next(call)
            command.signal(signal.SIGTERM)
            answer = read_all(call, itertools.chain([opened], call))
            raw_calls.told(answer.refusal, "DRAINING")
        assert command.wait() == 0


AUTO = ("--backend", "auto")
CHANGED = " backend=numba_cpu after_s="


@pytest.fixture
def cache(tmp_path):
    """Give an empty cache of kernels, locked until `fill` puts in those of this user's cache."""
    folder = tmp_path / "cache"
    folder.mkdir()
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)

    def fill():
        compiled(1)
        shutil.copytree(cache_files.user_folder("kernels"), folder, dirs_exist_ok=True)
        fcntl.flock(lock, fcntl.LOCK_UN)

    yield SimpleNamespace(flags=(*AUTO, "--compile-cache", str(folder)), lock=lock, fill=fill)
    os.close(lock)


@needs_numba
def test_numpy_answers_first_and_kernels_take_over(tmp_path, cache):
    """No call is lost, all bits are right, and kernels continue running sums that NumPy began."""
    array, expected = problem(KINDS["sums"])
    request = v1.EvaluateRequest(
        operator=ops.to_message(KINDS["sums"].operator),
        input=raw_calls.float32(*array.shape),
        output=raw_calls.float32(*expected.shape),
    )
    goes_on = threading.Event()

    def messages():
        yield raw_calls.opening(request)
        for number, piece in enumerate(raw_calls.chunks(array.tobytes(), 1 << 20)):
            if number == 4:
                goes_on.wait()
            yield piece

    def check(backend, to_come):
        many.send(named(published_request(), backend))
        assert many.receive().result.data == raw_calls.PUBLISHED_RESULT
        told = client.stub.GetServerInfo(v1.GetServerInfoRequest())
        assert (told.backend, told.backend_to_come) == (backend, to_come)
        metrics = scrape(command.http_address)
        assert metrics.value("gradwire_kernels_pending") == bool(to_come)
        for name in ("numpy_cpu", "numba_cpu"):
            assert metrics.value("gradwire_build_info", backend=name) == (name == backend)

    flags = (*cache.flags, "--slab-bytes", str(1 << 18), "--http-port", "127.0.0.1:0")
    with (
        commanded(*flags, log=tmp_path / "log") as (command, client),
        raw_calls.ManyCall(client) as many,
    ):
        call = client.start(messages())
        kinds = ("unary", "small stream", "sums", "many")
        with Callers(command.address, *kinds, pause_s=PAUSE_S) as callers:
            callers.wait_for_more()
            check("numpy_cpu", "numba_cpu")
            cache.fill()
            command.wait_for_log(CHANGED)
            check("numba_cpu", "")
            assert "compiling" not in command.log
            callers.wait_for_more()
        callers.check()
        goes_on.set()
        assert read_all(call).data == expected.tobytes()


@pytest.mark.slow
@needs_numba
def test_workers_change_over_and_a_restart_waits_for_kernels(tmp_path, cache):
    flags = ("--workers", "2", *cache.flags)
    with running_command(*flags, log=tmp_path / "log") as command:
        assert command.log.count(" serving ") == 2
        cache.fill()
        command.wait_for_log(CHANGED, times=2)
        assert "compiling" not in command.log
        command.signal(signal.SIGUSR2)
        command.wait_for_log(" rolling restart done")
        serving = re.findall(r" serving .* backend=(\w+)", command.log)
        assert serving == ["numpy_cpu", "numpy_cpu", "numba_cpu", "numba_cpu"]
        # A stop amid the next restart ends every process.
        command.signal(signal.SIGUSR2)
        command.wait_for_log(" rolling restart", times=3)
        command.stop()
        assert "Traceback" not in command.log
        assert "Error" not in command.log


@needs_numba
def test_a_server_told_to_wait_for_kernels_computes_with_them_alone():
    with served(wait_for_kernels=True) as (_server, client):
        info = client.stub.GetServerInfo(v1.GetServerInfoRequest())
    assert (info.backend, info.backend_to_come) == ("numba_cpu", "")


def compiling(command):
    """Wait until a server has children that compile, and return them."""
    found = []

    def children():
        tasks = Path(f"/proc/{command.pid}/task").glob("*/children")
        found[:] = [child for task in tasks for child in task.read_text().split()]
        return found

    command.wait_for_log(" compiling kernels")
    wait_until(children)
    return [int(child) for child in found]


@needs_numba
def test_a_killed_child_is_replaced_and_none_is_left(tmp_path, cache):
    fcntl.flock(cache.lock, fcntl.LOCK_UN)
    with commanded(*cache.flags, log=tmp_path / "log") as (command, client):
        child = compiling(command)[0]

        def environment():
            return set(Path(f"/proc/{child}/environ").read_bytes().split(b"\0"))

        # Handlers of grpc start threads between fork and exec, which end some of the children by
        # SIGSEGV. Until its exec a child shows the variables with which the server was started.
        wait_until(lambda: b"GRPC_ENABLE_FORK_SUPPORT=0" in environment())
        assert {f"{key}={value}".encode() for key, value in GRPC_VARIABLES.items()} < environment()
        os.kill(child, signal.SIGKILL)
        command.wait_for_log("ended with status -9")
        command.wait_for_log(" compiling kernels", times=2)
        client.check_alive()
        found = compiling(command)
        command.signal(signal.SIGKILL)
        assert command.wait() == -signal.SIGKILL
        wait_until(lambda: not any(map(is_running, found)))
        assert "Traceback" not in command.log


@needs_numba
def test_without_a_cache_children_compile_into_a_temporary_folder(tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    flags = (*AUTO, "--compile-cache", "/dev/null/cache")
    env = {"TMPDIR": str(temporary)}
    with running_command(*flags, log=tmp_path / "log", env=env) as command:
        found = compiling(command)
        assert command.log.count("kernels cannot be cached") == 1
        assert list(temporary.glob("gradwire-kernels-*"))
        command.stop()
        wait_until(lambda: not any(map(is_running, found)))
        assert "Traceback" not in command.log
    assert list(temporary.iterdir()) == []


def test_children_that_fail_are_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(changeover, "_PROGRAM", ("-c", "raise SystemExit('no compiler here')"))
    monkeypatch.setattr(changeover, "_PAUSE_S", 0.0)
    backend = SimpleNamespace(load_stored=lambda _folder: False)
    with pytest.raises(RuntimeError, match="status 1: no compiler here"):
        asyncio.run(changeover.load_kernels(backend, cache_dir=str(tmp_path)))
