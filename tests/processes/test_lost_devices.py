"""A worker that loses its GPU is replaced: no other bits, no lost call, and a message each."""

import itertools
import os
import re
import signal
import socket
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path

import grpc
import numpy as np
import pytest
from click.testing import CliRunner

from gradwire import Client, Item, OutOfMemoryError, UnavailableError, ops, v1
from gradwire_server import DeviceLostError, LocalClient, backends
from gradwire_server.backends import NumpyCpu
from gradwire_server.command import gradwire_server
from support.clients import BILINEAR, half, halved
from support.kernels import simulated_device
from support.kernels.cuda_table import needs_simulator
from support.kernels.simulated_device import FLAGS, serving, variables
from support.load import KINDS, PATIENT, Callers
from support.processes import is_running
from support.raw_calls import (
    PATIENCE_S,
    RawClient,
    ended,
    float32,
    opening,
    read_all,
    refused,
    silence,
    wait_until,
)
from support.scraping import get, scrape
from support.servers import served

pytestmark = needs_simulator

HTTP = ("--http-port", "127.0.0.1:0")
SMALL, LARGE = (1, 3, 64, 64), KINDS["stream"].sent
LOST = (
    f"the device is lost: {simulated_device.ILLEGAL}; another process opens it: retry after 0.25 s"
)


@cache
def gradient(shape=SMALL):
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def evaluated(target, shape=SMALL, **options):
    """Return the bytes of the result of one call."""
    return bytes(halved(target, gradient(shape), **options).tobytes())


@cache
def expected(shape=SMALL):
    with LocalClient("numpy_cpu") as local:
        return evaluated(local, shape)


def request(shape=SMALL):
    """Ask for the same as `evaluated` does, in one message."""
    return v1.EvaluateRequest(
        operator=ops.to_message(BILINEAR),
        input=float32(*shape),
        output=float32(*half(gradient(shape))),
        data=gradient(shape).tobytes(),
    )


OPENED = [opening(request(LARGE))]


def check_evaluates(command):
    """Evaluate once, over new connections until one is answered."""
    with Client(command.address, retry=PATIENT) as client:
        assert evaluated(client) == expected()


def lose(command, file):
    """Have a device lost by the next call that comes to it, and make such a call."""
    file.touch()

    def is_lost():
        check_evaluates(command)  # the kernel chooses the worker of each connection
        return not file.exists()

    wait_until(is_lost)


def check_replaced(command, first, *, status):
    """Wait for the end of a worker and for the next one; assert that it computes."""
    ended = f"worker ended worker=0 pid={first} device=0 status={status} restarts="
    command.wait_for_log(ended)
    assert f"{ended}{command.log.count('worker ended worker=0 ')} " in command.log
    wait_until(lambda: command.workers[0] != first)
    check_evaluates(command)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("device")


@pytest.fixture(scope="module")
def one(folder):
    """Run a server on one device, which each test leaves with a worker that serves."""
    with serving(folder, *HTTP) as command:
        yield command


@pytest.fixture(scope="module")
def devices(tmp_path_factory):
    return tmp_path_factory.mktemp("devices")


@pytest.fixture(scope="module")
def two(devices):
    """Run a server on two devices, with a worker for each."""
    with serving(devices, *HTTP, "--compute-threads", "2", devices=2) as command:
        command.wait_for_log(" worker serves ", times=2)
        yield command
        pids = list(command.workers.values())
        command.stop()
    assert not any(map(is_running, pids))


def test_every_way_to_call_has_the_bits_of_numpy(two):
    with Client(two.address) as client, LocalClient("numpy_cpu") as local:
        assert client.server_info().backend == "cuda"
        for shape in (SMALL, LARGE):
            assert evaluated(client, shape) == expected(shape)
        arrays = [gradient((1, 1, 8, size)) for size in range(8, 48, 2)]
        items = [Item(BILINEAR, array, output_shape=half(array)) for array in arrays]
        for result, array in zip(client.evaluate_many(items), arrays, strict=True):
            assert np.asarray(result).tobytes() == halved(local, array).tobytes()


