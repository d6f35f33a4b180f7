"""Metrics are arrays: every time series has cells of its own, and merging is adding."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from gradwire_server.observability.cells import (
    COUNTED,
    TOTAL,
    Cells,
    Ledger,
    Ledgers,
    place,
    span,
    width,
)
from gradwire_server.observability.definitions import COUNTS, ERRORS, METHOD, METRICS, STATES, STEP
from gradwire_server.observability.exposition import families

STORED = (*COUNTS, *STATES)


def places() -> Iterator[int]:
    """Yield every cell of every time series."""
    for metric in STORED:
        for values in product(*(label.values for label in metric.labels)):
            first = place(metric, *values)
            yield from range(first, first + width(metric))


def test_every_time_series_has_cells_of_its_own() -> None:
    assert sorted(places()) == list(range(1, TOTAL))
    assert max(span(metric).stop for metric in COUNTS) == COUNTED


def test_names_are_unique_and_say_unit_and_kind() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert list(metric.buckets) == sorted(metric.buckets)


@pytest.mark.parametrize("value", ["EvaluateFaster", "", "x" * 1000, "OK\n"])
def test_a_value_that_is_not_known_counts_as_the_last_one(value: str) -> None:
    assert place(ERRORS, value, value, "other") == place(ERRORS, "unknown", "UNSPECIFIED", "other")
    assert METHOD.values[-1] == "unknown"


@given(st.lists(st.floats(0, 1e12), max_size=40))
def test_values_fall_into_the_buckets_that_prometheus_client_puts_them_in(
    values: list[float],
) -> None:
    registry = CollectorRegistry()
    oracle = Histogram("oracle", "oracle", buckets=STEP.buckets, registry=registry)
    cells = Cells()
    for value in (*values, *STEP.buckets):
        oracle.observe(value)
        cells.observe(place(STEP), STEP.buckets, value)
    ours = cells.array[span(STEP)]
    assert registry.get_sample_value("oracle_sum") == pytest.approx(ours[0])
    samples = [sample for metric in oracle.collect() for sample in metric.samples]
    counts = [sample.value for sample in samples if sample.name == "oracle_bucket"]
    assert counts == np.cumsum(ours[1:]).tolist()


def test_shared_cells_are_read_where_they_are_not_written() -> None:
    cells = Cells.shared()
    other = Cells.attached(cells.fd)
    assert other is not None
    other.values[place(STEP)] += 7
    assert cells.array[place(STEP)] == 7


@pytest.mark.parametrize("size", [0, 8, TOTAL * 8])
def test_cells_of_another_layout_are_left_alone(size: int) -> None:
    fd = os.memfd_create("other")
    os.ftruncate(fd, size)
    assert Cells.attached(fd) is None


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["start", "end", "count"]), st.integers(0, 3))))
def test_counts_never_fall_and_none_is_lost_when_processes_come_and_go(
    events: list[tuple[str, int]],
) -> None:
    ledger, cell = Ledger("0"), place(STEP) + 1
    running: list[tuple[ExitStack, Cells | None]] = []
    counted, before = 0, np.zeros(COUNTED)
    for event, amount in events:
        if event == "start":
            stack = ExitStack()
            running.append((stack, stack.enter_context(ledger.process())))
        elif running and event == "end":
            running.pop(0)[0].close()
        elif running:
            cells = running[-1][1]
            assert cells is not None
            cells.values[cell] += amount
            cells.values[TOTAL - 1] = 1
            counted += amount
        now = ledger.read().values
        assert (now[:COUNTED] >= before).all()
        assert now[cell] == counted
        assert running or not now[COUNTED:].any()
        before = now[:COUNTED].copy()
    for stack, _ in running:
        stack.close()


def test_a_worker_whose_metrics_nobody_wants_inherits_nothing() -> None:
    ledgers = Ledgers(2, wanted=False)
    with ledgers.all[1].process() as cells:
        assert cells is None
    assert not any(worker.values.any() for worker in ledgers.read())


def test_workers_are_added_up_where_they_are_not_told_apart() -> None:
    ledgers = Ledgers(2)
    with ledgers.all[0].process() as first, ledgers.all[1].process() as second:
        for cells, amount in ((first, 2.0), (second, 3.0)):
            assert cells is not None
            cells.values[place(ERRORS, "Evaluate", "INTERNAL", "")] = amount
            cells.values[place(STATES[0], "Evaluate")] = amount
        told = families(ledgers.read())
    (errors,) = told[ERRORS]
    assert errors.labels == {"method": "Evaluate", "reason": "INTERNAL", "limit": ""}
    assert errors.value == 5.0
    states = {tuple(sample.labels.values()): sample.value for sample in told[STATES[0]]}
    assert states["0", "Evaluate"] == 2.0
    assert states["1", "Evaluate"] == 3.0
