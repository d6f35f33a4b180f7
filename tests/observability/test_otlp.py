"""A collector gets a span for every call, where it is asked for; who asks is told why not."""

import logging
import os

import pytest

from support.servers import ServerThread, served

pytest.importorskip("gradwire_server.observability.otlp", reason='"otel" is not installed')

from gradwire_server.observability.definitions import PHASES
from support.collector import collecting
from support.processes import running_command
from support.raw_calls import TRACEPARENT, RawClient, as_stream, published_request, wait_until

EVALUATE = "gradwire.v1.GradientService/Evaluate"
STREAM = "gradwire.v1.GradientService/EvaluateStream"
URL = "http://127.0.0.1:1"
ALL = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def collector(monkeypatch):
    # A busy machine may take longer than users are to wait.
    monkeypatch.setattr("gradwire_server.observability.otlp._LAST_EXPORT_S", 60.0)
    with collecting() as collector:
        yield collector


def of_calls(collector):
    """Return the one span of each method."""
    return {seen.span.name: seen for seen in collector.spans if seen.span.kind == 2}


def test_a_call_is_a_span_in_the_callers_trace_with_a_span_for_each_phase(collector):
    request = published_request()
    with served(otlp_endpoint=collector.url) as (server, client):
        replies = [client.evaluate(request), client.stream(as_stream(request))]
    calls = of_calls(collector)
    assert calls.keys() == {EVALUATE, STREAM}
    _, trace, parent, _ = TRACEPARENT.split("-")
    for reply, (name, seen) in zip(replies, calls.items(), strict=True):
        span = seen.span
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (trace, parent)
        assert reply.trailers["traceparent"] == f"00-{trace}-{span.span_id.hex()}-01"
        assert f"127.0.0.1:{seen.told['server.port']}" == server.address
        expected = {
            "rpc.system": "grpc",
            "rpc.method": name.rpartition("/")[2],
            "rpc.grpc.status_code": 0,
            "client.address": "127.0.0.1",
            "gradwire.operator": "dml_resample_grad",
            "gradwire.received_bytes": 12,
            "gradwire.sent_bytes": 16,
        }
        assert seen.told.items() >= expected.items()
        assert seen.resource["service.name"] == "gradwire-server"
        phases = [child.span for child in collector.children(seen)]
        assert {"receive", "queue", "compute"} <= {phase.name for phase in phases} <= set(PHASES)
        for phase in phases:
            slack_ns = 10**9  # two clocks are read
            assert span.start_time_unix_nano - slack_ns <= phase.start_time_unix_nano
            assert phase.start_time_unix_nano <= phase.end_time_unix_nano
            assert phase.end_time_unix_nano <= span.end_time_unix_nano + slack_ns


def test_a_call_without_a_trace_starts_one_that_the_log_and_the_reply_name(collector, tmp_path):
    flags = ("--otlp-endpoint", collector.url, "--workers", "2", "--access-log")
    with running_command(*flags, log=tmp_path / "log") as command:
        with RawClient(command.address) as client:
            reply = client.evaluate(published_request(), traceparent="")
        wait_until(lambda: of_calls(collector))
        command.stop()
    (seen,) = of_calls(collector).values()
    named = reply.trailers["traceparent"]
    assert named.startswith(f"00-{seen.span.trace_id.hex()}-{seen.span.span_id.hex()}-")
    assert f"traceparent={named}" in command.log
    assert not seen.span.parent_span_id


def test_the_environment_alone_turns_traces_on_and_off_and_names_them(collector, monkeypatch):
    on = {ALL: collector.url, "OTEL_TRACES_EXPORTER": "console, otlp"}
    for variables, is_told in ((on, True), (on | {"OTEL_SDK_DISABLED": "true"}, False)):
        with monkeypatch.context() as patch:
            for name, value in (variables | {"OTEL_SERVICE_NAME": "gradients"}).items():
                patch.setenv(name, value)
            with served() as (_server, client):
                reply = client.evaluate(published_request())
        assert reply.trailers["traceparent"].split("-")[1] == TRACEPARENT.split("-")[1]
        names = [seen.resource["service.name"] for seen in of_calls(collector).values()]
        assert names == ["gradients"] * is_told, variables
        collector.spans.clear()


def test_a_collector_that_is_away_holds_up_no_call_and_no_stop(tmp_path):
    flags = ("--otlp-endpoint", URL, "--log-format", "json")
    with running_command(*flags, log=tmp_path / "log") as command:
        with RawClient(command.address) as client:
            client.check_alive()
        command.stop()
    assert {line[:1] for line in command.log.splitlines()} == {"{"}


def test_who_asks_is_told_why_not_and_the_environment_keeps_no_program_from_running(
    monkeypatch, caplog
):
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    monkeypatch.setattr(logging.getLogger("gradwire_server"), "propagate", True)
    with pytest.raises(ValueError, match=f"^--otlp-endpoint is {URL}; traces: max_queue_size must"):
        ServerThread(otlp_endpoint=URL).start()
    monkeypatch.setenv(ALL, URL)
    with served() as (_server, client):
        client.check_alive()
    (record,) = (each for each in caplog.records if each.getMessage() == "not exported")
    assert vars(record)["facts"]["why"].startswith("max_queue_size must be")
