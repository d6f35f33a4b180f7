"""One line for each call, to be read by people or by programs, with its name and its trace."""

from __future__ import annotations

import json
import logging
import re
import signal
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest

from gradwire import v1
from support.processes import Command, run_command, running_command
from support.raw_calls import (
    PATIENCE_S,
    REQUEST_ID,
    TRACEPARENT,
    ManyCall,
    RawClient,
    WaitingStream,
    as_stream,
    copies,
    named,
    published_request,
    rows,
    wrong_request,
)
from support.servers import commanded, served, wait_idle


def good_and_bad_calls(command: Command) -> None:
    """Make calls that succeed, are refused, are cancelled, stall, and are noise."""
    with RawClient(command.address) as client:
        client.evaluate(published_request())
        client.stream(as_stream(published_request()))
        bad = wrong_request()
        client.evaluate(bad)
        client.stream(as_stream(bad))
        client.stub.GetServerInfo(v1.GetServerInfoRequest())
        WaitingStream(client).cancel()
        command.wait_for_log("CANCELLED")
        call = client.start(as_stream(copies(1 << 15)))
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
        command.stop()
        return command.log.splitlines()


def test_every_line_on_stderr_is_json_from_start_to_stop(lines: list[str]) -> None:
    for line in lines:
        assert {"time", "level", "event"} <= json.loads(line).keys(), line
    events = [json.loads(line)["event"] for line in lines]
    assert events[:2] == ["warming up", "serving"]
    assert events[-2:] == ["draining", "stopped"]


def test_a_line_of_json_tells_what_was_asked_by_whom_and_how_it_ended(lines: list[str]) -> None:
    every = [facts for facts in map(json.loads, lines) if facts["event"] == "call"]
    assert [(each["method"], each["status"]) for each in every][:6] == [
        ("Evaluate", "OK"),
        ("EvaluateStream", "OK"),
        ("Evaluate", "INVALID_ARGUMENT"),
        ("EvaluateStream", "INVALID_ARGUMENT"),
        ("GetServerInfo", "OK"),
        ("EvaluateStream", "CANCELLED"),
    ]
    for each in every[:2]:
        assert (each["operator"], each["sizes"]) == ("dml_resample_grad", [1, 3])
    for each in every[2:4]:
        assert (each["reason"], each["level"]) == ("INVALID_FIELD", "info")
        assert each["error"].startswith("input.sizes[0]: ")
    for each in every[:6]:
        assert datetime.fromisoformat(each["time"]).tzinfo == UTC
        assert each["duration_ms"] >= 0
        if each["method"] != "GetServerInfo":
            assert (each["request_id"], each["traceparent"]) == (REQUEST_ID, TRACEPARENT)


def test_a_call_cancelled_at_any_moment_is_logged_as_cancelled(tmp_path: Path) -> None:
    with commanded(log=tmp_path / "log") as (command, client):
        for _ in range(300):
            WaitingStream(client).cancel()
        command.wait_for_log("status=", times=300)
        others = [line for line in command.log.splitlines() if " call " in line]
        assert not [line for line in others if "status=CANCELLED" not in line]


def test_calls_that_succeed_are_told_at_debug_unless_asked_for(tmp_path: Path) -> None:
    def told(*flags: str) -> list[tuple[str, str]]:
        with running_command(*flags, log=tmp_path / "log") as command:
            with RawClient(command.address) as client, ManyCall(client) as many:
                # The first of its kind, and one that is known.
                client.check_alive()
                client.check_alive()
                many.send(named(published_request(), "a"))
                many.answers()
                wrong = wrong_request()
                client.evaluate(wrong)
            command.stop()
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
import asyncio, logging, sys
from gradwire_server.observability import logs

async def main():
    for number in range(100):
        logs.tell(logging.INFO, "call", {"number": number})
    try:
        raise ValueError("two words")
    except ValueError:
        log.exception("failed", extra={"facts": {"number": 100}})
    log.debug("hidden")
    logs.tell(logging.INFO, "call", {"number": 101})

log = logging.getLogger("gradwire_server")
logs.configure(sys.argv[1], "info", worker=3)
asyncio.run(main())
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_lines_that_wait_come_in_order_with_tracebacks_and_before_the_end(form: str) -> None:
    lines = run_command(form, program=("-c", _TELLING)).stderr
    told = [json.loads(line) for line in lines.splitlines()] if form == "json" else []
    numbers = [int(number) for number in re.findall(r'(?:number=|"number": )(\d+)', lines)]
    assert numbers == list(range(102))
    assert lines.count("ValueError: two words") == 1
    assert "hidden" not in lines
    if form == "json":
        assert all(each["worker"] == 3 for each in told)
        assert told[100]["traceback"].startswith("Traceback ")
    else:
        assert re.search(r"error +failed worker=3 number=100\nTraceback ", lines)


NAMES = [str(number) for number in range(100)]


def test_a_stream_is_one_line_in_the_log_and_tells_of_its_requests(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad = wrong_request()
    with caplog.at_level(logging.DEBUG), served() as (server, client):
        with ManyCall(client) as call:
            call.send(*(named(published_request(), name) for name in NAMES), named(bad, "bad"))
            call.answers()
        wait_idle(server)
    facts = [vars(each)["facts"] for each in caplog.records if each.getMessage() == "call"]
    assert len(facts) == 1
    told = {key: facts[0][key] for key in ("method", "status", "items", "items_failed")}
    assert told == {"method": "EvaluateMany", "status": "OK", "items": 101, "items_failed": 1}


def test_cancelled_streams_leave_no_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with served() as (server, client):
        for number in range(40):
            with ManyCall(client) as call:
                call.send(*(named(rows(1 + number), name) for name in NAMES))
                for _ in range(number):
                    call.receive()
        wait_idle(server)
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "nonsense",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "x" * 4000,
    ],
)
def test_a_malformed_traceparent_starts_a_new_trace(client: RawClient, traceparent: str) -> None:
    answer = client.evaluate(published_request(), traceparent=traceparent)
    assert answer.refusal is None
    version, trace, span, flags = answer.trailers["traceparent"].split("-")
    assert (version, flags) == ("00", "00")
    assert int(trace, 16)
    assert int(span, 16)
