"""Who asks for traces and metrics gets them, or is told in one line why not."""

from __future__ import annotations

import logging
import sys

import pytest

from gradwire_server.settings import Settings
from gradwire_server.telemetry import Ledgers, Outlets, are_wanted, tracer
from gradwire_server.telemetry.otlp_settings import Export, Signal, export_of

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


def test_without_the_extra_who_asks_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in {"opentelemetry", *sys.modules}:
        if name.partition(".")[0] == "opentelemetry":
            monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(logging.getLogger("gradwire_server"), "propagate", True)
    monkeypatch.delenv(ALL, raising=False)
    asked = Settings(otlp_endpoint=URL)
    with pytest.raises(ValueError, match=rf"^otlp_endpoint is {URL}; it needs: pip install .*otel"):
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
    with pytest.raises(ValueError, match=r"^metrics_address is .*: pip install .*server"):
        Outlets(Settings(metrics_address="127.0.0.1:0"), Ledgers(1))
