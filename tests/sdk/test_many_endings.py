"""However it ends, evaluate_many tells the outcome of every item it took, and then is over."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from gradwire import AsyncClient, CallCancelledError, Client, Item, ops
from many_clients import either_way
from serving import ServerThread

COPY = ops.DmlResample(interpolation_mode="linear")
ITEM = Item(COPY, np.ones((2, 2), np.float32), (2, 2))
PATIENCE_S = 30.0

pytestmark = pytest.mark.usefixtures("nothing_is_held_on_the_server")


def told(results: Iterator[Any], *, at_most: int = 1000) -> list[BaseException | None]:
    """Return what each next() raises until there is nothing more; None for a result."""
    outcomes: list[BaseException | None] = []
    for _ in range(at_most):
        try:
            next(results)
        except StopIteration:
            return outcomes
        except BaseException as error:  # noqa: BLE001 - an outcome too
            outcomes.append(error)
        else:
            outcomes.append(None)
    raise AssertionError("it never ends")


async def told_in_loop(
    results: AsyncIterator[Any], *, at_most: int = 1000
) -> list[BaseException | None]:
    """Do the same with anext()."""
    outcomes: list[BaseException | None] = []
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(at_most):
            try:
                await anext(results)
            except StopAsyncIteration:
                return outcomes
            except BaseException as error:  # noqa: BLE001 - an outcome too
                outcomes.append(error)
            else:
                outcomes.append(None)
    raise AssertionError("it never ends")


def check_cancelled(outcomes: list[BaseException | None], *, begin: int) -> None:
    """Assert that errors of a closed client, with their items' notes, end the outcomes."""
    errors = [(index, error) for index, error in enumerate(outcomes, begin) if error is not None]
    assert errors
    assert errors[-1][0] == begin + len(outcomes) - 1
    for index, error in errors:
        assert isinstance(error, CallCancelledError)
        assert error.__notes__ == [f"item {index} of evaluate_many"]


def test_a_closed_client_ends_every_item_it_took_and_then_the_results(
    server: ServerThread,
) -> None:
    with Client(server.address) as client:
        results = client.evaluate_many(ITEM for _ in range(500))
        for _ in range(5):
            next(results)
    check_cancelled(told(results), begin=5)
    assert list(results) == []


def test_a_closed_asynchronous_client_ends_every_item_it_took_and_then_the_results(
    server: ServerThread,
) -> None:
    async def run() -> None:
        async with AsyncClient(server.address) as client:
            results = client.evaluate_many(ITEM for _ in range(500))
            for _ in range(5):
                await anext(results)
        check_cancelled(await told_in_loop(results), begin=5)
        assert [each async for each in results] == []

    asyncio.run(run())


async def endlessly_late(taken: int) -> AsyncIterator[Item]:
    """Yield some items, and leave whoever waits for the next one waiting."""
    for _ in range(taken):
        yield ITEM
    await asyncio.Event().wait()


async def one_by_one() -> AsyncIterator[Item]:
    """Yield items for ever, slowly."""
    while True:
        yield ITEM
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "items",
    [one_by_one, lambda: endlessly_late(3), lambda: endlessly_late(0)],
    ids=["slow", "stuck", "stuck at once"],
)
def test_closing_a_client_ends_who_waits_for_a_slow_source(
    server: ServerThread, items: Callable[[], AsyncIterator[Item]]
) -> None:
    async def run() -> None:
        async with AsyncClient(server.address) as client:
            waiting = asyncio.create_task(told_in_loop(client.evaluate_many(items())))
            await asyncio.sleep(0.1)
        check_cancelled(await waiting, begin=0)

    asyncio.run(run())


def failing(error: type[BaseException]) -> Iterator[Item]:
    """Yield 100 items, then raise."""
    for _ in range(100):
        yield ITEM
    raise error


async def failing_in_loop(error: type[BaseException]) -> AsyncIterator[Item]:
    """Do the same asynchronously."""
    for item in failing(error):
        yield item


@either_way
@pytest.mark.parametrize("source", [failing, failing_in_loop])
def test_a_source_that_is_cancelled_raises_so_once_and_loses_no_result(
    server: ServerThread, source: Callable[[type[BaseException]], Any], *, ordered: bool
) -> None:
    async def run() -> list[BaseException | None]:
        async with AsyncClient(server.address) as client:
            evaluate_many: Any = client.evaluate_many
            items = source(asyncio.CancelledError)
            return await told_in_loop(evaluate_many(items, ordered=ordered))

    outcomes = asyncio.run(run())
    assert outcomes.count(None) == 100
    errors = outcomes[100:] if ordered else [each for each in outcomes if each is not None]
    assert [type(each) for each in errors] == [asyncio.CancelledError]


@pytest.mark.parametrize("source", [failing, failing_in_loop])
def test_what_is_no_exception_is_raised_once_by_an_asynchronous_client(
    server: ServerThread, source: Callable[[type[BaseException]], Any]
) -> None:
    async def run() -> list[BaseException | None]:
        async with AsyncClient(server.address) as client:
            return await told_in_loop(client.evaluate_many(source(GeneratorExit)))

    errors = [error for error in asyncio.run(run()) if error is not None]
    assert [type(error) for error in errors] == [GeneratorExit]


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_what_is_no_exception_is_raised_once_and_loses_no_result(
    server: ServerThread, error: type[BaseException]
) -> None:
    with Client(server.address) as client:
        outcomes = told(client.evaluate_many(failing(error)))
    assert outcomes.count(None) == 100
    assert [type(each) for each in outcomes if each is not None] == [error]


def test_what_is_no_iterable_is_refused_at_once(server: ServerThread) -> None:
    number: Any = 5
    with Client(server.address) as client, pytest.raises(TypeError, match="not iterable"):
        client.evaluate_many(number)

    async def run() -> None:
        async with AsyncClient(server.address) as client:
            with pytest.raises(TypeError, match="not iterable"):
                client.evaluate_many(number)

    asyncio.run(run())


class Interrupting:
    """An array that Ctrl-C finds being read."""

    def __array__(self, *_: object) -> None:
        raise KeyboardInterrupt


def test_an_interrupt_while_an_item_is_taken_is_raised_once_and_loses_no_result(
    server: ServerThread,
) -> None:
    items = [ITEM, ITEM._replace(array=Interrupting()), ITEM]
    with Client(server.address) as client:
        outcomes = told(client.evaluate_many(items))
    assert [type(each) for each in outcomes] == [
        KeyboardInterrupt,
        type(None),
        CallCancelledError,
        type(None),
    ]


def test_results_asked_for_by_two_threads_are_refused_to_the_second(server: ServerThread) -> None:
    waiting, going_on = threading.Event(), threading.Event()

    def late() -> Iterator[Item]:
        waiting.set()
        assert going_on.wait(PATIENCE_S)
        yield ITEM
        yield ITEM

    with Client(server.address) as client, ThreadPoolExecutor(1) as pool:
        results = client.evaluate_many(late())
        first = pool.submit(next, results)
        assert waiting.wait(PATIENCE_S)
        with pytest.raises(RuntimeError, match="one thread at a time"):
            next(results)
        going_on.set()
        np.testing.assert_array_equal(first.result(PATIENCE_S), next(results))
        assert list(results) == []


def test_items_made_of_results_that_are_not_there_are_refused(server: ServerThread) -> None:
    def recursive() -> Iterator[Item]:
        yield ITEM
        yield Item(COPY, next(results), (2, 2))

    with Client(server.address) as client:
        results = client.evaluate_many(recursive())
        outcomes = told(results)
    assert [type(each) for each in outcomes] == [type(None), RuntimeError]
