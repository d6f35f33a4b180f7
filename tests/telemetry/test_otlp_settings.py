"""Who asks for traces and metrics gets them, or is told in one line why not."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path

import pytest

from gradwire_server.config.settings import Settings
from gradwire_server.exporters import Outlets, are_wanted, tracer
from gradwire_server.observability import Ledgers
from gradwire_server.observability.otlp_settings import Export, Signal, export_of
from processes import run_command, running_command

URL = "http://collector:4318"
ALL = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.mark.parametrize(
    ("endpoint", "environment", "export"),
    [
        ("", {}, None),
        (URL, {}, Export(f"{URL}/v1/traces", asked=True)),
        (f"{URL}/", {}, Export(f"{URL}/v1/traces", asked=True)),
        ("", {ALL: URL}, Export(None, asked=False)),
        ("", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": URL}, Export(None, asked=False)),
        ("", {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": URL}, None),
        ("", {ALL: ""}, None),
        (URL, {"OTEL_SDK_DISABLED": "TRUE"}, None),
        (URL, {"OTEL_TRACES_EXPORTER": "none"}, None),
        (URL, {"OTEL_TRACES_EXPORTER": "console, otlp"}, Export(f"{URL}/v1/traces", asked=True)),
        (URL, {"OTEL_METRICS_EXPORTER": "none"}, Export(f"{URL}/v1/traces", asked=True)),
    ],
)
def test_the_setting_and_the_variables_turn_traces_on_and_off(
    endpoint: str, environment: dict[str, str], export: Export | None
) -> None:
    assert export_of("traces", endpoint, environment) == export


@pytest.mark.parametrize("signal", ["traces", "metrics"])
def test_the_protocol_of_a_signal_counts_more_than_that_of_all(signal: Signal) -> None:
    own = f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL"
    environment = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", own: "http/protobuf"}
    assert export_of(signal, URL, environment) is not None
    with pytest.raises(ValueError, match="OTEL_EXPORTER_OTLP_PROTOCOL is grpc; http/protobuf is"):
        export_of(signal, URL, {**environment, own: ""})


@pytest.mark.parametrize(
    "url",
    ["collector:4318", "ftp://collector", "http://", "http://a b", "http://[::1", "https://a:0"],
)
def test_a_url_that_is_none_is_named_with_its_variable(url: str) -> None:
    own = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
    for environment in ({ALL: url}, {ALL: URL, own: url}):
        variable = own if own in environment else ALL
        with pytest.raises(ValueError, match=rf"^{variable} is {re.escape(url)}; a URL such as"):
            export_of("traces", "", environment)
    # Of no other signal, and where it does not count, it is in nobody's way.
    assert export_of("metrics", "", {ALL: URL, own: url}) == Export(None, asked=False)
    assert export_of("traces", "", {ALL: url, own: URL}) == Export(None, asked=False)
    assert export_of("traces", URL, {ALL: url}) is not None


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        ({"OTEL_BSP_SCHEDULE_DELAY": "5 s"}, "OTEL_BSP_SCHEDULE_DELAY is 5 s; give an integer"),
        ({"OTEL_BSP_EXPORT_TIMEOUT": "0"}, "OTEL_BSP_EXPORT_TIMEOUT is 0; give an integer above 0"),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "-1"}, "OTEL_BSP_MAX_QUEUE_SIZE is -1; give an integer"),
        (
            {"OTEL_BSP_MAX_QUEUE_SIZE": "511"},
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE is 512; at most OTEL_BSP_MAX_QUEUE_SIZE is possible",
        ),
        (
            {"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"},
            "OTEL_EXPORTER_OTLP_TIMEOUT is soon; give seconds",
        ),
        ({"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "nan"}, "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT is nan"),
    ],
)
def test_numbers_that_make_no_sense_are_named(told: dict[str, str], wrong: str) -> None:
    with pytest.raises(ValueError, match=f"^{wrong}"):
        export_of("traces", URL, told)
    spans_only = "BSP" in wrong or "TRACES" in wrong
    assert not spans_only or export_of("metrics", URL, told) is not None
    assert export_of("traces", URL, dict.fromkeys(told, "")) is not None


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
    done = run_command(*flags, *asked, env={"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"})
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "Error: OTEL_EXPORTER_OTLP_TIMEOUT is soon; give seconds" in done.stderr
    # What the environment asks of every program keeps none from running.
    with running_command(*flags, log=tmp_path / "log", env={ALL: "collector:4318"}) as command:
        for signal in ("traces", "metrics"):
            command.wait_for_log(f' signal={signal} why="{ALL} is collector:4318;')
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
    with pytest.raises(
        ValueError, match=rf"^--otlp-endpoint is {URL}; it needs: pip install .*otel"
    ):
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
        Outlets(Settings(http_port="0"), Ledgers(1), served="127.0.0.1:1")
