"""Who asks for traces gets them, or is told in one line why not."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import pytest

from gradwire_server.config.settings import Settings
from gradwire_server.exporters import tracer
from support.processes import run_command, running_command

URL = "http://127.0.0.1:1"
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
    otlp = pytest.importorskip("gradwire_server.observability.otlp")
    given: list[str] = []
    make = otlp.tracer_provider

    def tracer_provider(url: str) -> object:
        given.append(url)
        return make(url)

    monkeypatch.setattr(otlp, "tracer_provider", tracer_provider)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = tracer(Settings(otlp_endpoint=endpoint), address="127.0.0.1:1")
    assert given == ([] if expected is None else [expected])
    if found is not None:
        found.close()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_server_tells_in_one_line_what_is_wrong(tmp_path: Path, workers: str) -> None:
    flags = ("--backend", "numpy_cpu", "--workers", workers)
    asked = ("--address", "127.0.0.1:0", "--otlp-endpoint", URL)
    env = {"OTEL_BSP_MAX_QUEUE_SIZE": "-1"}
    done = run_command(*flags, *asked, env=env)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"Error: --otlp-endpoint is {URL}; traces: max_queue_size must be" in done.stderr
    # What the environment asks of every program keeps none from running.
    with running_command(*flags, log=tmp_path / "log", env={ALL: URL, **env}) as command:
        command.wait_for_log(' signal=traces why="max_queue_size must be')
        assert "Traceback" not in command.log


def _without(monkeypatch: pytest.MonkeyPatch, package: str, *modules: str) -> None:
    """Let no module of a package be imported, and import modules that use it anew."""
    for name in {package, *sys.modules}:
        if name.partition(".")[0] == package:
            monkeypatch.setitem(sys.modules, name, None)
        if name.startswith(modules):
            monkeypatch.delitem(sys.modules, name)


def test_without_the_extra_who_asks_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _without(monkeypatch, "opentelemetry", "gradwire_server.observability.otlp")
    monkeypatch.setattr(logging.getLogger("gradwire_server"), "propagate", True)
    with pytest.raises(ValueError, match=rf"^--otlp-endpoint is {URL}; traces: pip .*otel"):
        tracer(Settings(otlp_endpoint=URL), address="127.0.0.1:1")
    assert not caplog.records
    # What the environment asks of every program keeps none from running.
    monkeypatch.setenv(ALL, URL)
    assert tracer(Settings(), address="127.0.0.1:1") is None
    assert [record.getMessage() for record in caplog.records] == ["not exported"]
