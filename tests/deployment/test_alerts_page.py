"""Who is called at night finds each alert on the page, in the order and severity of the rules."""

from __future__ import annotations

import re

import yaml

from gradwire_server.observability.definitions import METRICS
from support.manifests import ROOT

PAGE = (ROOT / "docs/alerts.md").read_text()
RULES = yaml.safe_load((ROOT / "deploy/monitoring/alerts.yml").read_text())["groups"][0]["rules"]


def test_every_alert_has_its_section() -> None:
    headings = re.findall(r"^## (\w+)\n\n(\w+)\. ", PAGE, re.MULTILINE)
    rules = [(rule["alert"], rule["labels"]["severity"].capitalize()) for rule in RULES]
    assert headings == rules


def test_the_page_speaks_of_metrics_that_there_are() -> None:
    known = {metric.name for metric in METRICS}
    assert set(re.findall(r"\bgradwire_\w+", PAGE)) <= known
