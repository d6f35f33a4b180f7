"""Progress grows, comes at most ten times a second, and ends with the end."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gradwire._wire.requests import Progress

# Times that floating-point numbers add exactly.
PAUSES = st.sampled_from([0.0, 1 / 32, 1 / 16, 1 / 8, 1 / 4])
STEPS = st.lists(st.tuples(PAUSES, st.integers(0, 100), st.integers(0, 100)))


@given(STEPS)
def test_reports_grow_and_keep_a_tenth_of_a_second_apart(
    steps: list[tuple[float, int, int]],
) -> None:
    now = 0.0
    reports: list[tuple[float, int, int]] = []
    progress = Progress(
        lambda sent, received: reports.append((now, sent, received)), clock=lambda: now
    )
    for pause, sent, received in steps:
        now += pause
        progress.report(sent, received)
    progress.finish(100, 100)
    *early, end = reports
    assert end[1:] == (100, 100)
    for before, after in pairwise(early):
        assert after[0] - before[0] >= 0.1
        assert before[1:] != after[1:]
    for before, after in pairwise(reports):
        assert before[1] <= after[1]
        assert before[2] <= after[2]


@given(STEPS)
def test_nothing_is_reported_before_anything_has_moved(
    steps: list[tuple[float, int, int]],
) -> None:
    now = 0.0
    reports: list[tuple[int, int]] = []
    progress = Progress(lambda sent, received: reports.append((sent, received)), clock=lambda: now)
    for pause, _, _ in steps:
        now += pause
        progress.report(0, 0)
    assert reports == []
