"""A collector gets a span for every call, where it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.raw_calls import wrong_request
from support.servers import served

pytest.importorskip(
    "opentelemetry.exporter.otlp.proto.http", reason='the extra "otel" is not installed'
)

from gradwire_server.observability.definitions import PHASES
from support.collector import Collector, Seen, collecting
from support.processes import running_command
from support.raw_calls import TRACEPARENT, RawClient, as_stream, published_request

EVALUATE = "gradwire.v1.GradientService/Evaluate"
STREAM = "gradwire.v1.GradientService/EvaluateStream"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    for name in ("OTEL_TRACES_SAMPLER", "OTEL_SDK_DISABLED", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    with collecting() as collector:
        yield collector


def of_calls(collector: Collector) -> dict[str, Seen]:
    """Return the one span of each method."""
    return {seen.span.name: seen for seen in collector.spans if seen.span.kind == 2}


def test_a_call_is_a_span_in_the_callers_trace_with_a_span_for_each_phase(
    collector: Collector,
) -> None:
    with served(otlp_endpoint=collector.url) as (server, client):
        replies = [
            client.evaluate(published_request()),
            client.stream(as_stream(published_request())),
        ]
    calls = of_calls(collector)
    assert calls.keys() == {EVALUATE, STREAM}
    _, trace, parent, _ = TRACEPARENT.split("-")
    for reply, (name, seen) in zip(replies, calls.items(), strict=True):
        span = seen.span
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (trace, parent)
        assert reply.trailers["traceparent"] == f"00-{trace}-{span.span_id.hex()}-01"
        assert f"127.0.0.1:{seen.told['server.port']}" == server.address
        assert (
            seen.told.items()
            >= {
                "rpc.system": "grpc",
                "rpc.service": "gradwire.v1.GradientService",
                "rpc.method": name.rpartition("/")[2],
                "rpc.grpc.status_code": 0,
                "server.address": "127.0.0.1",
                "client.address": "127.0.0.1",
                "gradwire.operator": "dml_resample_grad",
                "gradwire.dtype": "float32",
                "gradwire.received_bytes": 12,
                "gradwire.sent_bytes": 16,
            }.items()
        )
        assert seen.resource["service.name"] == "gradwire-server"
        phases = [child.span for child in collector.children(seen)]
        assert {phase.name for phase in phases} <= set(PHASES)
        assert {"receive", "queue", "compute"} <= {phase.name for phase in phases}
        for phase in phases:
            slack_ns = 5_000_000  # two clocks are read
            assert span.start_time_unix_nano - slack_ns <= phase.start_time_unix_nano
            assert phase.start_time_unix_nano <= phase.end_time_unix_nano
            assert phase.end_time_unix_nano <= span.end_time_unix_nano + slack_ns


def test_only_what_is_the_servers_fault_makes_an_error_of_its_span(collector: Collector) -> None:
    unknown = published_request()
    unknown.operator.Clear()
    unknown.operator.MergeFromString(b"\xfa\x7f\x00")
    with served(otlp_endpoint=collector.url) as (_server, client):
        client.evaluate(wrong_request())
        client.stream(as_stream(unknown))
    calls = of_calls(collector)
    told = calls[EVALUATE].told
    assert (told["rpc.grpc.status_code"], told["gradwire.reason"]) == (3, "INVALID_FIELD")
    assert calls[EVALUATE].span.status.code == 0
    assert "error.type" not in told
    told = calls[STREAM].told
    assert (told["rpc.grpc.status_code"], told["error.type"]) == (12, "UNIMPLEMENTED")
    assert calls[STREAM].span.status.code == 2


def test_a_call_without_a_trace_starts_one_that_the_log_and_the_reply_name(
    collector: Collector, tmp_path: Path
) -> None:
    flags = ("--otlp-endpoint", collector.url, "--workers", "2", "--access-log")
    with running_command(*flags, log=tmp_path / "log") as command:
        with RawClient(command.address) as client:
            reply = client.evaluate(published_request(), traceparent="")
        command.stop()
        log = command.log
    (seen,) = of_calls(collector).values()
    named = reply.trailers["traceparent"]
    assert named.startswith(f"00-{seen.span.trace_id.hex()}-{seen.span.span_id.hex()}-")
    assert f"traceparent={named}" in log
    assert not seen.span.parent_span_id


def test_the_environment_alone_turns_traces_on_and_off_and_names_them(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "gradients")
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", "http,rpc")
    with served() as (_server, client):
        client.evaluate(published_request())
    (seen,) = of_calls(collector).values()
    assert seen.resource["service.name"] == "gradients"
    assert seen.told["rpc.system.name"] == "grpc"
    assert seen.told["rpc.method"] == EVALUATE
    assert seen.told["rpc.response.status_code"] == "OK"
    assert not {"rpc.system", "rpc.service", "rpc.grpc.status_code"} & seen.told.keys()
    collector.spans.clear()
    for variable, value in (("OTEL_TRACES_SAMPLER", "always_off"), ("OTEL_SDK_DISABLED", "true")):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            with served() as (_server, client):
                reply = client.evaluate(published_request())
        assert not collector.spans
        assert reply.trailers["traceparent"].split("-")[1] == TRACEPARENT.split("-")[1]


def test_a_collector_that_is_away_holds_up_no_call_and_no_stop(tmp_path: Path) -> None:
    flags = ("--otlp-endpoint", "http://127.0.0.1:1", "--log-format", "json")
    with running_command(*flags, log=tmp_path / "log") as command:
        with RawClient(command.address) as client:
            client.check_alive()
        command.stop()
        lines = command.log.splitlines()
    assert {line[:1] for line in lines} == {"{"}
