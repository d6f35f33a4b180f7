"""What the log tells of a stream of EvaluateMany, and what it does not tell."""

from __future__ import annotations

import logging
from typing import Any

import numpy.typing as npt
import pytest

from gradwire import v1
from gradwire_server.backends import NumpyCpu
from gradwire_server.plans import Plan
from many_calls import ManyCall, named, rows
from raw_calls import RawClient, published_request, wait_idle
from serving import serving

NAMES = [str(number) for number in range(100)]


def test_a_stream_is_one_line_in_the_log_and_tells_of_its_requests(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad = published_request()
    bad.input.sizes[0] = -1
    with caplog.at_level(logging.DEBUG), serving() as server, RawClient(server.address) as client:
        with ManyCall(client) as call:
            call.send(*(named(published_request(), name) for name in NAMES), named(bad, "bad"))
            call.answers()
        wait_idle(server)
    facts = [vars(each)["facts"] for each in caplog.records if each.getMessage() == "call"]
    assert len(facts) == 1
    told = {key: facts[0][key] for key in ("method", "status", "items", "items_failed")}
    assert told == {"method": "EvaluateMany", "status": "OK", "items": 101, "items_failed": 1}


def test_a_fault_is_told_in_the_log_and_to_its_request_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Faulty(NumpyCpu):
        def apply(self, plan: Plan, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> None:
            if plan.input_shape[-1] == 10:
                raise ZeroDivisionError("a secret")
            super().apply(plan, x, y)

    with (
        serving(backend=Faulty(), warm_up=False) as server,
        RawClient(server.address) as client,
        ManyCall(client) as call,
    ):
        call.send(named(rows(5), "bad"), named(rows(4), "good"))
        answers = call.answers()
    assert answers["good"].WhichOneof("outcome") == "result"
    error = answers["bad"].error
    assert error.reason == v1.ErrorReason.ERROR_REASON_INTERNAL
    assert "secret" not in error.message
    logged = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert [vars(each)["facts"]["request_id"] for each in logged] == ["bad"]
    assert "a secret" in caplog.text


def test_cancelled_streams_leave_no_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as server, RawClient(server.address) as client:
        for number in range(40):
            with ManyCall(client) as call:
                call.send(*(named(rows(1 + number), name) for name in NAMES))
                for _ in range(number):
                    call.receive()
        wait_idle(server)
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