def test_each_worker_sees_one_device_and_the_supervisor_opens_none(two):
    assert "cudasim" not in Path(f"/proc/{two.pid}/maps").read_text()
    told = scrape(two.http_address)
    for number, pid in two.workers.items():
        seen = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        assert b"CUDA_VISIBLE_DEVICES=%d" % number in seen
        assert told.value("gradwire_device_memory_bytes", worker=str(number)) > 0


def test_want_of_memory_is_an_error_that_passes(two, devices):
    shape, files = (1, 2, 300, 300), [devices / "full-0", devices / "full-1"]
    for file in files:
        file.touch()
    with Client(two.address) as client:
        with pytest.raises(OutOfMemoryError):
            evaluated(client, shape)
        for file in files:
            file.unlink()
        assert evaluated(client, shape) == expected(shape)


@pytest.mark.slow
def test_devices_that_are_lost_one_by_one_or_at_once_cost_no_call(two, devices):
    before = two.log.count(" worker serves ")
    with Callers(two.address, "unary", "async stream", "many", retry=PATIENT) as callers:
        callers.wait_for_more()
        # While one device is away the other one serves every call.
        (devices / "waits-0").touch()
        lose(two, devices / "broken-0")
        for _ in range(3):
            callers.wait_for_more()
        assert get(two.http_address, "/readyz")[0] == 200
        assert two.log.count(" worker serves ") == before
        (devices / "waits-0").unlink()
        two.wait_for_log(" worker serves ", times=before + 1)
        callers.wait_for_more()
        two.kill_worker(1)
        two.wait_for_log(" worker serves ", times=before + 2)
        lose(two, devices / "broken-0")
        lose(two, devices / "broken-1")
        two.wait_for_log(" worker serves ", times=before + 4)
        callers.wait_for_more()
    callers.check()


SILENT = "it has not answered for 3.0 s (GRADWIRE_STALL_TIMEOUT_S)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stall_s", "faults"),
    # Each server meets two faults, one after the other.
    [
        ("60", {"load-0": simulated_device.AWAY, "broken-0": simulated_device.ILLEGAL}),
        ("3", {"waits-0": SILENT, "hung-0": SILENT}),
    ],
    ids=["lost", "hangs"],
)
def test_a_device_that_is_lost_at_the_start_is_opened_by_another_worker(tmp_path, stall_s, faults):
    """One worker meets a fault as it opens the device, the next one at its warm-up."""
    log = tmp_path / "log"
    for file in faults:
        (tmp_path / file).touch()

    def let_go():
        wait_until(lambda: log.exists() and " device lost " in log.read_text())
        (tmp_path / "waits-0").unlink(missing_ok=True)

    letting_go = threading.Thread(target=let_go)
    letting_go.start()
    with serving(tmp_path, "--stall-timeout-s", stall_s) as command:
        letting_go.join()
        told = re.findall(r" device lost worker=0 error=\"(.*)\" status=3\n", command.log)
        # A busy machine may be slow once more.
        assert list(dict.fromkeys(told)) == list(dict.fromkeys(faults.values()))
        assert command.log.count("worker ended worker=0 ") == len(told) >= len(faults)
        assert not any((tmp_path / file).exists() for file in faults)
        check_evaluates(command)


def test_all_calls_that_lose_the_device_say_so_and_the_next_one_finds_another_worker(one, folder):
    """Streams that wait for their callers end too, and their last message has the reason."""
    with RawClient(one.address) as client, silence(OPENED) as waiting:
        first, losses = one.workers[0], one.log.count("device lost")
        streams = [client.start(waiting()) for _ in range(3)]
        opened = [next(each) for each in streams]
        (folder / "waits-0").touch()
        (folder / "broken-0").touch()
        lost = refused(client.evaluate(request()), "DEVICE_LOST")
        assert (lost.message, lost.retry_after_s) == (LOST, 0.25)
        for message, each in zip(opened, streams, strict=True):
            answer = read_all(each, itertools.chain([message], each))
            assert ended(answer, "DEVICE_LOST").message == LOST
        assert one.log.count("device lost") == losses + 1
        wait_until(lambda: not is_running(first))
        assert get(one.http_address, "/readyz")[0] == 503
        (folder / "waits-0").unlink()
        check_replaced(one, first, status=3)
        wait_until(lambda: get(one.http_address, "/readyz")[0] == 200)


