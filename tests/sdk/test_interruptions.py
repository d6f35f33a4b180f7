"""Deadlines, stalls, interrupts and exceptions end a call at once and leave nothing behind."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gradwire import AsyncClient, Client
from gradwire.errors import CallCancelledError, DeadlineExceededError, UnavailableError
from support.clients import (
    AWAITED,
    ITEM,
    LARGE,
    ONCE,
    SMALL,
    Face,
    copied,
    either_size,
    start_lost,
)
from support.raw_calls import wait_until
from support.relay import Relay
from support.servers import ServerThread, serving_process

pytestmark = pytest.mark.usefixtures("nothing_waits_for_the_watch")

SMALL_CALL, LARGE_CALL = partial(copied, array=SMALL), partial(copied, array=LARGE)


def test_a_stream_in_which_nothing_moves_is_given_up(relay: Relay, face: Face) -> None:
    with face(relay.address, timeout_s=0.3) as client:
        copied(client, LARGE)
        relay.hold()
        with pytest.raises(DeadlineExceededError, match=r"nothing moved for 0\.3 s") as caught:
            copied(client, LARGE)
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.request_id


def test_a_stream_may_take_longer_than_the_timeout_while_something_moves(relay: Relay) -> None:
    relay.delay_s = 0.02
    with Client(relay.address, timeout_s=0.8, chunk_bytes=1 << 16) as client:
        started = time.monotonic()
        result = copied(client, LARGE)
        assert time.monotonic() > started + 0.8
    np.testing.assert_array_equal(result, LARGE)


@either_size
def test_a_deadline_is_kept(relay: Relay, face: Face, array: NDArray[Any]) -> None:
    with face(relay.address) as client:
        copied(client, array)
        relay.hold()
        with pytest.raises(DeadlineExceededError, match=r"timeout_s, 0\.2 s") as caught:
            copied(client, array, timeout_s=0.2)
    assert caught.value.request_id


@either_size
def test_no_retry_reaches_past_the_deadline(nobody: str, array: NDArray[Any]) -> None:
    with Client(nobody) as client, pytest.raises(UnavailableError):
        copied(client, array, timeout_s=1.0)


@pytest.mark.parametrize("error", [ZeroDivisionError(), UnavailableError("another server")])
def test_an_exception_from_on_progress_ends_the_call(
    server: ServerThread, face: Face, error: Exception
) -> None:
    def tear(_sent: int, _received: int) -> None:
        raise error

    with face(server.address, chunk_bytes=5000) as client:
        with pytest.raises(type(error)) as caught:
            copied(client, LARGE, on_progress=tear)
        # Not taken for an error of this call.
        assert caught.value is error
        np.testing.assert_array_equal(copied(client, LARGE), LARGE)


@either_size
def test_an_interrupt_ends_the_call(relay: Relay, array: NDArray[Any]) -> None:
    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with Client(relay.address) as client:
        copied(client, array)
        relay.hold()
        before = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            with pytest.raises(KeyboardInterrupt):
                copied(client, array)
        finally:
            signal.signal(signal.SIGALRM, before)
        relay.let_go()
        np.testing.assert_array_equal(copied(client, array), array)


@either_size
def test_cancelling_a_task_ends_its_call_at_once(relay: Relay, array: NDArray[Any]) -> None:
    async def run() -> None:
        async with AsyncClient(relay.address) as client:
            await copied(client, array)
            relay.hold()
            sent = relay.carried_bytes
            task = asyncio.create_task(copied(client, array))
            await asyncio.to_thread(wait_until, lambda: relay.carried_bytes > sent)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            relay.let_go()
            np.testing.assert_array_equal(await copied(client, array), array)

    asyncio.run(run())


@either_size
def test_closing_ends_calls_of_others(relay: Relay, face: Face, array: NDArray[Any]) -> None:
    with face(relay.address) as client:
        copied(client, array)
        call = start_lost(relay, lambda: copied(client, array))
        client.close()
        assert isinstance(call.exception(30), CallCancelledError)


def test_a_closed_client_says_so(server: ServerThread, face: Face) -> None:
    client = face(server.address)
    client.server_info()
    client.close()
    client.close()
    asked = (client.server_info, client.operators, client.wait_ready)
    for call in (*asked, partial(SMALL_CALL, client), partial(LARGE_CALL, client)):
        with pytest.raises(RuntimeError, match="closed"):
            call()


def test_another_event_loop_is_refused(server: ServerThread) -> None:
    client = AsyncClient(server.address)

    async def use_elsewhere() -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            await copied(client, SMALL)

    async def use() -> None:
        await copied(client, SMALL)
        await asyncio.to_thread(asyncio.run, use_elsewhere())
        await client.close()

    asyncio.run(use())


def _many(client: Client) -> object:
    return list(client.evaluate_many([ITEM] * 3))


@pytest.mark.parametrize(
    ("face", "call"),
    [
        (Client, SMALL_CALL),
        (Client, LARGE_CALL),
        (Client, _many),
        (AWAITED, SMALL_CALL),
        (AWAITED, LARGE_CALL),
    ],
    ids=["Evaluate", "EvaluateStream", "EvaluateMany", "awaited", "awaited stream"],
)
def test_a_call_ends_that_no_server_answers_any_more(
    monkeypatch: pytest.MonkeyPatch, face: Face, call: Callable[[Any], Any]
) -> None:
    # Takes 40 s by default.
    monkeypatch.setattr("gradwire._transport.channels._KEEPALIVE_MS", 1000)
    monkeypatch.setattr("gradwire._transport.channels._KEEPALIVE_TIMEOUT_MS", 500)
    with (
        serving_process() as server,
        # Without keepalive calls would end with another error, after the timeout.
        face(server.address, retry=ONCE, timeout_s=60) as client,
    ):
        call(client)
        # Its sockets stay open, and nobody is behind them.
        server.process.send_signal(signal.SIGSTOP)
        with pytest.raises(UnavailableError):
            call(client)
