"""Files of a load test: a JSON that reads as written, a page that needs nothing else."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from itertools import chain
from xml.etree import ElementTree as ET

import pytest

from gradwire.loadtest.generator import LoadSettings, Phase
from gradwire.loadtest.report import to_html
from gradwire.loadtest.result import (
    FORMAT,
    Document,
    Machine,
    ScenarioResult,
    ServerFacts,
    ServerSecond,
    Tally,
    to_json,
)
from gradwire.loadtest.runner import warnings
from gradwire.loadtest.scenarios import SCENARIOS, changed
from load.loading import Run, from_json

MARKUP = "<script>alert(1)</script> & \"quotes\" 'too'"


def document(*scenarios: ScenarioResult, text: str = "") -> Document:
    """Make a document that tells of these scenarios, and a text wherever there is room for one."""
    return Document(
        format=FORMAT,
        when="2026-11-22T10:00:00+00:00",
        command=f"gradwire bench {text}",
        interrupted=False,
        machine=Machine(f"cpu {text}", 2, 1024, text, "3", {"gradwire": text}, load=0.5),
        server=ServerFacts(text, own=False, version=text, backend=text, backend_reason=text),
        settings=LoadSettings(duration_s=1.0, warm_up_s=0.0, timeout_s=10.0),
        scenarios=list(scenarios),
    )


@pytest.fixture(scope="module")
def results(run: Run) -> list[ScenarioResult]:
    """Run one scenario in either loop; the server's figures are as if they had been looked at."""
    found = [
        run(one, 0.5) for one in (SCENARIOS["cancellations"], changed(SCENARIOS["mixed"], rate=50))
    ]
    seconds = [ServerSecond(second=0.4, cpu_cores=0.5, rss_mib=100.0, processes=1)]
    return [replace(one, server=seconds, warnings=[MARKUP]) for one in found]


def test_a_document_reads_as_it_was_written(results: list[ScenarioResult]) -> None:
    made = document(*results)
    text = to_json(made)
    assert json.loads(json.dumps(from_json(text), default=vars)) == json.loads(text)


def test_the_page_tells_all_and_needs_nothing_from_elsewhere(
    results: list[ScenarioResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = Tally(Phase(SCENARIOS["mixed"].flows, LoadSettings(1.0, 0.0, 1.0)))
    empty = ScenarioResult("mixed", "", 1.0, None, nothing.results(), [], nothing.generators(), [])
    ET.fromstring(to_html(document(empty)).removeprefix("<!DOCTYPE html>"))  # noqa: S314 - our own
    page = to_html(document(*results, text=MARKUP))
    root = ET.fromstring(page.removeprefix("<!DOCTYPE html>"))  # noqa: S314 - our own
    names = {element.tag for element in root.iter()}
    assert {"table", "svg", "path"} <= names
    assert not names & {"script", "link", "img", "iframe", "object", "base"}
    attributes = {name for element in root.iter() for name in element.attrib}
    assert not attributes & {"src", "href", "srcset", "onload", "onclick", "action"}
    assert not re.search(r"url\(|@import|https?:", page)
    assert MARKUP in "".join(root.itertext())
    for flow in chain.from_iterable(result.flows for result in results):
        assert (f">{flow.name}, corrected</text>" in page) is (flow.ok > 0)
        assert f"<td>{f'{flow.corrected.p99_ms:,.2f}' if flow.ok else '-'}</td>" in page
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = to_html(document(*results))
    assert "<figure>" not in page
    assert "pip install &#34;gradwire[plot]&#34;" in page
    assert f"<td>{results[1].flows[0].corrected.p99_ms:,.2f}</td>" in page


def test_a_generator_that_is_the_bottleneck_is_told_of(results: list[ScenarioResult]) -> None:
    result = results[1]
    idle = [replace(one, cpu_cores=0.1, late_p99_ms=0.0) for one in result.generators]
    enough = [replace(flow, ok=1000) for flow in result.flows]
    assert warnings(enough, idle, [], cores=2) == []
    busy = [replace(one, cpu_cores=0.95) for one in idle]
    late = [replace(one, late_p99_ms=1e6) for one in idle]
    taking = [ServerSecond(second=1.0, cpu_cores=1.8, rss_mib=1.0, processes=1)]
    for generators, seconds, words in (
        (busy, [], "0.95 of one core"),
        (late, [], "after they were due"),
        (idle, taking, "of the 2 cores"),
    ):
        told = warnings(enough, generators, seconds, cores=2)
        assert len(told) == 1
        assert words in told[0]
