"""Broken and interrupted calls give the bits of undisturbed ones, or the right error."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gradwire import AsyncClient, Client, RetryPolicy, Timing, ops
from gradwire.errors import (
    CallCancelledError,
    DeadlineExceededError,
    InvalidRequestError,
    OverloadedError,
    UnavailableError,
)
from gradwire_server.engine import prepared as server_prepared
from gradwire_server.errors import RETRY_AFTER_S
from support.clients import (
    AWAITED,
    BRISK,
    CALLS,
    COPY,
    LARGE,
    ONCE,
    PROMPT,
    SMALL,
    Face,
    copied,
    either_size,
    halved,
    interrupted,
    start_lost,
)
from support.raw_calls import wait_until
from support.relay import Relay, relaying
from support.servers import ServerThread, serving, serving_process

DIFF_DST = np.random.default_rng(0).normal(size=(1, 2, 512, 512)).astype(np.float32)
# Nobody reads this much before the server ends the stream.
HUGE = np.zeros((1, 1, 4096, 4096), np.float32)
RESULT_BYTES = DIFF_DST.nbytes // 4

# After a minute without progress both sides end a stream by themselves.
pytestmark = pytest.mark.usefixtures("nothing_waits_for_the_watch")


@pytest.fixture(scope="module")
def undisturbed(plain: Client) -> Any:
    return halved(plain, DIFF_DST)


def noting(event: threading.Event) -> Callable[[int, int], None]:
    return lambda _sent_bytes, _received_bytes: event.set()


# Tries would be over if they were not counted anew after every new byte of the result.
SOON_OVER = RetryPolicy(initial_backoff_s=0.15, max_backoff_s=0.15, max_attempts=3)


@pytest.mark.parametrize(
    "cuts",
    [
        *((at,) for at in (1, 300, RESULT_BYTES // 2, RESULT_BYTES)),
        (90_000, 1, 1, 200_000, 90_000, 500),
        (90_000,) * 5,
    ],
    ids=str,
)
def test_a_stream_that_is_cut_anywhere_gives_the_same_bits(
    server: ServerThread, face: Face, undisturbed: NDArray[Any], cuts: tuple[int, ...]
) -> None:
    options: dict[str, Any] = {"chunk_bytes": 50_001, "retry": PROMPT}
    if len(cuts) == 5:
        # Tries would be over if they were not counted anew after every new byte of the result.
        few = RetryPolicy(initial_backoff_s=0.15, max_backoff_s=0.15, max_attempts=3)
        options = {"chunk_bytes": 10_000, "retry": few}
    with (
        relaying(server.address, cuts=cuts) as relay,
        face(relay.address, **options) as client,
    ):
        result = halved(client, DIFF_DST)
        assert relay.connections > (len(cuts) if len(cuts) == 5 else 1)
    np.testing.assert_array_equal(result, undisturbed)


def test_a_server_killed_amid_a_stream_and_started_again_gives_the_same_bits(
    undisturbed: NDArray[Any],
) -> None:
    with serving_process() as server:

        def restart() -> None:
            server.kill()
            server.start()

        with (
            relaying(server.address, cuts=(RESULT_BYTES // 3,), on_cut=restart) as relay,
            Client(relay.address, chunk_bytes=50_000) as client,
        ):
            result = halved(client, DIFF_DST)
            assert relay.connections > 1
        np.testing.assert_array_equal(result, undisturbed)
        # A unary call outlives a restart too.
        part = DIFF_DST[:, :, :64, :64]
        with Client(server.address) as client:
            before = halved(client, part)
            server.kill()
            threading.Timer(0.2, server.start).start()
            np.testing.assert_array_equal(halved(client, part), before)


def test_a_stream_that_meets_another_evaluation_starts_again(
    server: ServerThread, undisturbed: NDArray[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade = partial(monkeypatch.setattr, server_prepared, "NUMERICS_VERSION", "another")
    reports: list[tuple[int, int]] = []
    with (
        relaying(server.address, cuts=(RESULT_BYTES // 2,), on_cut=upgrade) as relay,
        Client(relay.address, chunk_bytes=50_000, retry=PROMPT) as client,
    ):
        result = halved(client, DIFF_DST, on_progress=lambda up, down: reports.append((up, down)))
        assert relay.cut == 1
    np.testing.assert_array_equal(result, undisturbed)
    assert reports == sorted(reports)


def test_a_server_that_takes_smaller_chunks_than_the_one_before_is_heeded() -> None:
    with (
        serving(max_chunk_bytes=10_000) as small,
        serving() as large,
        relaying(large.address) as relay,
        Client(relay.address) as client,
    ):
        copied(client, DIFF_DST)
        relay.lead_to(small.address)
        np.testing.assert_array_equal(copied(client, DIFF_DST), DIFF_DST)


def test_refused_data_is_sent_again_only_where_chunks_were_too_large(plain: Client) -> None:
    channels = vars(plain)["_calls"].get().channels
    evaluation = channels.evaluation(
        op=COPY, array=LARGE, output_shape=None, out=None, timeout_s=None
    )
    transfer, refused = evaluation.shares.whole, InvalidRequestError("refused")
    refused.reason = "INVALID_DATA"
    with pytest.raises(InvalidRequestError):
        evaluation.recover(refused)
    transfer.too_large = True
    assert evaluation.recover(refused) == 0.0
    transfer.begin()
    with pytest.raises(InvalidRequestError):
        evaluation.recover(refused)


def test_every_refusal_reaches_a_client_that_is_writing(server: ServerThread, face: Face) -> None:
    wrong = ops.DmlResampleGrad(interpolation_mode="linear", scales=(1.0,))
    with face(server.address, chunk_bytes=20_000) as client:
        copied(client, DIFF_DST)
        for _ in range(60):
            with pytest.raises(InvalidRequestError) as caught:
                client.evaluate(wrong, DIFF_DST, output_shape=(1, 2, 256, 256))
            assert caught.value.field == "operator.dml_resample_grad.scales"
            assert caught.value.request_id


def test_every_drain_reaches_a_client_that_is_writing(face: Face) -> None:
    server = ServerThread(max_memory_bytes=8 << 30, max_streams=80)
    server.start()
    started = [threading.Event() for _ in range(40)]
    with (
        relaying(server.address) as relay,
        # A server that is short of time ends streams without a word, and then is gone.
        face(relay.address, chunk_bytes=10_000, retry=BRISK) as client,
        ThreadPoolExecutor(len(started)) as pool,
    ):
        calls = [pool.submit(copied, client, HUGE, on_progress=noting(event)) for event in started]
        assert all(event.wait(30) for event in started)
        # Every stream is under way, and from here on the network takes no more of it.
        relay.hold()
        server.stop()
        assert {type(call.exception()) for call in calls} == {UnavailableError}


def test_callers_that_outnumber_the_streams_of_a_server_all_get_their_result() -> None:
    with (
        serving(max_streams=1) as server,
        Client(server.address, retry=PROMPT) as client,
        ThreadPoolExecutor(6) as pool,
    ):
        for call in [pool.submit(copied, client, DIFF_DST) for _ in range(12)]:
            np.testing.assert_array_equal(call.result(), DIFF_DST)


def test_an_overload_that_does_not_pass_is_told_with_the_time_to_wait() -> None:
    underway = threading.Event()
    with (
        serving(max_streams=1) as server,
        relaying(server.address) as relay,
        Client(relay.address, chunk_bytes=10_000) as first,
        Client(server.address, retry=RetryPolicy(max_attempts=2)) as second,
        ThreadPoolExecutor(1) as pool,
    ):
        relay.hold(after=100_000)
        call = pool.submit(copied, first, DIFF_DST, on_progress=noting(underway))
        assert underway.wait(30)
        with pytest.raises(OverloadedError) as caught:
            copied(second, DIFF_DST)
        relay.let_go()
        np.testing.assert_array_equal(call.result(), DIFF_DST)
    assert caught.value.retry_after_s == RETRY_AFTER_S


def test_shares_avoid_a_server_on_which_one_broke(server: ServerThread, nobody: str) -> None:
    timings: list[Timing] = []
    targets = [nobody, server.address]
    with Client(targets, split=True, split_threshold_bytes=0, retry=PROMPT) as client:
        # A clock that stands still: what is avoided stays so.
        vars(vars(client)["_calls"].get().channels.shares)["_clock"] = lambda: 1.0
        for _ in range(3):
            halved(client, DIFF_DST, on_timing=timings.append)
    tries = [timing.tries for timing in timings]
    assert tries[0] > 1
    assert tries[1:] == [1, 1]


def test_a_stream_may_take_longer_than_the_timeout_while_something_moves(relay: Relay) -> None:
    relay.delay_s = 0.02
    with Client(relay.address, timeout_s=0.8, chunk_bytes=1 << 16) as client:
        started = time.monotonic()
        result = copied(client, LARGE)
        assert time.monotonic() > started + 0.8
    np.testing.assert_array_equal(result, LARGE)


@pytest.mark.parametrize(
    ("array", "stall_s", "timeout_s"),
    [(SMALL, 60.0, 0.2), (LARGE, 60.0, 0.2), (LARGE, 0.2, None)],
    ids=["unary", "stream", "stall"],
)
def test_a_deadline_is_kept(
    relay: Relay, face: Face, array: NDArray[Any], *, stall_s: float, timeout_s: float | None
) -> None:
    words = r"within timeout_s, 0\.2 s" if timeout_s else r"nothing moved for 0\.2 s"
    with face(relay.address, timeout_s=stall_s) as client:
        copied(client, array)
        relay.hold()
        with pytest.raises(DeadlineExceededError, match=words) as caught:
            copied(client, array, timeout_s=timeout_s)
    assert isinstance(caught.value, TimeoutError)
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
    with Client(relay.address) as client:
        copied(client, array)
        relay.hold()
        with interrupted(after_s=0.2), pytest.raises(KeyboardInterrupt):
            copied(client, array)
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
    for call in CALLS.values():
        with pytest.raises(RuntimeError, match="closed"):
            call(client)
    with pytest.raises(RuntimeError, match="closed"):
        client.wait_ready()


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


@pytest.mark.parametrize(
    ("face", "name"),
    [
        *((Client, name) for name in ("Evaluate", "EvaluateStream", "EvaluateMany")),
        *((AWAITED, name) for name in ("Evaluate", "EvaluateStream")),
    ],
)
def test_a_call_ends_that_no_server_answers_any_more(
    monkeypatch: pytest.MonkeyPatch, face: Face, name: str
) -> None:
    # Takes 40 s by default.
    monkeypatch.setattr("gradwire._transport.channels._KEEPALIVE_MS", 1000)
    monkeypatch.setattr("gradwire._transport.channels._KEEPALIVE_TIMEOUT_MS", 500)
    with (
        serving_process() as server,
        # Without keepalive calls would end with another error, after the timeout.
        face(server.address, retry=ONCE, timeout_s=60) as client,
    ):
        CALLS[name](client)
        # Its sockets stay open, and nobody is behind them.
        server.process.send_signal(signal.SIGSTOP)
        with pytest.raises(UnavailableError):
            CALLS[name](client)
