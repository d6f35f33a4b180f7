"""The status page tells all in words; rates are differences of totals, quantiles Prometheus'."""

from __future__ import annotations

import copy
import html.parser
import math
from typing import Any, TypeAlias, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire_server.admin_http import page
from gradwire_server.admin_http.history import MOST, History, quantile, totals
from gradwire_server.admin_http.status import LATELY_S, Subject, status
from gradwire_server.config.settings import Settings
from gradwire_server.observability.cells import Cells, Ledgers, place
from gradwire_server.observability.definitions import (
    ITEMS,
    LAG,
    METHOD,
    OPERATOR,
    PHASE_DURATION,
    RECEIVED,
    REQUEST_DURATION,
    SENT,
    STEP,
)
from gradwire_server.observability.exposition import Processes

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&amp;"


class Reader(html.parser.HTMLParser):
    """Reads a page.

    seen  its elements in their order, with their attributes
    text  its text
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take note of an element."""
        self.seen.append((tag, dict(attrs)))
        if tag not in {"meta", "link"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Refuse an end that is none."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Take note of text."""
        self.words.append(data)

    @property
    def text(self) -> str:
        """All text."""
        return " ".join(self.words)


def told(**changes: Any) -> dict[str, Any]:
    """Return what a server tells that has done nothing, but for changes."""
    cells = Cells()
    ledgers = Ledgers.of_this_process(cells)
    history = History(lambda: totals(ledgers.read()))
    return status(Subject(Settings(), "127.0.0.1:1"), ledgers, history, Processes()) | changes


def read(found: dict[str, Any]) -> Reader:
    reader = Reader(page.render(found).decode())
    assert not reader.open
    return reader


def test_what_is_empty_is_said_in_words() -> None:
    text = read(told()).text
    for phrase in (
        "not serving",
        "Not known yet: no worker has started.",
        "No call has ended",
        "Nothing has been called yet.",
        "All have their defaults.",
        "None.",
    ):
        assert phrase in text


def test_the_request_budget_and_what_a_worker_takes_of_the_machine_are_told() -> None:
    worker = told()["workers"][0] | {"resident_bytes": 213e6, "processor_s": 83.5}
    budget = {"now": 64e6, "limit": 2e9}
    text = read(told(workers=[worker], request_budget_bytes=budget)).text
    for phrase in ("Request budget", "64 MB", "of 2 GB", "213 MB", "1 min 23 s"):
        assert phrase in text


@pytest.mark.parametrize("state", ["serving", "partly", "away"])
def test_every_state_has_words_and_not_only_a_color(state: str) -> None:
    assert len({read(told(state=each)).text for each in ("serving", "partly", "away")}) == 3
    places = [told()["workers"][0] | {"state": each} for each in ("serving", "hangs", "away")]
    assert "event loop hangs" in read(told(state=state, workers=places)).text


def test_memory_of_gpus_is_told_where_workers_have_them() -> None:
    (worker,) = told()["workers"]
    assert "GPU memory" not in read(told()).text
    text = read(told(workers=[worker | {"device_memory_bytes": 1 << 30}])).text
    assert "GPU memory" in text
    assert "1.07 GB" in text


Told: TypeAlias = dict[str, "Told"] | list["Told"] | str | float | None


def replaced(value: Told, text: str) -> Told:
    """Put a text wherever there is one."""
    if isinstance(value, dict):
        return {key: replaced(each, text) for key, each in value.items()}
    if isinstance(value, list):
        return [replaced(each, text) for each in value]
    return text if isinstance(value, str) else value


@given(st.sampled_from([HOSTILE, '"><svg onload=1>', "javascript:alert(1)"]) | st.text(min_size=1))
@settings(deadline=None)
def test_no_text_becomes_an_element_or_an_attribute(text: str) -> None:
    cells = Cells()
    at = place(REQUEST_DURATION, "Evaluate", "interpolate", "float32", "OK")
    cells.observe(at, REQUEST_DURATION.buckets, 0.1)
    ledgers = Ledgers.of_this_process(cells)
    told = {"backend": "b", "backend_reason": "w", "backend_to_come": "c"}
    cells.notes.describe(told)
    names = {"status": "s", "reason": "r", "message": "m", "request_id": "i"}
    cells.notes.error(method="Evaluate", operator="interpolate", **names)
    history = History(lambda: totals(ledgers.read()))
    plain = status(Subject(Settings(max_rank=3), "a:1"), ledgers, history, Processes())
    kept = {key: plain[key] for key in ("state", "now")}
    hostile = cast("dict[str, Any]", replaced(copy.deepcopy(plain), text)) | kept
    hostile["workers"] = [each | {"state": "serving"} for each in hostile["workers"]]
    for error, original in zip(hostile["errors"], plain["errors"], strict=True):
        error["latest"] = original["latest"]
    before, after = read(plain), read(hostile)
    assert [(tag, set(has)) for tag, has in after.seen] == [
        (tag, set(has)) for tag, has in before.seen
    ]
    links = {"href", "src", "action", "style"}
    for (_, has), (_, had) in zip(after.seen, before.seen, strict=True):
        assert {name: has[name] for name in has.keys() & links} == {
            name: had[name] for name in had.keys() & links
        }
        assert not any(name.startswith("on") for name in has)


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        (page.size(0), "0 B"),
        (page.size(999), "999 B"),
        (page.size(1_500), "1.5 kB"),
        (page.size(12_345_678), "12.3 MB"),
        (page.size(2e12), "2 TB"),
        (page.duration(None), page.NOTHING),
        (page.duration(0.00001234), "12.3 µs"),
        (page.duration(0.00123), "1.23 ms"),
        (page.duration(2.5), "2.5 s"),
        (page.span(59.9), "59 s"),
        (page.span(61), "1 min 1 s"),
        (page.span(7260), "2 h 1 min"),
        (page.span(90000), "1 d 1 h"),
        (page.rate(0), "0"),
        (page.rate(0.25), "0.2"),
        (page.rate(1234.5), "1,234"),
        (page.plural(1, "worker"), "1 worker"),
        (page.plural(1200, "worker"), "1,200 workers"),
    ],
)
def test_figures_are_short(written: str, wanted: str) -> None:
    assert written == wanted


