"""AsyncClient does what Client does, for one event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gradwire import (
    AsyncClient,
    CallCancelledError,
    Client,
    DeadlineExceededError,
    InvalidRequestError,
    RetryPolicy,
    UnavailableError,
    ops,
)
from relay import Relay, relaying
from serving import ServerThread

BILINEAR = ops.InterpolateBackward(mode="bilinear", data_format="NCX")
COPY = ops.DmlResample(interpolation_mode="linear")
DIFF_DST = np.random.default_rng(0).normal(size=(1, 2, 512, 512)).astype(np.float32)
SHAPE = (1, 2, 256, 256)
# After so long without progress both sides end a stream by themselves.
WATCH_S = 60.0
SMALL = np.ones((4, 4), np.float32)
LARGE = np.ones((1024, 1024), np.float32)
HUGE = np.zeros((4096, 4096), np.float32)


@pytest.fixture(scope="module")
def expected(server: ServerThread) -> NDArray[Any]:
    with Client(server.address) as client:
        return client.evaluate(BILINEAR, DIFF_DST, output_shape=SHAPE)


@pytest.fixture(autouse=True)
def nothing_waits_for_the_watch_and_no_thread_is_left() -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() < started + WATCH_S / 2
    patience = time.monotonic() + 10
    while "gradwire-receiver" in (names := [each.name for each in threading.enumerate()]):
        assert time.monotonic() < patience, names
        time.sleep(0.01)


def with_client(address: str, work: Callable[[AsyncClient], Awaitable[Any]], **options: Any) -> Any:
    """Run work with a client in an event loop of its own."""

    async def run() -> Any:
        async with AsyncClient(address, **options) as client:
            return await work(client)

    return asyncio.run(run())


@pytest.mark.parametrize("threshold", [0, 1 << 40], ids=["stream", "unary"])
def test_it_gives_the_bits_of_the_blocking_client(
    server: ServerThread, expected: NDArray[Any], threshold: int
) -> None:
    async def work(client: AsyncClient) -> list[NDArray[Any]]:
        calls = [client.evaluate(BILINEAR, DIFF_DST, output_shape=SHAPE) for _ in range(6)]
        return await asyncio.gather(*calls)

    for result in with_client(server.address, work, stream_threshold_bytes=threshold):
        np.testing.assert_array_equal(result, expected)


def test_a_server_tells_of_itself(server: ServerThread) -> None:
    async def work(client: AsyncClient) -> Any:
        await client.wait_ready(30)
        return await client.operators(), await client.server_info()

    operators, info = with_client(server.address, work)
    with Client(server.address) as client:
        assert (operators, info) == (client.operators(), client.server_info())
    assert [each.name for each in operators] == list(info.operators) == list(ops.OPERATORS)


@pytest.mark.parametrize("cuts", [(1,), (200_000,), (90_000, 1, 500, 90_000)], ids=str)
def test_a_stream_that_is_cut_anywhere_gives_the_same_bits(
    server: ServerThread, expected: NDArray[Any], cuts: tuple[int, ...]
) -> None:
    prompt = RetryPolicy(initial_backoff_s=0.01, max_backoff_s=0.1, max_attempts=40)

    async def work(client: AsyncClient) -> NDArray[Any]:
        return await client.evaluate(BILINEAR, DIFF_DST, output_shape=SHAPE)

    with relaying(server.address, cuts=cuts) as relay:
        result = with_client(relay.address, work, chunk_bytes=50_001, retry=prompt)
        assert relay.connections > 1
    np.testing.assert_array_equal(result, expected)


def test_progress_is_reported_in_the_loops_thread(server: ServerThread) -> None:
    reports: list[tuple[int, int]] = []
    threads: set[threading.Thread] = set()

    def report(sent_bytes: int, received_bytes: int) -> None:
        reports.append((sent_bytes, received_bytes))
        threads.add(threading.current_thread())
        relay.let_go()

    async def work(client: AsyncClient) -> NDArray[Any]:
        return await client.evaluate(COPY, LARGE, output_shape=LARGE.shape, on_progress=report)

    with relaying(server.address) as relay:
        relay.hold(after=1 << 20)
        with_client(relay.address, work, chunk_bytes=5000)
    assert len(reports) > 1
    assert reports[-1] == (LARGE.nbytes, LARGE.nbytes)
    assert all(
        before[0] <= after[0] and before[1] <= after[1] for before, after in pairwise(reports)
    )
    assert threads == {threading.current_thread()}


def test_an_exception_from_on_progress_ends_the_call(server: ServerThread) -> None:
    class TornError(Exception):
        pass

    def tear(_sent: int, _received: int) -> None:
        raise TornError

    async def work(client: AsyncClient) -> None:
        with pytest.raises(TornError):
            await client.evaluate(COPY, LARGE, output_shape=LARGE.shape, on_progress=tear)

    with_client(server.address, work, chunk_bytes=5000)


@pytest.mark.parametrize("array", [SMALL, LARGE], ids=["unary", "stream"])
def test_cancelling_a_task_ends_its_call_at_once(relay: Relay, array: NDArray[Any]) -> None:
    async def work(client: AsyncClient) -> None:
        await client.evaluate(COPY, array, output_shape=array.shape)
        relay.hold()
        task = asyncio.create_task(client.evaluate(COPY, array, output_shape=array.shape))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        relay.let_go()
        result = await client.evaluate(COPY, array, output_shape=array.shape)
        np.testing.assert_array_equal(result, array)

    with_client(relay.address, work)


@pytest.mark.parametrize("array", [SMALL, LARGE], ids=["unary", "stream"])
def test_a_deadline_is_kept(relay: Relay, array: NDArray[Any]) -> None:
    async def work(client: AsyncClient) -> None:
        await client.evaluate(COPY, array, output_shape=array.shape)
        relay.hold()
        with pytest.raises(DeadlineExceededError):
            await client.evaluate(COPY, array, output_shape=array.shape, timeout_s=0.2)

    with_client(relay.address, work)


@pytest.mark.parametrize("array", [SMALL, LARGE], ids=["unary", "stream"])
def test_closing_ends_calls_of_other_tasks(relay: Relay, array: NDArray[Any]) -> None:
    async def work() -> None:
        client = AsyncClient(relay.address)
        await client.evaluate(COPY, array, output_shape=array.shape)
        relay.hold()
        task = asyncio.create_task(client.evaluate(COPY, array, output_shape=array.shape))
        await asyncio.sleep(0.1)
        await client.close()
        with pytest.raises(CallCancelledError):
            await task
        with pytest.raises(RuntimeError, match="closed"):
            await client.server_info()

    asyncio.run(work())


def test_another_event_loop_is_refused(server: ServerThread) -> None:
    client = AsyncClient(server.address)

    async def use() -> None:
        await client.evaluate(COPY, SMALL, output_shape=SMALL.shape)

    async def use_and_close() -> None:
        thread = threading.Thread(target=lambda: refused.append(_error_of(use)))
        await use()
        thread.start()
        await asyncio.to_thread(thread.join)
        await client.close()

    refused: list[BaseException | None] = []
    asyncio.run(use_and_close())
    assert isinstance(refused[0], RuntimeError)
    assert "another event loop" in str(refused[0])


def _error_of(work: Callable[[], Any]) -> BaseException | None:
    try:
        asyncio.run(work())
    except RuntimeError as error:
        return error
    return None


def test_every_refusal_reaches_a_client_that_is_writing(server: ServerThread) -> None:
    wrong = ops.DmlResampleGrad(interpolation_mode="linear", scales=(1.0,))

    async def work(client: AsyncClient) -> None:
        await client.evaluate(COPY, DIFF_DST, output_shape=DIFF_DST.shape)
        for _ in range(60):
            with pytest.raises(InvalidRequestError) as caught:
                await client.evaluate(wrong, DIFF_DST, output_shape=SHAPE)
            assert caught.value.field == "operator.dml_resample_grad.scales"

    with_client(server.address, work, chunk_bytes=20_000)


def test_every_drain_reaches_a_client_that_is_writing() -> None:
    server = ServerThread(max_memory_bytes=8 << 30, max_streams=80)
    server.start()

    async def work(client: AsyncClient, relay: Relay) -> Any:
        started = [asyncio.Event() for _ in range(60)]
        calls = [
            asyncio.create_task(
                client.evaluate(
                    COPY, HUGE, output_shape=HUGE.shape, on_progress=partial(_note, event)
                )
            )
            for event in started
        ]
        await asyncio.gather(*[event.wait() for event in started])
        # Every stream is under way, and from here on the network takes no more of it.
        relay.hold()
        await asyncio.to_thread(server.stop)
        return await asyncio.gather(*calls, return_exceptions=True)

    with relaying(server.address) as relay:
        errors = with_client(
            relay.address,
            lambda client: work(client, relay),
            chunk_bytes=10_000,
            # A server that is short of time ends streams without a word, and then is gone.
            retry=RetryPolicy(initial_backoff_s=0.01, max_backoff_s=0.01, max_attempts=3),
        )
    assert {type(error) for error in errors} == {UnavailableError}


def _note(event: asyncio.Event, _sent_bytes: int, _received_bytes: int) -> None:
    event.set()
