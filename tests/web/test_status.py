"""The status page tells what a server did, of all its workers and of those that have died."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np

from gradwire import Client, ops
from gradwire_server.admin_http.status import DEAD_S, SILENT_S, is_alive, state_of
from gradwire_server.backends.numpy_cpu import NumpyCpu
from gradwire_server.config.settings import Settings
from gradwire_server.config.tokens import Scope, add_token
from gradwire_server.config.version import VERSION
from gradwire_server.observability.cells import TOTAL, Worker, place
from gradwire_server.observability.definitions import READY
from support.processes import memory_kib, running_command
from support.raw_calls import RawClient, as_stream, published_request, wait_until, wrong_request
from support.scraping import get
from support.servers import ServerThread, serving

ITEM = ops.InterpolateBackward(mode="nearest", data_format="NCX"), np.ones((1, 1, 4, 4), np.float32)


def told_at(address: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(get(address, "/status.json")[2])
    return told


def refuse(address: str, request_id: str = "nightly") -> None:
    wrong = wrong_request()
    wrong.request_id = request_id
    with RawClient(address) as client:
        assert client.evaluate(wrong).refusal is not None


def test_calls_items_and_errors_are_told() -> None:
    with serving(http_port="0", backend=NumpyCpu(), max_streams=5) as server:
        address = server.http_address
        with RawClient(server.address) as client:
            for _ in range(3):
                client.evaluate(published_request())
            client.stream(as_stream(published_request()))
        with Client(server.address) as sdk:
            assert len(list(sdk.evaluate_many([(*ITEM, (1, 1, 2, 2))] * 7))) == 7
        for _ in range(4):
            refuse(server.address)
        wait_until(lambda: told_at(address)["totals"]["calls"] == 9)
        wait_until(lambda: [one["count"] for one in told_at(address)["errors"]] == [4])
        told = told_at(address)
    assert (told["state"], told["totals"]["items"]) == ("serving", 7)
    assert (told["version"], told["address"]) == (VERSION, server.address)
    assert (told["backend"], told["backend_reason"]) == ("numpy_cpu", "numpy_cpu was given")
    assert told["settings"]["max_streams"] == told["streams"]["limit"] == 5
    rows = {each["operator"]: each for each in told["operators"]}
    assert list(rows) == ["interpolate_backward", "dml_resample_grad", ""]
    assert (rows["dml_resample_grad"]["calls"], rows["dml_resample_grad"]["failed"]) == (4, 0)
    assert (rows[""]["calls"], rows[""]["failed"]) == (5, 4)
    assert rows["interpolate_backward"]["items"] == 7
    (error,) = told["errors"]
    assert (error["count"], error["reason"], error["request_id"]) == (4, "INVALID_FIELD", "nightly")
    assert "input.sizes[0]" in error["message"]
    phases = {each["phase"]: each for each in told["latency"]}
    assert phases["call"]["count"] == 9
    assert 0 < phases["compute"]["p50_s"] <= phases["compute"]["p99_s"]
    assert [each["device_memory_bytes"] for each in told["workers"]] == [0]


def test_a_stream_that_is_refused_for_a_limit_has_its_operator(tmp_path: Path) -> None:
    flags = ("--http-port", "0", "--max-elements", "1")
    with running_command(*flags, log=tmp_path / "log") as command:
        with RawClient(command.address) as client:
            refusal = client.stream(as_stream(published_request())).refusal
            assert refusal is not None
            assert refusal.info.reason == "LIMIT_EXCEEDED"
        command.wait_for_log("reason=LIMIT_EXCEEDED")
        (line,) = (each for each in command.log.splitlines() if "LIMIT_EXCEEDED" in each)
        assert " operator=dml_resample_grad " in line
        wait_until(lambda: told_at(command.http_address)["errors"])
        told = told_at(command.http_address)
    (error,) = told["errors"]
    assert (error["method"], error["operator"]) == ("EvaluateStream", "dml_resample_grad")
    (row,) = told["operators"]
    assert (row["operator"], row["failed"]) == ("dml_resample_grad", 1)


def test_secrets_are_masked(tmp_path: Path) -> None:
    tokens = tmp_path / "secret"
    add_token(tokens, name="reader", scopes={Scope.INSPECT})
    with serving(http_port="0.0.0.0:0", http_open=True, tokens=str(tokens)) as server:
        port = server.http_address.rpartition(":")[2]
        told = told_at(f"127.0.0.1:{port}")
    assert told["settings"]["tokens"] == "***"
    assert str(tokens) not in json.dumps(told)


def test_workers_are_one_server_and_the_dead_are_not_forgotten(tmp_path: Path) -> None:
    flags = ("--workers", "2", "--backend", "numpy_cpu", "--http-port", "0")
    with running_command(*flags, log=tmp_path / "log") as command:
        address = command.http_address
        told = told_at(address)
        assert (told["state"], told["workers_serving"]) == ("serving", 2)
        assert told["backend"] == "numpy_cpu"
        assert {pid for each in told["workers"] for pid in each["pids"]} == {
            *command.workers.values()
        }
        for worker in told["workers"]:
            resident = memory_kib(worker["pids"][0], "VmRSS") << 10
            assert 0.5 < worker["resident_bytes"] / resident < 2
            assert worker["processor_s"] > 0
            assert worker["request_budget_bytes"] == 0
        budget = told["settings"].get("max_memory_bytes", Settings().max_memory_bytes)
        assert told["request_budget_bytes"] == {"now": 0, "limit": budget}
        seen: list[str] = []

        def both() -> bool:
            seen.append(f"call {len(seen)}")
            refuse(command.address, seen[-1])
            return all(re.search(rf"worker={one} .*reason=INVALID", command.log) for one in "01")

        wait_until(both)
        wait_until(lambda: [one["count"] for one in told_at(address)["errors"]] == [len(seen)])
        command.kill_worker(0)
        command.wait_for_log(" worker serves worker=0 ", times=2)
        wait_until(lambda: [each["restarts"] for each in told_at(address)["workers"]] == [1, 0])
        wait_until(lambda: told_at(address)["workers_serving"] == 2)
        told = told_at(address)
    (error,) = told["errors"]
    assert error["count"] == len(seen) == told["totals"]["calls"]


def worker(silent_s: float, *, ready: bool = True, pids: tuple[int, ...] = (1,)) -> Worker:
    values = np.zeros(TOTAL)
    values[place(READY)] = ready
    return Worker("0", values, pids, silent_s)


def test_a_silent_event_loop_hangs_if_it_served_and_a_server_lives_while_one_does() -> None:
    assert state_of(worker(SILENT_S - 1)) == "serving"
    assert state_of(worker(SILENT_S)) == "hangs"
    # It compiles, say.
    assert state_of(worker(SILENT_S, ready=False)) == "not ready"
    assert state_of(worker(0.0, ready=False, pids=())) == "away"
    dead = worker(DEAD_S)
    assert is_alive([dead, worker(0.0)])
    assert not is_alive([dead, worker(DEAD_S + 1)])
    assert not is_alive([dead, worker(0.0, ready=False)])
    assert is_alive([worker(DEAD_S, ready=False)] * 2)


def test_probes_tell_whether_calls_are_taken_and_the_silence_of_the_event_loop() -> None:
    server, over = ServerThread(http_port="0", backend=NumpyCpu()), threading.Event()
    server.listen()
    address = server.http_address
    assert get(address, "/healthz")[0] == 200
    server.wait_until_serving()
    assert get(address, "/readyz")[0] == 200

    def silent_s() -> float:
        return float(told_at(address)["workers"][0]["silent_s"])

    assert silent_s() < 1
    server.loop.call_soon_threadsafe(over.wait)
    wait_until(lambda: silent_s() > 1)
    over.set()
    wait_until(lambda: silent_s() < 1)
    server.stop()


def test_probes_tell_that_a_part_of_the_workers_serves_and_that_a_server_drains(
    tmp_path: Path,
) -> None:
    flags = ("--workers", "2", "--backend", "numpy_cpu", "--http-port", "0")
    with running_command(*flags, "--drain-delay-s", "60", log=tmp_path / "log") as command:
        address = command.http_address

        def is_partly() -> bool:
            # One that is back before anybody has looked is killed once more.
            with contextlib.suppress(ProcessLookupError):
                command.kill_worker(1)
            return bool(told_at(address)["state"] == "partly")

        wait_until(is_partly)
        assert get(address, "/readyz")[0] == 200
        wait_until(lambda: told_at(address)["state"] == "serving")
        command.signal(signal.SIGTERM)
        wait_until(lambda: get(address, "/readyz")[0] == 503)
        assert get(address, "/healthz")[0] == 200
        wait_until(lambda: told_at(address)["state"] == "away")
