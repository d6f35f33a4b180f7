"""AsyncClient has a bounded number of streams at once; further ones wait without a thread."""

import asyncio
import math
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from gradwire import AsyncClient, Client
from gradwire._transport.aio import AsyncClientChannels
from gradwire.errors import CallCancelledError, DeadlineExceededError
from support.clients import COPY, copied
from support.raw_calls import wait_until

ARRAY = np.ones((300, 300), np.float32)
# What the documentation of AsyncClient says.
BOUND = 64


def call(client, **options):
    return asyncio.create_task(copied(client, ARRAY, **options))


def receivers():
    return sum(each.name == "gradwire-receiver" for each in threading.enumerate())


async def test_streams_beyond_the_bound_wait_without_a_thread(relay):
    async with AsyncClient(relay.address) as client:
        await call(client)
        # From here on the network stands still.
        relay.hold()
        held = [call(client) for _ in range(BOUND)]
        await asyncio.to_thread(wait_until, lambda: receivers() >= BOUND)
        threads = threading.active_count()
        waiting = [call(client) for _ in range(3 * BOUND)]
        with pytest.raises(DeadlineExceededError, match=r"within timeout_s, 0\.2 s"):
            await call(client, timeout_s=0.2)
        assert receivers() == BOUND
        # Fewer where one of before has ended.
        assert threading.active_count() <= threads
        # No thread helps to cancel them.
        for task in waiting[:100]:
            task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert all(task.cancelled() for task in waiting[:100])
        relay.let_go()
        for task in (*held, *waiting[100:]):
            np.testing.assert_array_equal(await task, ARRAY)
            assert receivers() <= BOUND


async def test_waiting_does_not_count_as_a_stall():
    channels = AsyncClientChannels(vars(Client("127.0.0.1:1", timeout_s=0.2))["_options"])
    asked = {"op": COPY, "array": ARRAY, "output_shape": None, "out": None}
    first, second = (channels.blocking.evaluation(**asked, timeout_s=60) for _ in range(2))
    vars(first.shares)["count"] = BOUND

    async def take():
        async with channels.admitted(second):
            return second.still_s

    async with channels.admitted(first):
        waiting = asyncio.create_task(take())
        await asyncio.sleep(0.3)
    assert await waiting > 0
    await channels.close()


async def test_cancelling_at_any_moment_of_the_start_and_closing_end_calls(relay):
    client = AsyncClient(relay.address)
    for turns in range(40):
        tasks = [call(client) for _ in range(4)]
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    np.testing.assert_array_equal(await call(client), ARRAY)
    relay.hold()
    tasks = [call(client) for _ in range(BOUND + 9)]
    await asyncio.to_thread(wait_until, lambda: receivers() >= BOUND)
    await client.close()
    for error in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(error, CallCancelledError)


async def test_calls_are_admitted_in_the_order_in_which_they_came():
    channels, admitted = AsyncClientChannels(vars(Client("127.0.0.1:1"))["_options"]), []
    room = asyncio.Event()

    async def take(number, count):
        shares = SimpleNamespace(count=count, note_begin=bool)
        wanted = SimpleNamespace(shares=shares, left_s=math.inf)
        async with channels.admitted(wanted):
            admitted.append(number)
            await room.wait()

    # The third asks for more than is left, and the fourth does not overtake it.
    counts = [BOUND - 1, 1, 2, 1, 1000]
    tasks = [asyncio.create_task(take(*each)) for each in enumerate(counts)]
    await asyncio.sleep(0)
    assert admitted == [0, 1]
    tasks[1].cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    assert admitted == [0, 1]
    room.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert admitted == [0, 1, 2, 3, 4]
    async with asyncio.timeout(1):
        await take(5, BOUND)
    await channels.close()
