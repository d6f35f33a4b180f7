"""One line for each call, to be read by people or by programs, with its name and its trace."""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gradwire import v1
from support.processes import run_command
from support.raw_calls import (
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
    send_bytes,
    wrong_request,
)
from support.servers import commanded, served, served_many, wait_idle


def test_every_line_is_json_and_tells_what_was_asked_by_whom_and_how_it_ended(
    tmp_path: Path,
) -> None:
    flags = ("--log-format", "json", "--stall-timeout-s", "0.5", "--access-log")
    with commanded(*flags, "--backend", "auto", log=tmp_path / "log") as (command, client):
        for each in (published_request(), wrong_request()):
            client.evaluate(each)
            client.stream(as_stream(each))
        client.stub.GetServerInfo(v1.GetServerInfoRequest())
        # At whatever moment it is.
        for _ in range(300):
            WaitingStream(client).cancel()
        command.wait_for_log("CANCELLED", times=300)
        call = client.start(as_stream(copies(1 << 15)))
        command.wait_for_log("STALLED")
        call.cancel()
        send_bytes(client, "Evaluate", b"\xff")
        command.stop()
    lines = [json.loads(line) for line in command.log.splitlines()]
    assert all({"time", "level", "event"} <= line.keys() for line in lines)
    events = [line["event"] for line in lines]
    assert events[:2] == ["warming up", "serving"]
    assert events[-2:] == ["draining", "stopped"]
    every = [line for line in lines if line["event"] == "call"]
    assert [(each["method"], each["status"]) for each in every] == [
        ("Evaluate", "OK"),
        ("EvaluateStream", "OK"),
        ("Evaluate", "INVALID_ARGUMENT"),
        ("EvaluateStream", "INVALID_ARGUMENT"),
        ("GetServerInfo", "OK"),
        *[("EvaluateStream", "CANCELLED")] * 300,
        ("EvaluateStream", "DEADLINE_EXCEEDED"),
        ("Evaluate", "INVALID_ARGUMENT"),
    ]
    for each in every[:2]:
        assert (each["operator"], each["sizes"]) == ("dml_resample_grad", [1, 3])
    for each in every[2:4]:
        assert (each["reason"], each["level"]) == ("INVALID_FIELD", "info")
        assert each["error"].startswith("input.sizes[0]: ")
    for each in every[:-2]:
        assert datetime.fromisoformat(each["time"]).tzinfo == UTC
        assert each["duration_ms"] >= 0
        if each["method"] != "GetServerInfo":
            assert (each["request_id"], each["traceparent"]) == (REQUEST_ID, TRACEPARENT)


def test_calls_that_succeed_are_told_at_debug_unless_asked_for(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def told(**settings: Any) -> list[tuple[str, str]]:
        caplog.clear()
        with served_many(**settings) as (_server, client, many):
            # The first of its kind, and one that is known.
            client.check_alive()
            client.check_alive()
            many.send(named(published_request(), "a"))
            many.answers()
            client.evaluate(wrong_request())
        calls = [each for each in caplog.records if each.getMessage() == "call"]
        return [(each.levelname, vars(each)["facts"]["status"]) for each in calls]

    caplog.set_level(logging.DEBUG)
    refused = ("INFO", "INVALID_ARGUMENT")
    assert told() == [*[("DEBUG", "OK")] * 5, refused]
    assert told(access_log=True) == [*[("INFO", "OK")] * 5, refused]
    # Lines below the level are not written.
    with commanded("--log-level", "warning", log=tmp_path / "log") as (command, client):
        client.evaluate(wrong_request())
        command.stop()
    assert not command.log


_TELLING = """
import asyncio, logging, sys
from gradwire_server.observability import logs

async def main():
    for number in range(100):
        logs.tell(logging.INFO, "call", {"number": number, "name": "two words"})
    try:
        raise ValueError("bad")
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
    numbers = [int(number) for number in re.findall(r'(?:number=|"number": )(\d+)', lines)]
    assert numbers == list(range(102))
    assert lines.count("ValueError: bad") == 1
    assert "hidden" not in lines
    if form == "json":
        told = [json.loads(line) for line in lines.splitlines()]
        assert all(each["worker"] == 3 for each in told)
        assert told[100]["traceback"].startswith("Traceback ")
    else:
        time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00"
        assert re.match(rf'{time} info +call worker=3 number=0 name="two words"\n', lines)
        assert re.search(r"error +failed worker=3 number=100\nTraceback ", lines)


def test_a_stream_is_one_line_that_counts_its_requests_and_no_error_where_it_is_cancelled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = [str(number) for number in range(100)]
    with caplog.at_level(logging.DEBUG), served() as (server, client):
        with ManyCall(client) as call:
            call.send(*(named(published_request(), name) for name in names))
            call.send(named(wrong_request(), "bad"))
            call.answers()
        wait_idle(server)
        (facts,) = (vars(each)["facts"] for each in caplog.records if each.getMessage() == "call")
        told = {key: facts[key] for key in ("method", "status", "items", "items_failed")}
        assert told == {"method": "EvaluateMany", "status": "OK", "items": 101, "items_failed": 1}
        for number in range(40):
            with ManyCall(client) as call:
                call.send(*(named(rows(1 + number), name) for name in names))
                for _ in range(number):
                    call.receive()
        wait_idle(server)
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


def test_a_malformed_traceparent_starts_a_new_trace(client: RawClient) -> None:
    zero = "00-00000000000000000000000000000000-b7ad6b7169203331-01"
    upper = "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01"
    for traceparent in ("", "nonsense", zero, upper, "x" * 4000):
        answer = client.evaluate(published_request(), traceparent=traceparent)
        assert answer.refusal is None
        version, trace, span, flags = answer.trailers["traceparent"].split("-")
        assert (version, flags) == ("00", "00")
        assert int(trace, 16)
        assert int(span, 16)