class Losing(NumpyCpu):
    """NumPy, as a device that is lost once a test says so."""

    may_wait = True
    is_lost = False

    def apply(self, plan, x, y):
        if self.is_lost:
            raise DeviceLostError("gone")
        super().apply(plan, x, y)


def test_no_connection_comes_to_a_server_that_has_told_of_the_loss():
    """Its listener is closed before the first status leaves, and every call ends alike."""
    backend = Losing()
    with served(backend=backend) as (server, client), silence(OPENED) as waiting:
        stream = client.start(waiting())
        first = next(stream)
        backend.is_lost = True
        answer = client.evaluate(request())
        host, _, port = server.address.rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))
        refused(answer, "DEVICE_LOST")
        refused(read_all(stream, itertools.chain([first], stream)), "DEVICE_LOST")
        wait_until(server.server.over.is_set)


def test_a_stream_amid_which_the_device_is_lost_is_resumed_with_the_same_bits(one, folder):
    timings, lost, shape = [], threading.Event(), (4, 64, 320, 320)

    def lose_midway(_sent, received):
        if received and not lost.is_set():
            lost.set()
            (folder / "broken-0").touch()

    same, first = expected(shape), one.workers[0]
    with Client(one.address, retry=PATIENT) as client:
        options = {"on_progress": lose_midway, "on_timing": timings.append}
        assert evaluated(client, shape, **options) == same
    assert lost.is_set()
    assert timings[0].tries > 1
    check_replaced(one, first, status=3)


@pytest.mark.slow
def test_a_device_that_does_not_answer_is_lost_after_the_stall_time(tmp_path):
    with serving(tmp_path, "--stall-timeout-s", "2") as command:
        for waits in (True, False):
            first = command.workers[0]
            with RawClient(command.address) as client:
                grpc.channel_ready_future(client.channel).result(PATIENCE_S)
                (tmp_path / "hung-0").touch()
                answer = client.evaluate(request(), timeout_s=30 if waits else 0.3)
            if waits:
                lost = refused(answer, "DEVICE_LOST")
                assert "it has not answered for 2.0 s (GRADWIRE_STALL_TIMEOUT_S)" in lost.message
            else:
                assert answer.code is grpc.StatusCode.DEADLINE_EXCEEDED
            check_replaced(command, first, status=3)


@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=["unary", "stream"])
def test_a_worker_that_is_killed_amid_a_call_costs_it_a_retry(one, folder, shape):
    hung, answers, first = folder / "hung-0", [], one.workers[0]
    with RawClient(one.address) as stock, Client(one.address, retry=PATIENT) as client:
        grpc.channel_ready_future(stock.channel).result(PATIENCE_S)
        hung.touch()
        calling = threading.Thread(target=lambda: answers.append(evaluated(client, shape)))
        calling.start()
        wait_until(lambda: not hung.exists())
        # The kernel hangs, and so does whatever comes after it.
        waiting = stock.stub.Evaluate.future(request(), timeout=60)
        one.kill_worker(0)
        calling.join()
        with pytest.raises(grpc.RpcError) as broken:
            waiting.result()
    assert answers == [expected(shape)]
    assert broken.value.code() is grpc.StatusCode.UNAVAILABLE
    check_replaced(one, first, status=-9)


