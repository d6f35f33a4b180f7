"""Metrics and latest errors are memory of fixed size, which merging adds up and others read."""

from __future__ import annotations

import os
from contextlib import ExitStack
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from gradwire_server.observability.cells import (
    COUNTED,
    MOST,
    NOTES_BYTES,
    TOTAL,
    Cells,
    Ledger,
    Notes,
    place,
    span,
    width,
)
from gradwire_server.observability.definitions import COUNTS, ERRORS, METHOD, METRICS, STATES, STEP

STORED = (*COUNTS, *STATES)


def test_every_time_series_has_cells_of_its_own_and_a_name_of_its_kind() -> None:
    cells: list[int] = []
    for metric in STORED:
        for values in product(*(label.values for label in metric.labels)):
            first = place(metric, *values)
            cells += range(first, first + width(metric))
    assert sorted(cells) == list(range(1, TOTAL - 1))
    assert max(span(metric).stop for metric in COUNTS) == COUNTED
    assert len({metric.name for metric in METRICS}) == len(METRICS)
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
        cells.observe(STEP, value)
    ours = cells.array[span(STEP)]
    assert registry.get_sample_value("oracle_sum") == pytest.approx(ours[0])
    samples = [sample for metric in oracle.collect() for sample in metric.samples]
    counts = [sample.value for sample in samples if sample.name == "oracle_bucket"]
    assert counts == np.cumsum(ours[1:]).tolist()


@pytest.mark.parametrize("size", [0, 8, TOTAL * 8])
def test_cells_of_another_layout_are_left_alone(size: int) -> None:
    fd = os.memfd_create("other")
    os.ftruncate(fd, size)
    assert Cells.attached(fd) is None


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(["start", "end", "count"]), st.integers(0, 3))))
def test_counts_never_fall_and_none_is_lost_when_processes_come_and_go(
    events: list[tuple[str, int]],
) -> None:
    ledger, cell = Ledger(0), place(STEP) + 1
    running: list[tuple[ExitStack, Cells]] = []
    counted, before = 0, np.zeros(COUNTED)
    for event, amount in events:
        if event == "start":
            stack = ExitStack()
            running.append((stack, stack.enter_context(ledger.process())))
        elif running and event == "end":
            running.pop(0)[0].close()
        elif running:
            cells = running[-1][1]
            cells.values[cell] += amount
            cells.values[TOTAL - 2] = 1
            counted += amount
        now = ledger.read().values
        assert (now[:COUNTED] >= before).all()
        assert now[cell] == counted
        assert running or not now[COUNTED:].any()
        before = now[:COUNTED].copy()
    for stack, _ in running:
        stack.close()


def notes(memory: bytearray | None = None) -> Notes:
    return Notes(memoryview(memory or bytearray(NOTES_BYTES)))


def note(made: Notes, message: str, *, alike: str = "") -> None:
    texts = dict.fromkeys(("method", "operator", "status", "reason", "request_id"), "text")
    made.error(**texts, message=message, alike=alike)


def messages(made: Notes) -> list[str]:
    made.write()
    return [error["message"] for error in made.read()[1]]


def test_the_latest_errors_are_kept_and_one_that_comes_again_only_adds_to_its_count() -> None:
    made = notes()
    assert made.read() == ({}, [])
    for number in range(3 * MOST):
        note(made, str(number))
    assert messages(made) == [str(number) for number in range(2 * MOST, 3 * MOST)]
    for number in range(10_000):
        note(made, f"full; retry after {number} ms", alike="max_queue")
    assert messages(made)[-2:] == [str(3 * MOST - 1), "full; retry after 9999 ms"]
    rare, full = made.read()[1][-2:]
    assert (rare["count"], full["count"]) == (1, 10_000)
    assert full["latest"] >= rare["latest"]
    note(made, rare["message"])
    assert messages(made)[-1] == rare["message"]


TEXTS = st.builds(lambda text, times: text * times, st.text(max_size=50), st.integers(0, 120))


@given(st.lists(TEXTS, max_size=5), TEXTS)
def test_any_text_fits_or_is_cut(texts: list[str], fact: str) -> None:
    made = notes()
    made.description = {"backend": fact}
    for text in texts:
        note(made, text)
    assert sorted(messages(made)) == sorted(text[:600] for text in set(texts))
    assert made.read()[0] == {"backend": fact}


def test_another_process_reads_what_is_whole() -> None:
    memory = bytearray(NOTES_BYTES)
    writer, reader = notes(memory), notes(memory)
    hostile = '<script>alert("1")</script> \\ " \x00\ud800 é'
    note(writer, hostile)
    writer.description = {"backend": "numpy_cpu"}
    writer.write()
    description, (error,) = reader.read()
    assert (description, error["message"]) == ({"backend": "numpy_cpu"}, hostile)
    memory[100] ^= 1
    assert reader.read() == ({}, [])
    memory[:8] = b"\xff" * 8
    assert reader.read() == ({}, [])
