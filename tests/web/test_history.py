"""Rates are differences of totals, and quantiles those that Prometheus would tell."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_server.admin_http.history import MOST, History, quantile, totals
from gradwire_server.admin_http.status import LATELY_S
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


def test_nothing_has_no_quantile() -> None:
    assert quantile(BOUNDS, np.zeros(4), 0.5) is None


@given(st.lists(st.floats(1e-6, 100), min_size=1, max_size=200), st.floats(0.01, 1))
def test_a_quantile_is_in_the_bucket_of_the_value_itself(values: list[float], share: float) -> None:
    bounds = REQUEST_DURATION.buckets
    counts = np.bincount(np.searchsorted(bounds, values), minlength=len(bounds) + 1)
    exact = np.quantile(values, share, method="inverted_cdf")
    told = quantile(bounds, np.asarray(counts, np.float64), share)
    assert told is not None
    bucket = np.searchsorted(bounds, exact)
    lower = 0.0 if bucket == 0 else bounds[bucket - 1]
    assert lower <= told <= bounds[bucket] * (1 + 1e-12)


def test_totals_tell_operators_and_what_failed() -> None:
    cells, ledgers = counted()
    for status in ("OK", "OK", "CANCELLED", "INVALID_ARGUMENT"):
        call(cells, "Evaluate", "interpolate", status, 0.01)
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
