"""A server that vanishes without a word is noticed by the calls in flight."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import numpy as np
import pytest

from gradwire import AsyncClient, Client, Item, RetryPolicy, UnavailableError, ops
from serving import serving_process

COPY = ops.DmlResample(interpolation_mode="linear")
ONCE = RetryPolicy(max_attempts=1)
# Without keepalive calls would end with another error, as long after.
TIMEOUT_S = 60.0
SMALL, LARGE = (4, 4), (1024, 1024)


def evaluate(client: Client, shape: tuple[int, int]) -> None:
    client.evaluate(COPY, np.ones(shape, np.float32), output_shape=shape)


def evaluate_many(client: Client, shape: tuple[int, int]) -> None:
    array = np.ones(shape, np.float32)
    for _ in client.evaluate_many([Item(COPY, array, shape)] * 3):
        pass


async def evaluate_awaited(target: str, shape: tuple[int, int], vanish: Callable[[], None]) -> None:
    array = np.ones(shape, np.float32)
    async with AsyncClient(target, retry=ONCE, timeout_s=TIMEOUT_S) as client:
        await client.evaluate(COPY, array, output_shape=shape)
        vanish()
        with pytest.raises(UnavailableError):
            await client.evaluate(COPY, array, output_shape=shape)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what takes 40 s by default take 1.5 s."""
    monkeypatch.setattr("gradwire._transport.channels._KEEPALIVE_MS", 1000)
    monkeypatch.setattr("gradwire._transport.channels._KEEPALIVE_TIMEOUT_MS", 500)


@pytest.mark.parametrize(
    ("call", "shape"),
    [(evaluate, SMALL), (evaluate, LARGE), (evaluate_many, SMALL)],
    ids=["Evaluate", "EvaluateStream", "EvaluateMany"],
)
def test_a_call_ends_that_no_server_answers_any_more(
    call: Callable[[Client, tuple[int, int]], None], shape: tuple[int, int]
) -> None:
    with (
        serving_process("--backend", "numpy_cpu") as server,
        Client(server.address, retry=ONCE, timeout_s=TIMEOUT_S) as client,
    ):
        call(client, shape)
        # Its sockets stay open, and nobody is behind them.
        server.process.send_signal(signal.SIGSTOP)
        with pytest.raises(UnavailableError):
            call(client, shape)


@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=["Evaluate", "EvaluateStream"])
def test_an_awaited_call_ends_likewise(shape: tuple[int, int]) -> None:
    with serving_process("--backend", "numpy_cpu") as server:
        vanish = server.process.send_signal
        asyncio.run(evaluate_awaited(server.address, shape, lambda: vanish(signal.SIGSTOP)))
