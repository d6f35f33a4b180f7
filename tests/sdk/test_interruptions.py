"""Deadlines, stalls, interrupts and exceptions end a call at once and leave nothing behind."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gradwire import (
    CallCancelledError,
    Client,
    DeadlineExceededError,
    InvalidRequestError,
    UnavailableError,
    ops,
)
from relay import Relay
from serving import ServerThread, serving

COPY = ops.DmlResample(interpolation_mode="linear")
# After so long without progress both sides end a stream by themselves.
WATCH_S = 60.0
SMALL = np.ones((4, 4), np.float32)
LARGE = np.ones((1024, 1024), np.float32)


@pytest.fixture(autouse=True)
def nothing_waits_for_the_watch_and_no_thread_is_left() -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() < started + WATCH_S / 2
    patience = time.monotonic() + 10
    while "gradwire-receiver" in (names := [each.name for each in threading.enumerate()]):
        assert time.monotonic() < patience, names
        time.sleep(0.01)


def test_a_stream_in_which_nothing_moves_is_given_up(relay: Relay) -> None:
    with Client(relay.address, timeout_s=0.3) as client:
        client.evaluate(COPY, LARGE, output_shape=LARGE.shape)
        relay.hold()
        with pytest.raises(DeadlineExceededError, match=r"nothing moved for 0\.3 s") as caught:
            client.evaluate(COPY, LARGE, output_shape=LARGE.shape)
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.request_id


def test_a_stream_may_take_longer_than_the_timeout_while_something_moves(relay: Relay) -> None:
    relay.delay_s = 0.02
    with Client(relay.address, timeout_s=0.8, chunk_bytes=1 << 16) as client:
        started = time.monotonic()
        result = client.evaluate(COPY, LARGE, output_shape=LARGE.shape)
        assert time.monotonic() > started + 0.8
    np.testing.assert_array_equal(result, LARGE)


@pytest.mark.parametrize("array", [SMALL, LARGE], ids=["unary", "stream"])
def test_a_deadline_is_kept(relay: Relay, array: NDArray[Any]) -> None:
    with Client(relay.address) as client:
        client.evaluate(COPY, array, output_shape=array.shape)
        relay.hold()
        with pytest.raises(DeadlineExceededError):
            client.evaluate(COPY, array, output_shape=array.shape, timeout_s=0.2)


@pytest.mark.parametrize("array", [SMALL, LARGE], ids=["unary", "stream"])
def test_no_retry_reaches_past_the_deadline(array: NDArray[Any]) -> None:
    with serving() as gone:
        address = gone.address
    with Client(address) as client, pytest.raises(UnavailableError):
        client.evaluate(COPY, array, output_shape=array.shape, timeout_s=1.0)


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf")])
def test_a_timeout_that_is_no_time_is_refused(server: ServerThread, timeout_s: float) -> None:
    with Client(server.address) as client, pytest.raises(InvalidRequestError, match="timeout_s"):
        client.evaluate(COPY, SMALL, output_shape=SMALL.shape, timeout_s=timeout_s)


def test_an_exception_from_on_progress_ends_the_call(server: ServerThread) -> None:
    class TornError(Exception):
        pass

    def tear(_sent: int, _received: int) -> None:
        raise TornError

    with Client(server.address, chunk_bytes=5000) as client:
        with pytest.raises(TornError):
            client.evaluate(COPY, LARGE, output_shape=LARGE.shape, on_progress=tear)
        np.testing.assert_array_equal(client.evaluate(COPY, LARGE, output_shape=LARGE.shape), LARGE)


def test_an_error_of_another_call_within_on_progress_is_not_taken_for_this_ones(
    server: ServerThread,
) -> None:
    def ask_nobody(_sent: int, _received: int) -> None:
        raise UnavailableError("another server")

    with (
        Client(server.address, chunk_bytes=5000) as client,
        pytest.raises(UnavailableError, match="another server"),
    ):
        client.evaluate(COPY, LARGE, output_shape=LARGE.shape, on_progress=ask_nobody)


@pytest.mark.parametrize("array", [SMALL, LARGE], ids=["unary", "stream"])
def test_an_interrupt_ends_the_call(relay: Relay, array: NDArray[Any]) -> None:
    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with Client(relay.address) as client:
        client.evaluate(COPY, array, output_shape=array.shape)
        relay.hold()
        before = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            with pytest.raises(KeyboardInterrupt):
                client.evaluate(COPY, array, output_shape=array.shape)
        finally:
            signal.signal(signal.SIGALRM, before)
        relay.let_go()
        np.testing.assert_array_equal(client.evaluate(COPY, array, output_shape=array.shape), array)


@pytest.mark.parametrize("array", [SMALL, LARGE], ids=["unary", "stream"])
def test_closing_ends_calls_of_other_threads(relay: Relay, array: NDArray[Any]) -> None:
    client = Client(relay.address)
    client.evaluate(COPY, array, output_shape=array.shape)
    relay.hold()
    threading.Timer(0.2, client.close).start()
    with pytest.raises(CallCancelledError):
        client.evaluate(COPY, array, output_shape=array.shape)


def test_a_closed_client_says_so(server: ServerThread) -> None:
    client = Client(server.address)
    client.server_info()
    client.close()
    client.close()
    for call in (
        client.server_info,
        client.operators,
        client.wait_ready,
        lambda: client.evaluate(COPY, SMALL, output_shape=SMALL.shape),
        lambda: client.evaluate(COPY, LARGE, output_shape=LARGE.shape),
    ):
        with pytest.raises(RuntimeError, match="closed"):
            call()
