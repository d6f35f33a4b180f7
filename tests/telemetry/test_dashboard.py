"""Dashboard and alert rules speak only of metrics and labels that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gradwire_server.observability.definitions import METRICS

FILES = Path(__file__).parents[2] / "deploy/monitoring"
PANELS: list[dict[str, Any]] = json.loads((FILES / "dashboard.json").read_text())["panels"]
DASHBOARD = [target["expr"] for panel in PANELS for target in panel.get("targets", ())]
ALERTS = re.findall(
    r"expr: (?:>-\n)?((?:.|\n)*?)\n +(?:for|labels):", (FILES / "alerts.yml").read_text()
)
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}
# Of Prometheus itself, and of every time series it scrapes.
OWN = {"up": {"job", "instance"}}
SERIES = OWN | {
    metric.name + suffix: {*metric.label_names, "job", "instance"}
    | ({"le"} if suffix == "_bucket" else set[str]())
    for metric in METRICS
    for suffix in SUFFIXES[metric.kind]
}


@pytest.mark.parametrize("query", [*DASHBOARD, *ALERTS])
def test_a_query_asks_for_what_there_is(query: str) -> None:
    names = set(re.findall(r"\b(?:gradwire|process)_\w+|\bup\b", query))
    assert names
    assert names <= SERIES.keys()
    labels = set[str]().union(*(SERIES[name] for name in names))
    asked = re.findall(r"(\w+)(?:=~|!=|=)\"", query)
    for grouped in re.findall(r"by \(([^)]*)\)", query):
        asked += grouped.split(", ")
    assert set(asked) <= labels
    assert query.count("(") == query.count(")")


def test_every_alert_is_tested() -> None:
    named = re.findall(r"- alert: (\w+)", (FILES / "alerts.yml").read_text())
    assert len(named) == len(ALERTS) > 10
    tested = re.findall(r"alertname: (\w+)", (FILES / "alerts_test.yml").read_text())
    assert len(set(named)) == len(named)
    assert all(tested.count(name) > 1 for name in named if name != "GradwireDown")
    assert set(named) == set(tested)
