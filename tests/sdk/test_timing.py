"""Reports of a call: where its time went, and its progress, at most ten times a second."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gradwire import Client, Timing
from gradwire._core.reports import read_timing
from gradwire._wire.requests import Progress
from gradwire.errors import InvalidRequestError
from support.clients import COPY, LARGE, PROMPT, SMALL, Face, copied, either_size, halved
from support.raw_calls import RawClient, as_stream, published_request
from support.relay import relaying
from support.servers import ServerThread


def check(timing: Timing, *, streamed: bool) -> None:
    """Check what holds whatever the machine."""
    phases = (timing.receive_s, timing.queue_s, timing.compute_s, timing.send_s)
    told = [phase for phase in phases if phase is not None]
    assert len(told) == 4
    assert min(told) >= 0
    assert timing.compute_s
    assert max(told) < timing.total_s
    # Those of a stream overlap.
    assert streamed or sum(told) < timing.total_s
    assert timing.tries == 1


@either_size
def test_a_call_tells_its_timing_once(
    server: ServerThread, face: Face, array: NDArray[np.float32]
) -> None:
    timings: list[Timing] = []
    with face(server.address) as client:
        halved(client, array[np.newaxis, np.newaxis], on_timing=timings.append)
    (timing,) = timings
    check(timing, streamed=array is LARGE)


def test_a_call_that_fails_tells_none(plain: Client) -> None:
    timings: list[Timing] = []
    with pytest.raises(InvalidRequestError):
        plain.evaluate(COPY, SMALL, output_shape=(4, 0), on_timing=timings.append)
    assert not timings


@either_size
def test_tries_are_counted(server: ServerThread, array: NDArray[np.float32]) -> None:
    timings: list[Timing] = []
    with (
        relaying(server.address, cuts=(100, 100)) as relay,
        Client(relay.address, connections=1, retry=PROMPT) as client,
    ):
        copied(client, array, on_timing=timings.append)
    (timing,) = timings
    assert timing.tries >= 3


def test_an_exception_from_on_timing_reaches_the_caller(server: ServerThread, face: Face) -> None:
    def tear(_timing: Timing) -> None:
        raise ZeroDivisionError

    with face(server.address) as client, pytest.raises(ZeroDivisionError):
        copied(client, SMALL, on_timing=tear)


def test_the_trailing_metadata_are_those_that_the_schema_names(server: ServerThread) -> None:
    with RawClient(server.address) as client:
        answers = [
            client.evaluate(published_request()),
            client.stream(as_stream(published_request())),
        ]
    for answer in answers:
        entries = [entry.split(";dur=") for entry in answer.trailers["gradwire-timing"].split(", ")]
        assert [name for name, _ in entries] == ["receive", "queue", "compute", "send"]
        assert all(float(milliseconds) >= 0 for _, milliseconds in entries)


@pytest.mark.parametrize(
    ("told", "compute_s"),
    [
        ("compute;dur=1500", 1.5),
        ("receive;dur=1, compute;dur=2.5, send;dur=3", 0.0025),
        ('queue, compute;desc="all of it";dur=20', 0.02),
        ("compute", None),
        ("compute;dur=soon", None),
        ("dur=3", None),
        ("", None),
        (b"x", None),
    ],
)
def test_what_is_not_understood_is_not_told(told: str | bytes, compute_s: float | None) -> None:
    timing = read_timing([("gradwire-timing", told)], total_s=4, tries=2)
    assert (timing.compute_s, timing.queue_s) == (compute_s, None)
    assert (timing.total_s, timing.tries) == (4, 2)


def test_a_server_that_tells_nothing_is_no_error() -> None:
    assert read_timing([("traceparent", "x")], total_s=1, tries=1) == Timing(total_s=1, tries=1)


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
