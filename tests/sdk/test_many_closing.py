"""Results of evaluate_many that nobody wants any more end their stream and leave nothing."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from gradwire import (
    AsyncClient,
    CallCancelledError,
    Client,
    Item,
    ops,
)
from many_clients import Collect, both_clients
from raw_calls import wait_idle, wait_until
from serving import ServerThread

COPY = ops.DmlResample(interpolation_mode="linear")

pytestmark = pytest.mark.usefixtures("nothing_is_held_on_the_server")


def endless() -> Iterator[Item]:
    while True:
        yield Item(COPY, np.ones((2, 2), np.float32), (2, 2))


def test_results_that_are_closed_or_dropped_end_their_stream(server: ServerThread) -> None:
    admission = server.server.service.admission
    with Client(server.address) as client:
        with client.evaluate_many(endless()) as results:
            next(results)
            assert admission.streams == 1
        wait_idle(server)
        assert list(results) == []
        for _ in client.evaluate_many(endless()):
            break
        wait_idle(server)
        client.evaluate_many(endless())


def test_asynchronous_results_that_are_closed_or_dropped_end_their_stream(
    server: ServerThread,
) -> None:
    admission = server.server.service.admission

    async def run() -> None:
        async with AsyncClient(server.address) as client:
            async with client.evaluate_many(endless()) as results:
                await anext(results)
                assert admission.streams == 1
            await asyncio.to_thread(wait_idle, server)
            assert [each async for each in results] == []
            async for _ in client.evaluate_many(endless()):
                break
            await asyncio.to_thread(wait_idle, server)
            client.evaluate_many(endless())

    asyncio.run(run())


def test_a_client_that_is_closed_takes_no_items(server: ServerThread) -> None:
    with Client(server.address) as client:
        results = client.evaluate_many(endless())
        next(results)
    with pytest.raises(CallCancelledError):
        for _ in results:
            pass
    with pytest.raises(RuntimeError, match="the client is closed"):
        client.evaluate_many([])


@both_clients
def test_a_stream_whose_results_are_all_handed_over_ends_with_ok(
    server: ServerThread, collect: Collect, caplog: pytest.LogCaptureFixture
) -> None:
    items = [Item(COPY, np.ones((2, 2), np.float32), (2, 2))] * 10

    def calls() -> list[logging.LogRecord]:
        return [each for each in caplog.records if each.getMessage() == "call"]

    with caplog.at_level(logging.DEBUG, logger="gradwire_server"):
        collect(server.address, items)
        wait_until(calls)
    facts = [vars(each)["facts"] for each in calls()]
    assert [(each["method"], each["status"], each["items"]) for each in facts] == [
        ("EvaluateMany", "OK", 10)
    ]


def test_asynchronous_results_dropped_behind_the_last_one_leave_nothing(
    server: ServerThread,
) -> None:
    def no_receiver() -> bool:
        return "gradwire-receiver" not in {each.name for each in threading.enumerate()}

    async def run() -> None:
        async with AsyncClient(server.address) as client:
            results = client.evaluate_many([Item(COPY, np.ones((2, 2), np.float32), (2, 2))])
            await anext(results)
            del results
            await asyncio.to_thread(wait_idle, server)
            await asyncio.to_thread(wait_until, no_receiver)

    asyncio.run(run())