BOUNDS = (1.0, 2.0, 4.0)
OPERATORS = {name: number for number, name in enumerate(OPERATOR.values)}


def counted() -> tuple[Cells, Ledgers]:
    cells = Cells()
    return cells, Ledgers.of_this_process(cells)


def call(cells: Cells, method: str, operator: str, status: str, seconds: float) -> None:
    at = place(REQUEST_DURATION, method, operator, "float32", status)
    cells.observe(at, REQUEST_DURATION.buckets, seconds)


# Each by hand: the rank lies in a bucket, and within it evenly.
@pytest.mark.parametrize(
    ("counts", "share", "value"),
    [
        ((4, 0, 0, 0), 0.5, 0.5),
        ((0, 4, 0, 0), 0.5, 1.5),
        ((2, 2, 0, 0), 0.5, 1.0),
        ((1, 1, 2, 0), 0.75, 3.0),
        ((0, 0, 0, 3), 0.5, 4.0),
        ((10, 0, 0, 1), 0.99, 4.0),
        ((0, 0, 5, 0), 1.0, 4.0),
    ],
)
def test_a_quantile_is_that_of_prometheus(
    counts: tuple[int, ...], share: float, value: float
) -> None:
    assert quantile(BOUNDS, np.asarray(counts, np.float64), share) == pytest.approx(value)


@given(st.lists(st.floats(1e-6, 100), min_size=1, max_size=200), st.floats(0.01, 1))
def test_a_quantile_is_in_the_bucket_of_the_value_itself(values: list[float], share: float) -> None:
    bounds = REQUEST_DURATION.buckets
    counts = np.bincount(np.searchsorted(bounds, values), minlength=len(bounds) + 1)
    exact = np.quantile(values, share, method="inverted_cdf")
    told = quantile(bounds, np.asarray(counts, np.float64), share)
    assert told is not None
    assert quantile(bounds, np.zeros(len(bounds) + 1), share) is None
    bucket = np.searchsorted(bounds, exact)
    lower = 0.0 if bucket == 0 else bounds[bucket - 1]
    assert lower <= told <= bounds[bucket] * (1 + 1e-12)


def test_totals_tell_operators_and_what_failed() -> None:
    cells, ledgers = counted()
    for ended in ("OK", "OK", "CANCELLED", "INVALID_ARGUMENT"):
        call(cells, "Evaluate", "interpolate", ended, 0.01)
    call(cells, "EvaluateStream", "tf_resize", "OK", 1.0)
    cells.values[place(ITEMS, "tf_resize", "float16", "OK")] += 5
    cells.values[place(ITEMS, "tf_resize", "float16", "INTERNAL")] += 2
    cells.observe(place(PHASE_DURATION, "queue", "tf_resize"), PHASE_DURATION.buckets, 0.5)
    found = totals(ledgers.read())
    at, other = OPERATORS["interpolate"], OPERATORS["tf_resize"]
    assert found.calls.sum() == 5
    assert found.calls[METHOD.index("Evaluate"), at] == 4
    assert (found.failed[at], found.failed.sum()) == (1, 1)
    assert (found.items[other], found.items_failed[other]) == (7, 2)
    assert found.durations[at].sum() == 4
    assert found.phases.sum(axis=1).tolist() == [0, 1, 0, 0]


def test_bytes_of_a_stream_count_as_they_are_computed_and_once() -> None:
    cells, ledgers = counted()
    cells.observe(place(STEP), STEP.buckets, 1000)
    for metric in (RECEIVED, SENT):
        cells.observe(place(metric, "EvaluateStream"), metric.buckets, 500)
        cells.observe(place(metric, "Evaluate"), metric.buckets, 7)
    assert totals(ledgers.read()).tensor_bytes == 1014


def test_history_keeps_some_minutes_of_differences() -> None:
    cells, ledgers = counted()
    history = History(lambda: totals(ledgers.read()))
    assert history.steps() == []
    for _ in range(2 * MOST):
        call(cells, "Evaluate", "interpolate", "OK", 0.01)
        history.note()
    steps = history.steps()
    assert len(steps) == MOST - 1
    assert all(counts.calls.sum() == 1 for _, counts in steps)
    call(cells, "Evaluate", "interpolate", "OK", 0.01)
    now = totals(ledgers.read())
    assert history.since(math.inf, now)[1].calls.sum() == MOST
    # All of it took less than what is told as the last seconds.
    assert history.since(LATELY_S, now)[1].calls.sum() == MOST


def test_a_loop_that_beats_is_not_silent() -> None:
    cells, ledgers = counted()
    history = History(lambda: totals(ledgers.read()))
    (first,) = history.silent_s()
    history.note()
    (silent,) = history.silent_s()
    assert silent >= first
    cells.observe(place(LAG), LAG.buckets, 0.001)
    history.note()
    (alive,) = history.silent_s()
    history.note()
    assert alive <= history.silent_s()[0]
