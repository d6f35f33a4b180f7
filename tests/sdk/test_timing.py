"""A caller who asks is told where the time of an evaluation went."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from numpy.typing import NDArray

from gradwire import AsyncClient, Client, InvalidRequestError, RetryPolicy, Timing, ops
from gradwire._core.reports import read_timing
from raw_calls import RawClient, as_stream, published_request
from relay import relaying
from serving import ServerThread

COPY = ops.DmlResample(interpolation_mode="linear")
HALVE = ops.InterpolateBackward(mode="bilinear", data_format="NCX")
SMALL = np.ones((1, 1, 32, 32), np.float32)
LARGE = np.ones((1, 1, 1024, 1024), np.float32)
PROMPT = RetryPolicy(initial_backoff_s=0.01)


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


@pytest.mark.parametrize("array", [SMALL, LARGE], ids=["unary", "stream"])
def test_a_call_tells_its_timing_once(server: ServerThread, array: NDArray[np.float32]) -> None:
    shape = (1, 1, array.shape[2] // 2, array.shape[3] // 2)
    timings: list[Timing] = []
    with Client(server.address) as client:
        client.evaluate(HALVE, array, output_shape=shape, on_timing=timings.append)

    async def ask() -> None:
        async with AsyncClient(server.address) as client:
            await client.evaluate(HALVE, array, output_shape=shape, on_timing=timings.append)

    asyncio.run(ask())
    assert len(timings) == 2
    for timing in timings:
        check(timing, streamed=array is LARGE)


def test_a_call_that_fails_tells_none(server: ServerThread) -> None:
    timings: list[Timing] = []
    with Client(server.address) as client, pytest.raises(InvalidRequestError):
        client.evaluate(COPY, SMALL, output_shape=(1, 1, 32, 0), on_timing=timings.append)
    assert not timings


@pytest.mark.parametrize("array", [SMALL, LARGE], ids=["unary", "stream"])
def test_tries_are_counted(server: ServerThread, array: NDArray[np.float32]) -> None:
    timings: list[Timing] = []
    with (
        relaying(server.address, cuts=(100, 100)) as relay,
        Client(relay.address, connections=1, retry=PROMPT) as client,
    ):
        client.evaluate(COPY, array, output_shape=array.shape, on_timing=timings.append)
    (timing,) = timings
    assert timing.tries >= 3


def test_an_exception_from_on_timing_reaches_the_caller(server: ServerThread) -> None:
    class TornError(Exception):
        pass

    def tear(_timing: Timing) -> None:
        raise TornError

    with Client(server.address) as client, pytest.raises(TornError):
        client.evaluate(COPY, SMALL, output_shape=SMALL.shape, on_timing=tear)


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
    ],
)
def test_what_is_not_understood_is_not_told(told: str, compute_s: float | None) -> None:
    timing = read_timing([("gradwire-timing", told)], total_s=4, tries=2)
    assert (timing.compute_s, timing.queue_s, timing.total_s, timing.tries) == (
        compute_s,
        None,
        4,
        2,
    )


def test_a_server_that_tells_nothing_is_no_error() -> None:
    assert read_timing([("traceparent", "x")], total_s=1, tries=1) == Timing(total_s=1, tries=1)
    assert read_timing([("gradwire-timing", b"x")], total_s=1, tries=1) == Timing(
        total_s=1, tries=1
    )
