"""The status page tells all in words; counts are sums, quantiles Prometheus'."""

from __future__ import annotations

import copy
import html.parser
from typing import Any, TypeAlias, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire_server.admin_http import page
from gradwire_server.admin_http.status import quantile, status
from gradwire_server.config.settings import Settings
from gradwire_server.observability.cells import Cells, Ledger, place
from gradwire_server.observability.definitions import (
    ITEMS,
    PHASE_DURATION,
    RECEIVED,
    REQUEST_DURATION,
    SENT,
    STEP,
)

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&amp;"


class Reader(html.parser.HTMLParser):
    """Reads a page: its elements in their order, with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in {"meta", "link"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f" {data}"


def told(cells: Cells | None = None, **changes: Any) -> dict[str, Any]:
    """Return what a server tells that has counted so much, but for changes."""
    ledger = Ledger(0, cells or Cells())
    return status(Settings(max_rank=3), [ledger], address="a:1") | changes


def read(found: dict[str, Any]) -> Reader:
    reader = Reader(page.render(found).decode())
    assert not reader.open
    return reader


def test_all_is_told_in_words() -> None:
    (worker,) = told()["workers"]
    taking = [worker | {"resident_bytes": 213e6, "processor_s": 83.5, "device_memory_bytes": 1e9}]
    budget = {"now": 64e6, "limit": 2e9}
    for found, phrases in (
        (told(), ("not serving", "Not known yet: no worker has started.", "None.")),
        (told(), ("Nothing has been called yet.",)),
        (told(workers=taking), ("213.0 MB", "0:01:23", "GPU memory", "1.0 GB")),
        (told(request_budget_bytes=budget), ("Request budget", "64.0 MB of 2.0 GB")),
        (told(workers=[worker | {"state": "hangs"}]), ("event loop hangs",)),
    ):
        text = read(found).text
        assert [each for each in phrases if each not in text] == []
    assert "GPU memory" not in read(told()).text
    # States differ not only in their color.
    assert len({read(told(state=each)).text for each in ("serving", "partly", "away")}) == 3


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
    call(cells, "Evaluate", "interpolate", "OK", 0.1)
    cells.notes.description = {"backend": "b", "backend_reason": "w", "backend_to_come": "c"}
    names = {"status": "s", "reason": "r", "message": "m", "request_id": "i"}
    cells.notes.error(method="Evaluate", operator="interpolate", **names)
    cells.notes.write()
    plain = told(cells)
    kept = {key: plain[key] for key in ("state", "now")}
    hostile = cast("dict[str, Any]", replaced(copy.deepcopy(plain), text)) | kept
    hostile["workers"] = [each | {"state": "serving"} for each in hostile["workers"]]
    for error, original in zip(hostile["errors"], plain["errors"], strict=True):
        error["latest"] = original["latest"]
    links = {"href", "src", "action", "style"}

    def structure(found: dict[str, Any]) -> list[tuple[str, set[str], dict[str, str | None]]]:
        seen = read(found).seen
        return [(tag, set(has), {n: has[n] for n in has.keys() & links}) for tag, has in seen]

    assert structure(hostile) == structure(plain)
    assert not any(name.startswith("on") for _, names, _ in structure(hostile) for name in names)


BOUNDS = (1.0, 2.0, 4.0)


def call(cells: Cells, method: str, operator: str, status: str, seconds: float) -> None:
    cells.observe(REQUEST_DURATION, seconds, method, operator, "float32", status)


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


def test_totals_tell_operators_bytes_and_what_failed() -> None:
    cells = Cells()
    for ended in ("OK", "OK", "CANCELLED", "INVALID_ARGUMENT"):
        call(cells, "Evaluate", "interpolate", ended, 0.01)
    call(cells, "EvaluateStream", "tf_resize", "OK", 1.0)
    cells.values[place(ITEMS, "tf_resize", "float16", "OK")] += 5
    cells.values[place(ITEMS, "tf_resize", "float16", "INTERNAL")] += 2
    cells.observe(PHASE_DURATION, 0.5, "queue", "tf_resize")
    # Bytes of a stream count as they are computed, and once.
    cells.observe(STEP, 1000)
    for metric in (RECEIVED, SENT):
        cells.observe(metric, 500, "EvaluateStream")
        cells.observe(metric, 7, "Evaluate")
    found = told(cells)
    assert found["totals"] == {"calls": 5, "items": 7, "failed": 3, "tensor_bytes": 1014}
    names = ("operator", "calls", "items", "failed", "count")
    rows = [[row[name] for name in names] for row in found["operators"]]
    assert rows == [["tf_resize", 1, 7, 2, 1], ["interpolate", 4, 0, 1, 4]]
    assert [row["count"] for row in found["latency"]] == [0, 1, 0, 0, 5]
