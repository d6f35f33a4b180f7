"""However it ends, evaluate_many tells the outcome of every item it took, and then is over."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import Any

import numpy as np
import pytest

from gradwire import Client, Item
from gradwire.errors import CallCancelledError
from support.clients import AWAITED, COPY, ITEM, Collect, Face, both_clients, either_way
from support.raw_calls import PATIENCE_S, wait_until
from support.servers import ServerThread, wait_idle

pytestmark = pytest.mark.usefixtures("nothing_is_held_on_the_server", "no_thread_is_left")


def told(results: Iterator[Any]) -> list[BaseException | None]:
    """Return what each next() raises until there is nothing more; None for a result."""
    outcomes: list[BaseException | None] = []
    for _ in range(1000):
        try:
            next(results)
        except StopIteration:
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
    server: ServerThread, face: Face
) -> None:
    with face(server.address) as client:
        results = client.evaluate_many(repeat(ITEM, 500))
        for _ in range(5):
            next(results)
    check_cancelled(told(results), begin=5)
    assert list(results) == []
    with pytest.raises(RuntimeError, match="the client is closed"):
        client.evaluate_many([])


def source(*, taken: int) -> tuple[threading.Event, AsyncIterator[Item]]:
    """Return items after which the source stays silent, and an event for that moment."""
    silent = threading.Event()

    async def items() -> AsyncIterator[Item]:
        for _ in range(taken):
            yield ITEM
            await asyncio.sleep(0.01)
        silent.set()
        await asyncio.Event().wait()

    return silent, items()


@pytest.mark.parametrize("taken", [0, 3, 30])
def test_closing_a_client_ends_who_waits_for_a_slow_source(
    server: ServerThread, taken: int
) -> None:
    silent, items = source(taken=taken)
    with AWAITED(server.address) as client, ThreadPoolExecutor(1) as pool:
        evaluate_many: Any = client.evaluate_many
        waiting = pool.submit(told, evaluate_many(items))
        assert silent.wait(PATIENCE_S)
        client.close()
        check_cancelled(waiting.result(PATIENCE_S), begin=0)


def failing(error: type[BaseException]) -> Iterator[Item]:
    """Yield 100 items, then raise."""
    yield from repeat(ITEM, 100)
    raise error


async def failing_in_loop(error: type[BaseException]) -> AsyncIterator[Item]:
    for item in failing(error):
        yield item


@either_way
@pytest.mark.parametrize(
    ("face", "source", "error"),
    [
        *((Client, failing, e) for e in (KeyboardInterrupt, GeneratorExit, asyncio.CancelledError)),
        *(
            (AWAITED, source, error)
            for source in (failing, failing_in_loop)
            for error in (GeneratorExit, asyncio.CancelledError)
        ),
    ],
)
def test_what_is_no_exception_is_raised_once_and_loses_no_result(
    server: ServerThread,
    face: Face,
    source: Callable[[type[BaseException]], Any],
    error: type[BaseException],
    *,
    ordered: bool,
) -> None:
    with face(server.address) as client:
        evaluate_many: Any = client.evaluate_many
        outcomes = told(evaluate_many(source(error), ordered=ordered))
    in_order = ordered and face is AWAITED
    errors = outcomes[100:] if in_order else [each for each in outcomes if each is not None]
    assert [type(each) for each in errors] == [error]
    # A generator that ends so ends an asynchronous client's results at once.
    assert outcomes.count(None) == 100 or (face is AWAITED and error is GeneratorExit)


class Interrupting:
    """An array that Ctrl-C finds being read."""

    def __array__(self, *_: object) -> None:
        raise KeyboardInterrupt


def test_an_interrupt_while_an_item_is_taken_is_raised_once_and_loses_no_result(
    server: ServerThread,
) -> None:
    items = [ITEM, ITEM._replace(array=Interrupting()), ITEM]
    with Client(server.address) as client:
        kinds = [type(each) for each in told(client.evaluate_many(items))]
    assert kinds == [KeyboardInterrupt, type(None), CallCancelledError, type(None)]


def test_results_asked_for_by_two_threads_are_refused_to_the_second(server: ServerThread) -> None:
    waiting, going_on = threading.Event(), threading.Event()

    def late() -> Iterator[Item]:
        waiting.set()
        assert going_on.wait(PATIENCE_S)
        yield from repeat(ITEM, 2)

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


def test_results_that_are_closed_or_dropped_end_their_stream(
    server: ServerThread, face: Face
) -> None:
    with face(server.address) as client:
        with client.evaluate_many(repeat(ITEM)) as results:
            next(results)
            assert server.server.service.admission.streams == 1
        wait_idle(server)
        assert list(results) == []
        for _ in client.evaluate_many(repeat(ITEM)):
            break
        wait_idle(server)
        client.evaluate_many(repeat(ITEM))


def test_results_dropped_behind_the_last_one_leave_nothing(
    server: ServerThread, face: Face
) -> None:
    with face(server.address) as client:
        results = client.evaluate_many([ITEM])
        next(results)
        del results
        wait_idle(server)
        wait_until(lambda: "gradwire-receiver" not in {each.name for each in threading.enumerate()})


@both_clients
def test_a_stream_whose_results_are_all_handed_over_ends_with_ok(
    server: ServerThread, collect: Collect, caplog: pytest.LogCaptureFixture
) -> None:
    def calls() -> list[logging.LogRecord]:
        return [each for each in caplog.records if each.getMessage() == "call"]

    with caplog.at_level(logging.DEBUG, logger="gradwire_server"):
        collect(server.address, [ITEM] * 10)
        wait_until(calls)
    facts = [vars(each)["facts"] for each in calls()]
    assert [(each["method"], each["status"], each["items"]) for each in facts] == [
        ("EvaluateMany", "OK", 10)
    ]
