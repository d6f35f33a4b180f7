"""Workers are renewed, stopped and their connections closed under load, and no call is lost."""

from __future__ import annotations

import re
import signal
import threading
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gradwire import v1
from support.certificates import Papers, trusting
from support.load import Callers
from support.processes import Command, running_command
from support.raw_calls import (
    PATIENCE_S,
    PUBLISHED_RESULT,
    RawClient,
    WaitingStream,
    published_request,
    wait_until,
)
from support.relay import relaying
from support.servers import served, serving

DOCUMENT = Path(__file__).parents[2] / "docs" / "operations.md"
FLAGS = ("--workers", "2", "--backend", "numpy_cpu")
LOAD = ("unary", "async unary", "stream", "async copy")
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def health_of(address: str) -> int | None:
    """Ask over a new connection; return None where that is closed before it is answered."""
    with RawClient(address) as client:
        health: Any = health_pb2_grpc.HealthStub(client.channel)
        question = health_pb2.HealthCheckRequest()
        try:
            answer = health.Check(question, timeout=PATIENCE_S, wait_for_ready=True)
        except grpc.RpcError as error:
            # grpc's answer to what reaches a worker while it stops.
            if cast("grpc.Call", error).code() is grpc.StatusCode.CANCELLED:
                return None
            raise
        status: int = answer.status
        return status


@pytest.mark.slow
def test_a_rolling_restart_renews_every_worker_and_loses_no_call(tmp_path: Path) -> None:
    with running_command(*FLAGS, log=tmp_path / "log") as command:
        before = command.workers
        with Callers(command.address, *LOAD) as callers, RawClient(command.address) as client:
            callers.wait_for_more()
            running = WaitingStream(client)
            command.signal(signal.SIGUSR2)
            command.wait_for_log(" draining ")
            running.finish()
            while " rolling restart done" not in command.log:
                assert health_of(command.address) in {SERVING, None}
            callers.wait_for_more()
        callers.check()
        assert not set(before.values()) & set(command.workers.values())
        assert len(re.findall(r" worker replaced worker=\d pid=\d+ status=0", command.log)) == 2
        assert "restarts=" not in command.log
        assert "Traceback" not in command.log


@pytest.mark.slow
def test_clients_without_the_sdk_lose_no_call_with_the_documented_service_config(
    tmp_path: Path,
) -> None:
    (config,) = re.findall(r"^```json\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    options = [("grpc.service_config", config), ("grpc.use_local_subchannel_pool", 1)]
    over = threading.Event()
    results: list[bytes | grpc.RpcError] = []

    def evaluate() -> None:
        with grpc.insecure_channel(command.address, options) as channel:
            stub = v1.GradientServiceStub(channel)
            while not over.is_set():
                try:
                    results.append(stub.Evaluate(published_request(), timeout=PATIENCE_S).data)
                except grpc.RpcError as error:
                    results.append(error)

    with running_command(*FLAGS, log=tmp_path / "log") as command:
        threads = [threading.Thread(target=evaluate) for _ in range(4)]
        for thread in threads:
            thread.start()
        command.signal(signal.SIGUSR2)
        command.wait_for_log(" rolling restart done")
        command.kill_worker(0)
        command.wait_for_log(" worker serves ", times=5)
        over.set()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert set(results) == {PUBLISHED_RESULT}


@pytest.mark.slow
def test_a_failed_replacement_stops_a_restart_and_a_good_one_takes_new_certificates(
    tmp_path: Path,
) -> None:
    papers, other = Papers(tmp_path), trustme.CA()

    def check_alive(command: Command, roots: bytes) -> None:
        with RawClient(command.address, trusting(roots)) as client:
            client.check_alive()

    with running_command(*FLAGS, *papers.flags, log=tmp_path / "log") as command:
        before = command.workers
        (tmp_path / "key.pem").unlink()
        command.signal(signal.SIGUSR2)
        command.wait_for_log(' rolling restart stopped at="worker 0"')
        assert " replacement failed worker=0 " in command.log
        assert command.workers == before
        check_alive(command, papers.roots)
        papers.write(other)
        command.signal(signal.SIGUSR2)
        command.wait_for_log(" rolling restart done")
        check_alive(command, other.cert_pem.bytes())
        command.stop()


def test_a_stop_during_a_rolling_restart_ends_every_process(tmp_path: Path) -> None:
    with running_command(*FLAGS, log=tmp_path / "log") as command:
        command.signal(signal.SIGUSR2)
        command.wait_for_log(" rolling restart")
        command.stop()
        assert "Traceback" not in command.log
        assert "Error" not in command.log


@pytest.mark.slow
def test_no_call_is_lost_when_a_server_stops_and_another_one_follows(tmp_path: Path) -> None:
    with running_command(*FLAGS, log=tmp_path / "1") as command:
        with Callers(command.address, *LOAD) as callers:
            callers.wait_for_more()
            command.stop()
            flags = (*FLAGS, "--address", command.address)
            with running_command(*flags, log=tmp_path / "2"):
                callers.wait_for_more()
                # Here they end, with the server still there.
                callers.stop()
        callers.check()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_server_goes_on_taking_calls_while_those_who_route_to_it_notice(
    tmp_path: Path, workers: str
) -> None:
    flags = ("--workers", workers, "--backend", "numpy_cpu", "--drain-delay-s", "1.5")
    with running_command(*flags, log=tmp_path / "log") as command:
        command.signal(signal.SIGTERM)
        wait_until(lambda: health_of(command.address) == NOT_SERVING)
        with RawClient(command.address) as client:
            client.check_alive()
        assert " draining " not in command.log
        assert command.wait() == 0
        assert " draining " in command.log


def test_connections_grow_old_and_no_call_is_lost() -> None:
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


def test_connections_do_not_grow_old_where_that_is_turned_off() -> None:
    with served(max_connection_age_s=0) as (_server, client):
        client.check_alive()
