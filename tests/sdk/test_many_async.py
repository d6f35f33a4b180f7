"""evaluate_many of AsyncClient: items may be awaited, and waiting may be given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gradwire import (
    AsyncClient,
    Item,
    ops,
)
from serving import ServerThread

BILINEAR = ops.InterpolateBackward(mode="bilinear", data_format="NCX")
NEAREST = ops.DmlResampleGrad(interpolation_mode="nearest")
COPY = ops.DmlResample(interpolation_mode="linear")

pytestmark = pytest.mark.usefixtures("nothing_is_held_on_the_server")


def test_items_may_come_asynchronously(server: ServerThread) -> None:
    async def run() -> list[float]:
        first_result = asyncio.Event()

        async def items() -> AsyncIterator[tuple[ops.Operator, NDArray[Any], tuple[int, ...]]]:
            yield COPY, np.full((1,), 0.0, np.float32), (1,)
            # The result is handed over although more may come.
            await first_result.wait()
            for number in range(1, 50):
                await asyncio.sleep(0)
                yield COPY, np.full((1,), number, np.float32), (1,)

        seen: list[float] = []
        async with AsyncClient(server.address) as client:
            async for result in client.evaluate_many(items(), max_in_flight=7):
                first_result.set()
                seen.append(float(result[0]))
        return seen

    assert asyncio.run(run()) == list(range(50))


def test_waiting_for_a_result_may_be_given_up_and_taken_up_again(server: ServerThread) -> None:
    async def run() -> list[float]:
        release = asyncio.Event()

        async def items() -> AsyncIterator[Item]:
            await release.wait()
            for number in range(5):
                yield Item(COPY, np.full((1,), number, np.float32), (1,))

        async with AsyncClient(server.address) as client:
            results = client.evaluate_many(items())
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(results), 0.05)
            release.set()
            return [float(result[0]) async for result in results]

    assert asyncio.run(run()) == list(range(5))
