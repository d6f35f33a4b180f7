"""The endpoint tells of every call what a caller saw of it, and nothing that a caller wrote."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gradwire import v1
from gradwire_server.observability.definitions import METRICS
from support.raw_calls import (
    ManyCall,
    RawClient,
    WaitingStream,
    as_stream,
    chunks,
    identity_request,
    named,
    opening,
    published_request,
    wait_until,
    wrong_request,
)
from support.scraping import Scrape, scrape
from support.servers import ServerThread, serving

STREAM = {"method": "EvaluateStream"}
MANY = {"method": "EvaluateMany"}
UNARY = {"method": "Evaluate"}


@pytest.fixture
def server() -> Iterator[ServerThread]:
    with serving(http_port="0", max_streams=2, slab_bytes=1 << 16) as server:
        yield server


@pytest.fixture
def client(server: ServerThread) -> Iterator[RawClient]:
    with RawClient(server.address) as client:
        yield client


def told(server: ServerThread) -> Scrape:
    """Read the metrics of a server."""
    return scrape(server.http_address)


def test_calls_are_counted_by_method_operator_dtype_and_status(
    server: ServerThread, client: RawClient
) -> None:
    for _ in range(3):
        client.evaluate(published_request())
    client.stream(as_stream(published_request()))
    client.stub.ListOperators(v1.ListOperatorsRequest())
    wrong = wrong_request()
    client.evaluate(wrong)
    seen = told(server)
    evaluated = {"operator": "dml_resample_grad", "dtype": "float32", "status": "OK"}
    for name in ("gradwire_requests_total", "gradwire_request_duration_seconds_count"):
        assert seen.value(name, **UNARY, **evaluated) == 3
        assert seen.value(name, **STREAM, **evaluated) == 1
        assert seen.value(name, method="ListOperators", operator="unknown", status="OK") == 1
        assert seen.value(name, **UNARY, operator="unknown", status="INVALID_ARGUMENT") == 1
        assert seen.value(name) == 6
    assert seen.value("gradwire_worker_requests_total", worker="0") == 6
    assert seen.value("gradwire_requests_in_flight") == 0


def test_the_time_of_a_call_is_at_least_that_of_its_phases(
    server: ServerThread, client: RawClient
) -> None:
    client.evaluate(published_request())
    seen = told(server)
    spent = seen.value("gradwire_phase_duration_seconds_sum", operator="dml_resample_grad")
    assert 0 < spent <= seen.value("gradwire_request_duration_seconds_sum")
    phases = seen.labels("gradwire_phase_duration_seconds_count", "phase")
    assert phases == {"receive", "queue", "compute", "send"}


def test_bytes_are_those_of_the_tensors(server: ServerThread, client: RawClient) -> None:
    data = np.ones((64, 1 << 12), "<f4").tobytes()
    request = identity_request(64, 1 << 12, data=data)
    messages = [opening(request), *chunks(data, 1 << 18)]
    assert client.stream(messages).data == data
    client.evaluate(published_request())
    seen = told(server)
    assert seen.value("gradwire_received_bytes_sum", **STREAM) == len(data)
    assert seen.value("gradwire_sent_bytes_sum", **STREAM) == len(data)
    assert seen.value("gradwire_received_bytes_sum", **UNARY) == 12
    assert seen.value("gradwire_sent_bytes_sum", **UNARY) == 16
    # What is handed on is read and written.
    assert seen.value("gradwire_step_bytes_sum") == 2 * len(data)
    assert seen.value("gradwire_step_bytes_count") > 1


def test_what_goes_on_now_is_told(server: ServerThread, client: RawClient) -> None:
    stream = WaitingStream(client)
    assert told(server).value("gradwire_requests_in_flight", worker="0", **STREAM) == 1
    wait_until(lambda: told(server).value("gradwire_streams", worker="0") == 1)
    seen = told(server)
    assert seen.value("gradwire_memory_bytes", worker="0") > 0
    assert seen.value("gradwire_streams_limit", worker="0") == 2
    limit = server.server.settings.max_memory_bytes
    assert seen.value("gradwire_memory_limit_bytes", worker="0") == limit
    assert seen.value("gradwire_worker_ready", worker="0") == 1
    stream.cancel()
    wait_until(lambda: not told(server).value("gradwire_requests_in_flight"))
    wait_until(lambda: not told(server).value("gradwire_streams"))
    cancelled = told(server).value("gradwire_requests_total", status="CANCELLED", **STREAM)
    assert cancelled == 1


def test_errors_are_counted_by_reason_and_by_the_setting_in_the_way(
    server: ServerThread, client: RawClient
) -> None:
    streams = [WaitingStream(client) for _ in range(2)]
    assert client.stream(as_stream(published_request())).refusal is not None
    for stream in streams:
        stream.cancel()
    wrong = wrong_request()
    client.evaluate(wrong)
    unknown = published_request()
    unknown.operator.CopyFrom(v1.Operator.FromString(b"\xfa\x7f\x00"))
    client.evaluate(unknown)
    seen = told(server)
    name = "gradwire_errors_total"
    assert seen.value(name, reason="OVERLOADED", limit="max_streams", **STREAM) == 1
    assert seen.value(name, reason="INVALID_FIELD", limit="", **UNARY) == 1
    assert seen.value(name, reason="UNKNOWN_OPERATOR", **UNARY) == 1
    assert seen.value(name) == 3


def test_items_of_evaluate_many_are_counted_with_their_bytes_and_errors(
    server: ServerThread, client: RawClient
) -> None:
    sound, wrong = published_request(), published_request()
    wrong.input.sizes[0] = -1
    with ManyCall(client) as call:
        call.send(*(named(each, f"{n}") for n, each in enumerate((sound, sound, wrong, sound))))
        assert len(call.answers()) == 4
    seen = told(server)
    evaluated = {"operator": "dml_resample_grad", "dtype": "float32", "status": "OK"}
    assert seen.value("gradwire_items_total", **evaluated) == 3
    failed = {"operator": "unknown", "status": "INVALID_ARGUMENT"}
    assert seen.value("gradwire_items_total", **failed) == 1
    assert seen.value("gradwire_errors_total", reason="INVALID_FIELD", **MANY) == 1
    assert seen.value("gradwire_received_bytes_sum", **MANY) == 4 * 12
    assert seen.value("gradwire_sent_bytes_sum", **MANY) == 3 * 16
    hits = {"cache": "evaluations", "outcome": "hit"}
    wait_until(lambda: told(server).value("gradwire_plan_cache_lookups_total", **hits) == 2)


def test_lookups_of_prepared_evaluations_are_counted(
    server: ServerThread, client: RawClient
) -> None:
    for _ in range(5):
        client.evaluate(published_request())
    name = "gradwire_plan_cache_lookups_total"
    hits = {"cache": "evaluations", "outcome": "hit"}
    wait_until(lambda: told(server).value(name, **hits) == 4)
    seen = told(server)
    assert seen.value(name, cache="evaluations", outcome="miss") == 1
    # Of two axes.
    assert seen.value(name, cache="tables", outcome="miss") == 2
    assert seen.value(name, cache="tables", outcome="hit") == 0


def test_no_word_of_a_caller_is_told(server: ServerThread, client: RawClient) -> None:
    request = published_request()
    request.request_id = "a-word-of-mine"
    client.evaluate(request, traceparent="a-trace-of-mine")
    request.operator.dml_resample_grad.scales[0] = -0.8125
    assert client.evaluate(request).refusal is not None
    seen = told(server)
    values = {value for _, labels in seen.samples for _, value in labels}
    assert seen.value("gradwire_requests_total") == 2
    assert not [value for value in values if "mine" in value or "8125" in value]
    allowed = {value for metric in METRICS for label in metric.labels for value in label.values}
    bounds = {str(bound) for metric in METRICS for bound in metric.buckets}
    assert values <= allowed | bounds | {"0", "+Inf"}


def test_what_is_told_is_what_is_defined_and_documented(
    server: ServerThread, client: RawClient
) -> None:
    client.check_alive()
    client.evaluate(identity_request(2))
    seen = told(server)
    assert seen.kinds == {metric.name: metric.kind for metric in METRICS}
    assert seen.helps == {metric.name: metric.help for metric in METRICS}
    document = (Path(__file__).parents[2] / "docs/metrics.md").read_text()
    rows = [line for line in document.splitlines() if line.startswith(("| `gradwire_", "| `proc"))]
    assert rows == [
        f"| `{metric.name}` | {metric.kind} | {', '.join(metric.label_names)} | {metric.help} |"
        for metric in METRICS
    ]
    for label in {label for metric in METRICS for label in metric.labels}:
        assert f"`{label.name}`" in document


def test_the_build_is_told(server: ServerThread) -> None:
    info = server.server.service
    seen = told(server)
    assert seen.labels("gradwire_build_info", "backend") == {info.backend.name}
    assert seen.value("gradwire_build_info") == 1


def test_a_busy_event_loop_shows_as_lag(server: ServerThread) -> None:
    over = threading.Event()

    def big() -> float:
        seen = told(server)
        name = "gradwire_event_loop_lag_seconds_bucket"
        return seen.value(name, le="+Inf") - seen.value(name, le="0.1")

    before = big()
    server.loop.call_soon_threadsafe(over.wait, 0.6)
    wait_until(lambda: big() > before)
    over.set()
