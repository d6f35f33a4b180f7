"""One line for each call, to be read by people or by programs, with its name and its trace."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest

from gradwire import v1
from many_calls import ManyCall, named
from processes import Command, running_command
from raw_calls import (
    PATIENCE_S,
    REQUEST_ID,
    TRACEPARENT,
    RawClient,
    as_stream,
    identity_request,
    published_request,
)
from waiting_streams import WaitingStream


def good_and_bad_calls(command: Command) -> None:
    """Make calls that succeed, are refused, are cancelled, stall, and are noise."""
    with RawClient(command.address) as client:
        client.evaluate(published_request())
        client.stream(as_stream(published_request()))
        bad = published_request()
        bad.input.sizes[0] = -1
        client.evaluate(bad)
        client.stream(as_stream(bad))
        client.stub.GetServerInfo(v1.GetServerInfoRequest())
        WaitingStream(client).cancel()
        command.wait_for_log("CANCELLED")
        stalled = identity_request(1 << 15, 1 << 15, data=bytes(4))
        stalled.input.strides[:] = [0, 0]
        call = client.start(as_stream(stalled))
        command.wait_for_log("STALLED")
        call.cancel()
        client.evaluate(published_request())
        method = "/gradwire.v1.GradientService/Evaluate"
        garbage: grpc.UnaryUnaryMultiCallable[bytes, bytes] = client.channel.unary_unary(method)
        with pytest.raises(grpc.RpcError):
            garbage(b"\xff", timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    log = tmp_path_factory.mktemp("json") / "log"
    flags = ("--log-format", "json", "--stall-timeout-s", "0.5", "--backend", "auto")
    with running_command(*flags, "--access-log", log=log) as command:
        good_and_bad_calls(command)
        command.signal(signal.SIGTERM)
        assert command.wait() == 0
        return command.log.splitlines()


def test_every_line_on_stderr_is_json(lines: list[str]) -> None:
    for line in lines:
        facts = json.loads(line)
        assert isinstance(facts, dict), line
        assert {"time", "level", "event"} <= facts.keys(), line


def calls(lines: list[str]) -> list[dict[str, Any]]:
    """Return the lines of calls, however many others there are."""
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return [facts for facts in found if facts["event"] == "call"]


def test_a_line_of_json_tells_method_status_name_and_trace(lines: list[str]) -> None:
    seen = [(each["method"], each["status"]) for each in calls(lines)][:6]
    assert seen == [
        ("Evaluate", "OK"),
        ("EvaluateStream", "OK"),
        ("Evaluate", "INVALID_ARGUMENT"),
        ("EvaluateStream", "INVALID_ARGUMENT"),
        ("GetServerInfo", "OK"),
        ("EvaluateStream", "CANCELLED"),
    ]
    for each in calls(lines)[:6]:
        assert datetime.fromisoformat(each["time"]).tzinfo == UTC
        assert each["duration_ms"] >= 0
        if each["method"] != "GetServerInfo":
            assert (each["request_id"], each["traceparent"]) == (REQUEST_ID, TRACEPARENT)


def test_a_call_cancelled_at_any_moment_is_logged_as_cancelled(tmp_path: Path) -> None:
    with (
        running_command(log=tmp_path / "log") as command,
        RawClient(command.address) as client,
    ):
        for _ in range(300):
            WaitingStream(client).cancel()
        command.wait_for_log("status=", times=300)
        others = [line for line in command.log.splitlines() if " call " in line]
        assert not [line for line in others if "status=CANCELLED" not in line]


def test_a_refused_call_tells_why(lines: list[str]) -> None:
    refused = [each for each in calls(lines) if each["status"] == "INVALID_ARGUMENT"][:2]
    for each in refused:
        assert each["reason"] == "INVALID_FIELD"
        assert each["error"].startswith("input.sizes[0]: ")
        assert each["level"] == "info"


def test_an_evaluated_call_tells_what(lines: list[str]) -> None:
    for each in calls(lines)[:2]:
        assert each["operator"] == "dml_resample_grad"
        assert each["sizes"] == [1, 3]


def test_start_and_stop_are_told(lines: list[str]) -> None:
    events = [json.loads(line)["event"] for line in lines if line.startswith("{")]
    assert events[:2] == ["warming up", "serving"]
    assert events[-2:] == ["draining", "stopped"]


def test_calls_that_succeed_are_told_at_debug_unless_asked_for(tmp_path: Path) -> None:
    def told(*flags: str) -> list[tuple[str, str]]:
        with running_command(*flags, log=tmp_path / "log") as command:
            with RawClient(command.address) as client, ManyCall(client) as many:
                # The first of its kind, and one that is known.
                client.check_alive()
                client.check_alive()
                many.send(named(published_request(), "a"))
                many.answers()
                wrong = published_request()
                wrong.input.sizes[0] = -1
                client.evaluate(wrong)
            command.signal(signal.SIGTERM)
            assert command.wait() == 0
            return re.findall(r" (\w+) +call method=\w+ status=(\w+)", command.log)

    refused = ("info", "INVALID_ARGUMENT")
    assert told() == [refused]
    assert told("--access-log") == [*[("info", "OK")] * 5, refused]
    assert told("--log-level", "debug") == [*[("debug", "OK")] * 5, refused]


def test_a_line_of_text_is_key_value_pairs(tmp_path: Path) -> None:
    with running_command("--access-log", log=tmp_path / "log") as command:
        with RawClient(command.address) as client:
            client.evaluate(published_request())
        command.wait_for_log(" call ")
        lines = command.log.splitlines()
    (line,) = (each for each in lines if " call " in each)
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00 info +call ", line)
    assert f'request_id="{REQUEST_ID}"' in line
    assert f"traceparent={TRACEPARENT}" in line
    assert "method=Evaluate status=OK" in line


def test_the_least_level_is_kept(tmp_path: Path) -> None:
    with running_command("--log-level", "warning", log=tmp_path / "log") as command:
        with RawClient(command.address) as client:
            client.check_alive()
        command.signal(signal.SIGTERM)
        command.wait()
        assert not command.log


_TELLING = """
import logging, sys
from gradwire_server.observability import logs

log = logging.getLogger("gradwire_server")
logs.configure(sys.argv[1], "info", worker=3)
for number in range(40):
    log.info("call", extra={"facts": {"number": number}})
try:
    raise ValueError("two words")
except ValueError:
    log.exception("failed", extra={"facts": {"number": 40}})
log.debug("hidden")
log.info("call", extra={"facts": {"number": 41}})
log.info("call", extra={"facts": {"number": 42}})
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_lines_come_in_order_with_tracebacks(form: str) -> None:
    command = [sys.executable, "-c", _TELLING, form]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stderr  # noqa: S603
    told = [json.loads(line) for line in lines.splitlines()] if form == "json" else []
    numbers = [int(number) for number in re.findall(r'(?:number=|"number": )(\d+)', lines)]
    assert numbers == list(range(43))
    assert lines.count("ValueError: two words") == 1
    assert "hidden" not in lines
    if form == "json":
        assert all(each["worker"] == 3 for each in told)
        assert told[40]["traceback"].startswith("Traceback ")
    else:
        assert re.search(r"error +failed worker=3 number=40\nTraceback ", lines)