@pytest.mark.slow
def test_a_device_that_stays_away_ends_the_server(tmp_path):
    with serving(tmp_path) as command:
        (tmp_path / "absent-0").touch()
        command.kill_worker(0)
        assert command.wait() == 1
        assert command.log.splitlines()[-1] == (
            "Error: worker 0 could not start 5 times in a row and no other one serves; it lost its "
            "device"
        )


@pytest.mark.slow
def test_a_device_that_is_not_there_and_a_worker_that_nothing_ends_hold_up_no_other_one(tmp_path):
    """A driver may hold a process whatever signal it gets; here a supervisor's SIGKILL is lost."""
    (tmp_path / "unkillable").touch()
    (tmp_path / "absent-0").touch()
    flags = (*HTTP, "--stall-timeout-s", "2", "--grace-s", "0")
    with serving(tmp_path, *flags, devices=2) as command:
        check_evaluates(command)
        assert get(command.http_address, "/readyz")[0] == 200
        (tmp_path / "absent-0").unlink()
        command.wait_for_log(" worker serves ", times=2)
        stuck = command.workers[0]
        os.kill(stuck, signal.SIGSTOP)
        command.wait_for_log(f"worker hangs pid={stuck} ")
        command.wait_for_log(f"worker ignores SIGKILL worker=0 pid={stuck} ")

        def is_served():
            # The kernel still gives the stuck worker connections, which nobody answers.
            client = Client(command.address, retry=PATIENT, timeout_s=60, connect_timeout_s=1)
            with suppress(UnavailableError), client:
                return evaluated(client) == expected()
            return False

        wait_until(is_served)
        assert get(command.http_address, "/readyz")[0] == 200
        other = command.kill_worker(1)
        wait_until(lambda: command.workers[1] != other)
        assert is_running(stuck)
        command.signal(signal.SIGTERM)
        assert command.wait() == 1
        assert command.log.splitlines()[-1] == (
            f"Error: worker 0 is left behind: SIGKILL has not ended {stuck}"
        )
    # The system kills it when its parent has ended.
    wait_until(lambda: not is_running(stuck))


def test_a_supervisor_that_is_killed_leaves_nothing_of_the_device_chosen(tmp_path):
    outer = {"CUDA_VISIBLE_DEVICES": "3, 7,5"}
    flags = ("--cuda-devices", "1", "--workers", "2")
    with serving(tmp_path, *flags, env=outer) as command:
        told = re.findall(r" worker serves worker=(\d) pid=\d+ device=(\d)", command.log)
        assert sorted(told) == [("0", "7"), ("1", "7")]
        pids = list(command.workers.values())
        assert all(map(is_running, pids))
        os.kill(command.pid, signal.SIGKILL)
        wait_until(lambda: not any(map(is_running, pids)))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Have this process see simulated devices; return the folder of their files."""
    monkeypatch.setattr(backends, "DEVICES", "support.kernels.simulated_device")
    given = variables(tmp_path)
    # numba reads NUMBA_DISABLE_JIT once, for all later tests of this process.
    for name in (simulated_device.FOLDER, "PYTHONPATH"):
        monkeypatch.setenv(name, given[name])
    return tmp_path


@pytest.mark.parametrize(
    ("file", "words"),
    [("missing", simulated_device.NONE), ("count", "--workers is 3 and there are 2 GPUs")],
)
def test_a_start_that_cannot_be_ends_with_one_line(here, file, words):
    (here / file).write_text("2")
    done = CliRunner().invoke(gradwire_server, [*FLAGS, "--workers", "3"])
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: ")
    assert words in line


def test_a_local_client_says_that_the_device_is_lost_and_its_process_goes_on(here, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with LocalClient("cuda") as local:
        assert evaluated(local) == expected()
        (here / "broken-0").touch()
        for shape in (SMALL, LARGE):
            with pytest.raises(DeviceLostError, match=simulated_device.ILLEGAL):
                evaluated(local, shape)
        with pytest.raises(DeviceLostError):
            next(local.evaluate_many([Item(BILINEAR, gradient(), half(gradient()))]))
    assert evaluated(LocalClient("cuda")) == expected()
