"""Workers and single servers: signals, ends, addresses; no call is lost."""

import asyncio
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import time
from asyncio.subprocess import PIPE
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import grpc
import pytest
import trustme

from gradwire import CallCancelledError, UnavailableError, v1
from gradwire.health import SERVING, health
from gradwire_server.config import addresses
from gradwire_server.config.settings import Settings
from gradwire_server.processes.gpus import visible
from gradwire_server.processes.supervised import WorkerProcess
from gradwire_server.processes.supervisor import share
from support import raw_calls
from support.certificates import Papers, trusting
from support.load import PATIENT, Callers, repeated
from support.processes import QUICK, environment, is_running, run_command, running_command
from support.raw_calls import PATIENCE_S, RawClient, WaitingStream, wait_until
from support.relay import relaying
from support.servers import ServerThread, commanded, served, serving

FLAGS = ("--workers", "2", *QUICK)
ALONE = ("--address", "127.0.0.1:0", *QUICK)


def is_among(number, pid, mask):
    """Tell whether a process has a signal in one of the masks of /proc/PID/status."""
    text = Path(f"/proc/{pid}/status").read_text()
    bits = int(text.partition(f"\n{mask}:")[2].split()[0], 16)
    return bool(bits >> (number - 1) & 1)


@contextmanager
def starting(log, *arguments):
    """Run Python with these arguments, which make a server of it, and end it."""
    with (
        log.open("wb") as stderr,
        subprocess.Popen(  # noqa: S603 - our own server
            [sys.executable, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=environment(None),
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def wait_for(log, text, process):
    wait_until(lambda: text in log.read_text() or process.poll() is not None)
    assert text in log.read_text()


# Never gets ready.
SERVE_SLOWLY = """
import threading
from gradwire_server.backends import NumpyCpu
from gradwire_server.config import addresses
from gradwire_server.config.settings import Settings
from gradwire_server.processes import serve

class Slow(NumpyCpu):
    def warm_up(self):
        threading.Event().wait()

serve.run(serve.serve(Settings(address="127.0.0.1:0"), backend=Slow()))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_server_that_starts(tmp_path, number):
    log = tmp_path / "log"
    with starting(log, "-c", SERVE_SLOWLY) as process:
        wait_for(log, "warming up", process)
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 0
    assert "stopped while starting" in log.read_text()


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_sigusr2_is_held_until_there_is_a_handler_and_then_heard(tmp_path, workers):
    log = tmp_path / "log"
    with starting(log, "-m", "gradwire_server", *ALONE, "--workers", workers) as process:
        until = time.monotonic() + PATIENCE_S
        while not is_among(signal.SIGUSR2, process.pid, "SigBlk"):
            assert not is_among(signal.SIGUSR2, process.pid, "SigCgt")
            assert time.monotonic() < until
        process.send_signal(signal.SIGUSR2)
        wait_for(log, "no rolling restart" if workers == "1" else "rolling restart done", process)
        # A thread may have taken the signal while the one that starts still holds it back.
        wait_until(lambda: not is_among(signal.SIGUSR2, process.pid, "SigBlk"))
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("moment_s", [0.0, 0.2, 0.4])
def test_a_signal_ends_workers_that_start(tmp_path, number, moment_s):
    log = tmp_path / "log"
    with starting(log, "-m", "gradwire_server", *ALONE, "--workers", "2") as process:
        wait_until(lambda: is_among(signal.SIGTERM, process.pid, "SigCgt"))
        time.sleep(moment_s)
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 0
    assert "Traceback" not in log.read_text()


@pytest.fixture(scope="module")
def crew(tmp_path_factory):
    """Run a server of two workers that logs every call, for tests that leave it as it is."""
    log = tmp_path_factory.mktemp("crew") / "log"
    with running_command("--workers", "2", "--access-log", log=log) as command:
        yield command


def test_connections_spread_over_workers_that_share_memory_and_streams(crew):
    assert crew.workers.keys() == {0, 1}
    assert len({crew.pid, *crew.workers.values()}) == 3

    def seen():
        with RawClient(crew.address) as client:
            client.check_alive()
        return set(re.findall(r" call worker=(\d)", crew.log))

    wait_until(lambda: seen() == {"0", "1"})
    with RawClient(crew.address) as client:
        limits = client.stub.GetServerInfo(v1.GetServerInfoRequest()).limits
    assert limits.max_memory_bytes == Settings().max_memory_bytes // 2
    assert limits.max_streams == Settings().max_streams // 2


def test_workers_divide_what_there_is_and_a_share_is_never_nothing():
    def shared(**settings):
        return share(Settings(cuda_memory_bytes=12, **settings), "127.0.0.1:7", devices=2)

    two, six = shared(workers=2, max_queue=1000), shared(workers=6, max_streams=3, max_queue=4)
    assert (two.max_queue, two.threads) == (500, max(1, len(os.sched_getaffinity(0)) // 2))
    assert (six.max_streams, six.max_queue) == (1, 1)
    assert (two.cuda_memory_bytes, six.cuda_memory_bytes) == (12, 4)
    # Numbers of devices are those among the visible ones.
    assert visible(2, "GPU-a, GPU-b, GPU-c") == "GPU-c"


def test_a_worker_told_to_stop_is_replaced_and_none_outlives_its_parent(tmp_path):
    with running_command(*FLAGS, log=tmp_path / "log") as command:
        pid = command.workers[1]
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: command.workers[1] != pid)
        assert f"worker ended worker=1 pid={pid} status=0 restarts=1" in command.log
        workers = command.workers.values()
        assert all(map(is_running, workers))
        command.signal(signal.SIGKILL)
        command.wait()
        wait_until(lambda: not any(map(is_running, workers)))


@pytest.mark.slow
def test_a_worker_that_does_not_start_is_tried_again_while_another_serves(tmp_path):
    papers, key = Papers(tmp_path), tmp_path / "key.pem"
    with running_command(*FLAGS, *papers.flags, log=tmp_path / "log") as command:
        key.rename(hidden := tmp_path / "hidden.pem")
        command.kill_worker(1)
        command.wait_for_log(" restarts=3 ")
        assert is_running(command.workers[0])
        hidden.rename(key)
        command.wait_for_log(" worker serves worker=1 ", times=2)
        key.unlink()
        for number in (0, 1):
            command.kill_worker(number)
        assert command.wait() == 1
        assert "could not start 5 times in a row and no other one serves" in command.log
        told = re.findall(r" worker ended worker=1 .*pause_s=([\d.]+)", command.log)
        pauses = [float(pause) for pause in told]
        assert pauses[:3] == [0.1, 0.2, 0.4]
        assert all(later >= earlier for earlier, later in itertools.pairwise(pauses))
        assert not any(map(is_running, command.workers.values()))


# Workers take their time to exit, and fail.
SLOW_END = """
import atexit, os, sys, time
if "gradwire_server.processes.worker" in sys.orig_argv:
    atexit.register(lambda: (time.sleep(6), os._exit(7)))
"""


def test_workers_that_exit_slowly_do_not_hang_and_failed_ones_are_named(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SLOW_END)
    env = {"PYTHONPATH": os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))}
    flags = (*FLAGS, "--stall-timeout-s", "4")
    with running_command(*flags, log=tmp_path / "log", env=env) as command:
        command.signal(signal.SIGTERM)
        assert command.wait() == 1
        assert "worker hangs" not in command.log
        assert "Traceback" not in command.log
        assert "worker 1 ended with status 7, told to stop" in command.log
        told = command.log.splitlines()[-1]
        assert told == "Error: worker 0 ended with status 7, told to stop"


LOAD = ("unary", "async unary", "stream", "async copy")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stop_is_noticed_and_a_second_signal_ends_all(tmp_path, workers):
    flags = ("--workers", str(workers), "--drain-delay-s", "5", "--grace-s", "3600")
    with commanded(*flags, log=tmp_path / "log") as (command, client):
        stream = WaitingStream(client)
        command.signal(signal.SIGTERM)
        wait_until(lambda: health(command.address) == "NOT_SERVING")
        with RawClient(command.address) as other:
            other.check_alive()
        assert " draining " not in command.log
        command.wait_for_log(" draining ", times=workers)
        assert command.running
        command.signal(signal.SIGTERM)
        assert command.wait() == -signal.SIGTERM
        stream.send()
        with pytest.raises(grpc.RpcError):
            next(stream.call)
        assert not any(map(is_running, command.workers.values()))


@pytest.mark.slow
def test_no_call_is_lost_while_workers_are_renewed_killed_and_followed(tmp_path):
    with running_command(*FLAGS, log=tmp_path / "1") as command:
        before = command.workers
        with Callers(command.address, *LOAD, retry=PATIENT) as callers:
            callers.wait_for_more()
            with RawClient(command.address) as client:
                running = WaitingStream(client)
                command.signal(signal.SIGUSR2)
                command.wait_for_log(" draining ")
                running.finish()
            answers = set()
            while not answers or " rolling restart done" not in command.log:
                # Otherwise it met a worker that stops.
                with suppress(CallCancelledError, UnavailableError):
                    answers.add(health(command.address))
            assert answers == {SERVING}
            assert not set(before.values()) & set(command.workers.values())
            assert len(re.findall(r" worker replaced worker=\d pid=\d+ status=0", command.log)) == 2
            assert "restarts=" not in command.log
            for killed in ((0,), (1,), (0, 1)):
                callers.wait_for_more()
                served = command.log.count(" worker serves ")
                pids = {number: command.kill_worker(number) for number in killed}
                for number, pid in pids.items():
                    command.wait_for_log(f"worker ended worker={number} pid={pid} status=-9 ")
                command.wait_for_log(" worker serves ", times=served + len(killed))
            callers.wait_for_more()
            assert all(map(is_running, command.workers.values()))
            assert "Traceback" not in command.log
            command.stop()
            flags = (*FLAGS, "--address", command.address)
            with running_command(*flags, log=tmp_path / "2"):
                callers.wait_for_more()
                # Here they end, with the server still there.
                callers.stop()
        callers.check()


@pytest.mark.slow
def test_clients_without_the_sdk_lose_no_call_with_the_documented_config(tmp_path):
    document = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    (config,) = re.findall(r"^```json\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)
    options = [("grpc.service_config", config), ("grpc.use_local_subchannel_pool", 1)]
    with running_command(*FLAGS, log=tmp_path / "log") as command, ExitStack() as stack:
        channels = [
            stack.enter_context(grpc.insecure_channel(command.address, options)) for _ in range(4)
        ]
        stubs = itertools.cycle(map(v1.GradientServiceStub, channels))

        def ask():
            try:
                data = next(stubs).Evaluate(raw_calls.published_request(), timeout=PATIENCE_S).data
            except grpc.RpcError as error:
                return error
            return None if data == raw_calls.PUBLISHED_RESULT else data

        with repeated(ask, threads=4):
            command.signal(signal.SIGUSR2)
            command.wait_for_log(" rolling restart done")
            command.kill_worker(0)
            command.wait_for_log(" worker serves ", times=5)


@pytest.mark.slow
def test_a_failed_replacement_stops_a_restart_and_later_ones_go_on(tmp_path):
    papers, other = Papers(tmp_path), trustme.CA()

    def check_alive(roots):
        with RawClient(command.address, trusting(roots)) as client:
            client.check_alive()

    with running_command(*FLAGS, *papers.flags, log=tmp_path / "log") as command:
        before = command.workers
        (tmp_path / "key.pem").unlink()
        command.signal(signal.SIGUSR2)
        command.wait_for_log(' rolling restart stopped at="worker 0"')
        assert " replacement failed worker=0 " in command.log
        assert command.workers == before
        check_alive(papers.roots)
        papers.write(other)
        command.signal(signal.SIGUSR2)
        command.wait_for_log(" rolling restart done")
        check_alive(other.cert_pem.bytes())


def test_connections_grow_old_and_no_call_is_lost():
    with (
        serving(max_connection_age_s=0.3) as server,
        relaying(server.address) as relay,
        RawClient(relay.address) as client,
    ):
        running = WaitingStream(client)
        with Callers(relay.address, *LOAD, connections=1) as callers:
            # The stream's, and one for each of three clients with three to follow.
            wait_until(lambda: relay.connections >= 1 + 3 + 9)
            callers.wait_for_more()
        callers.check()
        running.finish()
    with served(max_connection_age_s=0) as (_, client):  # which turns it off
        client.check_alive()


@pytest.mark.parametrize(
    ("workers", "flag"),
    [
        ("1", "--address=no.such.host.invalid:1"),
        ("2", "--address=TAKEN"),
        ("1", "--tls-certificate=/no/file"),
        ("1", "--http-port=TAKEN"),
        ("2", "--http-port=TAKEN"),
    ],
)
def test_what_cannot_be_had_is_refused_in_one_line(crew, workers, flag):
    flag = flag.replace("TAKEN", crew.address)
    more = ("--address=127.0.0.1:0", "--tls-key=/no/file" if "tls" in flag else "--insecure")
    done = run_command("--workers", workers, *QUICK, *more, flag)
    assert (done.returncode, done.stdout) == (1, "")
    # grpc's core may add the cause in lines of its own.
    core = re.compile(r"[IWE]\d{4} |WARNING: All log messages before absl")
    (line,) = (each for each in done.stderr.splitlines() if not core.match(each))
    assert line.startswith("Error: ")
    assert flag.partition("=")[2] in line


def check_refused_to_workers(address):
    with pytest.raises(OSError, match=re.escape(address)), addresses.held(address):
        pass


def test_the_address_of_another_server_or_of_no_host_is_refused(crew, tmp_path):
    with served() as (server, _), served(address=f"unix:{tmp_path / 'socket'}") as (local, _):
        for address in (crew.address, server.address, local.address):
            if address is not local.address:
                check_refused_to_workers(address)
            with pytest.raises(OSError, match=address):
                ServerThread(address=address).listen()
            with RawClient(address) as client:
                client.check_alive()
    check_refused_to_workers("no.such.host.invalid:1")


@pytest.mark.parametrize("sharing", [False, True], ids=["alone", "sharing"])
@pytest.mark.parametrize("listening", [False, True], ids=["bound", "listening"])
def test_a_port_of_another_program_is_refused(sharing, listening):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(sharing))
        taken.bind(("127.0.0.1", 0))
        if listening:
            taken.listen()
        check_refused_to_workers(f"127.0.0.1:{taken.getsockname()[1]}")


def port_in_time_wait():
    """Close a connection first, like a server of one worker that stops."""
    with socket.create_server(("127.0.0.1", 0)) as earlier:
        with socket.create_connection(earlier.getsockname()) as client:
            earlier.accept()[0].close()
            assert not client.recv(1)
        return int(earlier.getsockname()[1])


def test_a_port_with_connections_in_time_wait_is_had(tmp_path):
    flags = ("--workers", "2", "--address", f"127.0.0.1:{port_in_time_wait()}")
    with commanded(*flags, log=tmp_path / "log") as (command, client):
        assert command.address == flags[-1]
        client.check_alive()


@pytest.mark.parametrize("port", [port_in_time_wait, lambda: 0], ids=["in TIME_WAIT", "unused"])
def test_a_port_that_is_held_for_workers_that_start_is_refused(port):
    with addresses.held(f"127.0.0.1:{port()}") as address:
        check_refused_to_workers(address)


def test_an_interrupt_before_there_are_workers_ends_the_server():
    program = """
import asyncio
from gradwire_server.config.settings import Settings
from gradwire_server.processes import supervisor
async def interrupted():
    asyncio.current_task().cancel()  # as asyncio does on SIGINT
    await supervisor.supervise(Settings(workers=2, address="127.0.0.1:0"))
asyncio.run(interrupted())
"""
    ended = run_command(program=("-c", program))
    assert ended.stderr.rstrip().endswith("CancelledError")


def test_a_signal_to_a_process_that_ends_leaves_its_status_alone():
    async def status():
        started = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", "", stdout=PIPE)
        process = WorkerProcess(started, stall_timeout_s=60)
        while not process.ended.done():
            # None that would end it: what counts is that it is sent while the process ends.
            process.send(0)
            await asyncio.sleep(0)
        return process.ended.result()

    async def statuses():
        return [await status() for _ in range(40)]

    assert asyncio.run(statuses()) == [0] * 40
