"""Who asks for traces and metrics gets them, or is told in one line why not."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import pytest

from gradwire_server.config.settings import Settings
from gradwire_server.exporters import MetricsExporters, Signal, are_wanted, otlp_endpoint, tracer
from gradwire_server.observability import Ledgers
from processes import run_command, running_command

URL = "http://collector:4318"
ALL = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("endpoint", "environment", "expected"),
    [
        ("", {}, None),
        (URL, {}, f"{URL}/v1/traces"),
        (f"{URL}/", {}, f"{URL}/v1/traces"),
        ("", {ALL: URL}, ""),
        ("", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": URL}, ""),
        ("", {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": URL}, None),
        ("", {ALL: ""}, None),
        (URL, {"OTEL_SDK_DISABLED": "TRUE"}, None),
        (URL, {"OTEL_TRACES_EXPORTER": "none"}, None),
        (URL, {"OTEL_TRACES_EXPORTER": "console, otlp"}, f"{URL}/v1/traces"),
        (URL, {"OTEL_METRICS_EXPORTER": "none"}, f"{URL}/v1/traces"),
    ],
)
def test_the_setting_and_the_variables_turn_traces_on_and_off(
    monkeypatch: pytest.MonkeyPatch,
    endpoint: str,
    environment: dict[str, str],
    expected: str | None,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert otlp_endpoint(Settings(otlp_endpoint=endpoint), "traces") == expected


@pytest.mark.parametrize("signal", ["traces", "metrics"])
def test_the_protocol_of_a_signal_counts_more_than_that_of_all(
    monkeypatch: pytest.MonkeyPatch, signal: Signal
) -> None:
    own = f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL"
    asked = Settings(otlp_endpoint=URL)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    monkeypatch.setenv(own, "http/protobuf")
    assert otlp_endpoint(asked, signal) is not None
    monkeypatch.setenv(own, "")
    with pytest.raises(ValueError, match="OTEL_EXPORTER_OTLP_PROTOCOL is grpc; http/protobuf is"):
        otlp_endpoint(asked, signal)


@pytest.mark.parametrize(
    ("name", "value", "wrong"),
    [
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-1", "max_queue_size must be a positive integer"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "511", "max_export_batch_size must be less than or equal"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "0", "OTEL_METRIC_EXPORT_INTERVAL is '0'; give"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "inf", "OTEL_METRIC_EXPORT_INTERVAL is 'inf'; give"),
    ],
)
def test_errors_of_the_exporters_end_the_start_or_are_logged(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    value: str,
    wrong: str,
) -> None:
    def export(settings: Settings) -> None:
        assert tracer(settings, address="127.0.0.1:1") is None or "METRIC" in name
        MetricsExporters(settings, Ledgers(1), served="127.0.0.1:1").close()

    monkeypatch.setattr(logging.getLogger("gradwire_server"), "propagate", True)
    monkeypatch.setenv(name, value)
    url = "http://127.0.0.1:1"
    with pytest.raises(ValueError, match=rf"^--otlp-endpoint is {url}; (traces|metrics): {wrong}"):
        export(Settings(otlp_endpoint=url))
    monkeypatch.setenv(ALL, url)
    export(Settings())
    assert [record.getMessage() for record in caplog.records if "not" in record.message] == [
        "not exported"
    ]


def test_what_opentelemetry_takes_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("OTEL_BSP_MAX_QUEUE_SIZE", "512"),
        ("OTEL_BSP_SCHEDULE_DELAY", "1"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5"),
    ):
        monkeypatch.setenv(name, value)
    found = tracer(Settings(otlp_endpoint="http://127.0.0.1:1"), address="127.0.0.1:1")
    assert found is not None
    found.close(10)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_server_tells_in_one_line_what_is_wrong(tmp_path: Path, workers: str) -> None:
    flags = ("--backend", "numpy_cpu", "--workers", workers)
    asked = ("--address", "127.0.0.1:0", "--otlp-endpoint", URL)
    done = run_command(*flags, *asked, env={"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    told = "metrics: OTEL_EXPORTER_OTLP_PROTOCOL is grpc; http/protobuf is supported"
    assert f"Error: --otlp-endpoint is {URL}; {told}" in done.stderr
    # What the environment asks of every program keeps none from running.
    env = {ALL: URL, "OTEL_BSP_MAX_QUEUE_SIZE": "-1", "OTEL_METRIC_EXPORT_INTERVAL": "0"}
    with running_command(*flags, log=tmp_path / "log", env=env) as command:
        command.wait_for_log(' signal=traces why="max_queue_size must be')
        command.wait_for_log(' signal=metrics why="OTEL_METRIC_EXPORT_INTERVAL is')
        assert "Traceback" not in command.log


def test_without_the_extra_who_asks_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in {"opentelemetry", *sys.modules}:
        if name.partition(".")[0] == "opentelemetry":
            monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(logging.getLogger("gradwire_server"), "propagate", True)
    monkeypatch.delenv(ALL, raising=False)
    asked = Settings(otlp_endpoint=URL)
    with pytest.raises(ValueError, match=rf"^--otlp-endpoint is {URL}; metrics: install .*otel"):
        are_wanted(asked)
    assert not caplog.records
    # What the environment asks of every program keeps none from running.
    monkeypatch.setenv(ALL, URL)
    assert not are_wanted(Settings())
    assert tracer(Settings(), address="127.0.0.1:1") is None
    assert [record.getMessage() for record in caplog.records] == ["not exported"] * 2


def test_without_prometheus_client_who_asks_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ValueError, match=r"^--http-port is .*: pip install .*server"):
        MetricsExporters(Settings(http_port="0"), Ledgers(1), served="127.0.0.1:1")
