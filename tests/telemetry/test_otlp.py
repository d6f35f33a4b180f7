"""A collector gets a span for every call and the metrics, where it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip(
    "opentelemetry.exporter.otlp.proto.http", reason='the extra "otel" is not installed'
)

from collector import Collector, Seen, attributes, collecting
from gradwire_server.config.settings import Settings
from gradwire_server.exporters import are_wanted
from gradwire_server.observability.definitions import PHASES
from processes import run_command, running_command
from raw_calls import TRACEPARENT, RawClient, as_stream, published_request
from serving import serving

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
    with (
        serving(otlp_endpoint=collector.url) as server,
        RawClient(server.address) as client,
    ):
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
        assert seen.told["rpc.system"] == "grpc"
        assert seen.told["rpc.service"] == "gradwire.v1.GradientService"
        assert seen.told["rpc.method"] == name.rpartition("/")[2]
        assert seen.told["rpc.grpc.status_code"] == 0
        assert seen.told["server.address"] == seen.told["client.address"] == "127.0.0.1"
        assert f"127.0.0.1:{seen.told['server.port']}" == server.address
        assert seen.told["gradwire.operator"] == "dml_resample_grad"
        assert seen.told["gradwire.dtype"] == "float32"
        assert seen.told["gradwire.received_bytes"] == 12
        assert seen.told["gradwire.sent_bytes"] == 16
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
    wrong = published_request()
    wrong.input.sizes[0] = -1
    unknown = published_request()
    unknown.operator.Clear()
    unknown.operator.MergeFromString(b"\xfa\x7f\x00")
    with (
        serving(otlp_endpoint=collector.url) as server,
        RawClient(server.address) as client,
    ):
        client.evaluate(wrong)
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
    flags = (
        "--otlp-endpoint",
        collector.url,
        "--workers",
        "2",
        "--backend",
        "numpy_cpu",
        "--access-log",
    )
    with running_command(*flags, log=tmp_path / "log") as command:
        with RawClient(command.address) as client:
            reply = client.evaluate(published_request(), traceparent="")
        command.signal(15)
        assert command.wait() == 0
        log = command.log
    (seen,) = of_calls(collector).values()
    named = reply.trailers["traceparent"]
    assert named.startswith(f"00-{seen.span.trace_id.hex()}-{seen.span.span_id.hex()}-")
    assert f"traceparent={named}" in log
    assert not seen.span.parent_span_id


def test_metrics_come_with_the_names_that_opentelemetry_has_for_them(collector: Collector) -> None:
    with (
        serving(otlp_endpoint=collector.url) as server,
        RawClient(server.address) as client,
    ):
        for _ in range(3):
            client.check_alive()
    durations = collector.metrics["rpc.server.duration"]
    assert durations.unit == "ms"
    points = {
        str(attributes(point.attributes)["rpc.method"]): point
        for point in durations.histogram.data_points
    }
    assert {name: point.count for name, point in points.items()} == {
        "Evaluate": 3,
        "EvaluateStream": 3,
    }
    unary = points["Evaluate"]
    assert sum(unary.bucket_counts) == 3
    assert 0 < unary.sum < 3 * 30e3
    assert attributes(unary.attributes) == {
        "rpc.system": "grpc",
        "rpc.service": "gradwire.v1.GradientService",
        "rpc.method": "Evaluate",
        "rpc.grpc.status_code": 0,
        "gradwire.operator": "dml_resample_grad",
        "gradwire.dtype": "float32",
    }
    received = collector.metrics["gradwire.received"]
    assert received.unit == "By"
    assert sorted(point.sum for point in received.histogram.data_points) == [36, 36]
    requests = collector.metrics["gradwire.requests"].sum
    assert requests.is_monotonic
    assert requests.aggregation_temporality == 2
    assert sum(point.as_double for point in requests.data_points) == 6
    assert collector.metrics["gradwire.memory_limit"].gauge.data_points[0].as_double == 2 << 30


@pytest.mark.slow
def test_several_workers_export_their_metrics_once(collector: Collector, tmp_path: Path) -> None:
    flags = ("--otlp-endpoint", collector.url, "--workers", "2", "--backend", "numpy_cpu")
    with running_command(*flags, log=tmp_path / "log") as command:
        for _ in range(5):
            with RawClient(command.address) as client:
                client.evaluate(published_request())
        command.signal(15)
        assert command.wait() == 0
    (point,) = collector.metrics["rpc.server.duration"].histogram.data_points
    assert point.count == 5


def test_the_newer_names_are_spoken_on_request(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", "http,rpc")
    with (
        serving(otlp_endpoint=collector.url) as server,
        RawClient(server.address) as client,
    ):
        client.evaluate(published_request())
    (seen,) = of_calls(collector).values()
    assert seen.told["rpc.system.name"] == "grpc"
    assert seen.told["rpc.method"] == EVALUATE
    assert seen.told["rpc.response.status_code"] == "OK"
    assert not {"rpc.system", "rpc.service", "rpc.grpc.status_code"} & seen.told.keys()
    assert collector.metrics["rpc.server.call.duration"].unit == "s"


def test_the_environment_alone_turns_it_on_names_the_service_and_chooses_the_sample(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "gradients")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    with serving() as server, RawClient(server.address) as client:
        client.evaluate(published_request())
    (seen,) = of_calls(collector).values()
    assert seen.resource["service.name"] == "gradients"
    assert not collector.metrics
    collector.spans.clear()
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    with serving() as server, RawClient(server.address) as client:
        reply = client.evaluate(published_request())
    assert not collector.spans
    assert reply.trailers["traceparent"].split("-")[1] == TRACEPARENT.split("-")[1]


@pytest.mark.parametrize(
    ("variable", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_METRICS_EXPORTER", "prometheus")]
)
def test_the_environment_can_turn_it_off(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    settings = Settings(otlp_endpoint="http://127.0.0.1:1")
    assert are_wanted(settings)
    monkeypatch.setenv(variable, value)
    assert not are_wanted(settings)


def test_a_protocol_that_is_not_spoken_is_refused_or_left_alone(tmp_path: Path) -> None:
    env = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    url = "http://127.0.0.1:1"
    done = run_command("--address", "127.0.0.1:0", "--otlp-endpoint", url, env=env)
    assert done.returncode == 1
    assert "metrics: OTEL_EXPORTER_OTLP_PROTOCOL is grpc; http/protobuf is" in done.stderr
    env["OTEL_EXPORTER_OTLP_ENDPOINT"] = url
    with running_command(log=tmp_path / "log", env=env) as command:
        with RawClient(command.address) as client:
            client.check_alive()
        assert " not exported signal=traces why=" in command.log


def test_a_collector_that_is_away_holds_up_no_call_and_no_stop(tmp_path: Path) -> None:
    flags = ("--otlp-endpoint", "http://127.0.0.1:1", "--log-format", "json")
    with running_command(*flags, log=tmp_path / "log") as command:
        with RawClient(command.address) as client:
            client.check_alive()
        command.signal(15)
        assert command.wait() == 0
        assert all(line.startswith("{") for line in command.log.splitlines())
