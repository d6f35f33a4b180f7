"""evaluate_many gives what evaluate gives for each item, whatever breaks and however it ends."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import repeat
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gradwire import AsyncClient, Client, Item, RetryPolicy, ops
from gradwire.errors import (
    CallCancelledError,
    DeadlineExceededError,
    GradwireError,
    InvalidRequestError,
    OverloadedError,
    UnavailableError,
)
from gradwire_server.errors import RETRY_AFTER_S
from sdk.strided_arrays import arrays
from support.clients import (
    AWAITED,
    BILINEAR,
    BRISK,
    COPY,
    ITEM,
    ONCE,
    PROMPT,
    Collect,
    Face,
    Outcome,
    either_way,
    half,
    interrupted,
    outcomes_of,
)
from support.oracles import oracles
from support.raw_calls import PATIENCE_S, ManyCall, named, summed, wait_until
from support.relay import Relay, older, relaying, skewed
from support.servers import ServerThread, served_many, serving, serving_process, wait_idle

NEAREST = ops.DmlResampleGrad(interpolation_mode="nearest")
# One connection, so that a relay sees every one there is.
PATIENT: dict[str, Any] = {"connections": 1, "retry": PROMPT}

pytestmark = pytest.mark.usefixtures("nothing_is_held_on_the_server", "no_thread_is_left")


def numbered(count: int, size: int = 16) -> Iterator[Item]:
    """Make items whose results tell their places."""
    for number in range(count):
        yield Item(COPY, np.full((size,), number, np.float32), (size,))


def check(outcomes: list[tuple[int, Outcome]], count: int) -> None:
    """Assert that every result came once, in order, with the bits that were sent."""
    assert [index for index, _ in outcomes] == list(range(count))
    for index, result in outcomes:
        assert isinstance(result, np.ndarray), result
        assert (result == index).all()


def given_arrays() -> list[NDArray[Any]]:
    """Make arrays of every type and in several layouts, not all of one shape."""
    values = np.random.default_rng(0).normal(size=(2, 3, 8, 10))
    floats = values.astype(np.float32)
    types = (np.float32, np.float16, ml_dtypes.bfloat16, np.float64, ">f4")
    return [
        *(values.astype(dtype) for dtype in types),
        floats[:, :, ::-1],
        floats.transpose(0, 1, 3, 2),
        floats.transpose(1, 0, 2, 3)[:, ::2],
        np.broadcast_to(floats[:1, :, :1], floats.shape),
        floats[:1],
    ]


def check_places(outcomes: list[tuple[int, Outcome]], count: int, *, ordered: bool) -> None:
    places = [index for index, _ in outcomes]
    assert (places if ordered else sorted(places)) == list(range(count))


def check_results(client: Client, items: list[Any], outcomes: list[tuple[int, Outcome]]) -> None:
    """Assert that every result is what evaluate gives for its item."""
    for index, result in outcomes:
        op, array, shape = items[index]
        wanted = client.evaluate(op, array, output_shape=shape)
        assert isinstance(result, np.ndarray)
        oracles.same_bits(result, wanted)
        assert result.strides == wanted.strides
        assert result.flags.writeable


@either_way
@pytest.mark.parametrize("most", [1, 3, 64])
def test_results_are_those_of_evaluate(
    plain: Client, server: ServerThread, collect: Collect, *, ordered: bool, most: int
) -> None:
    items = [(op, array, half(array)) for array in given_arrays() * 4 for op in (BILINEAR, NEAREST)]
    outcomes = collect(server.address, iter(items), ordered=ordered, max_in_flight=most)
    check_places(outcomes, len(items), ordered=ordered)
    check_results(plain, items, outcomes)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_sizes_that_keep_an_aspect_ratio_are_inferred(plain: Client, policy: Any) -> None:
    resize = ops.OnnxResize(
        mode="linear", axes=(2, 3), sizes=(150, 120), keep_aspect_ratio_policy=policy
    )
    array = np.ones((1, 3, 100, 100), np.float32)
    (result,) = plain.evaluate_many([(resize, array)])
    side = 120 if policy == "not_larger" else 150
    assert result.shape == (1, 3, side, side)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(sources=st.lists(arrays(), min_size=1, max_size=6))
def test_arrays_of_any_layout_come_back_as_they_went(
    plain: Client, sources: list[NDArray[Any]]
) -> None:
    results = plain.evaluate_many((COPY, array, array.shape) for array in sources)
    for array, result in zip(sources, results, strict=True):
        oracles.same_bits(result, array.astype(array.dtype.newbyteorder("=")))


def bad_items() -> dict[int, tuple[Any, type[Exception], str]]:
    """Return items with the errors that evaluate() raises for them, by their places."""
    ones = np.ones((4, 4), np.float32)
    scaled = ops.DmlResampleGrad(interpolation_mode="linear", scales=(1.0,))
    return {
        0: ((COPY, np.ones((4, 4), np.int32), (4, 4)), InvalidRequestError, "array.dtype"),
        2: ((COPY, ones), InvalidRequestError, "output_shape"),
        3: ((scaled, ones, (4, 4)), InvalidRequestError, "scales"),
        7: ((COPY, np.ma.masked_array(ones), (4, 4)), TypeError, "a masked array"),
        8: (("nearest", ones, (4, 4)), TypeError, "op is a str"),
        9: (ones, TypeError, "an item is a ndarray"),
        10: ((COPY,), TypeError, "an item is a tuple of 1"),
        13: ((COPY, ones, (0, 4)), InvalidRequestError, "output_shape[0]"),
    }


@either_way
def test_an_error_is_raised_at_its_item_and_the_others_go_on(
    server: ServerThread, collect: Collect, *, ordered: bool
) -> None:
    good = np.arange(16, dtype=np.float32).reshape(4, 4)
    bad = bad_items()
    items = [bad[index][0] if index in bad else (COPY, good, (4, 4)) for index in range(15)]
    outcomes = dict(collect(server.address, items, ordered=ordered))
    assert sorted(outcomes) == list(range(15))
    for index, outcome in outcomes.items():
        if index not in bad:
            np.testing.assert_array_equal(np.asarray(outcome), good)
            continue
        _, kind, words = bad[index]
        assert isinstance(outcome, kind)
        assert str(outcome).startswith(words)
        assert getattr(outcome, "__notes__", []) == [f"item {index} of evaluate_many"]
        if isinstance(outcome, GradwireError) and index in {2, 3}:
            assert (outcome.request_id or "").endswith(f"-{index}")


def test_a_fault_of_the_iterable_comes_behind_the_items_before_it(
    server: ServerThread, collect: Collect
) -> None:
    def items() -> Iterator[Item]:
        yield from numbered(2)
        raise ZeroDivisionError("no more")

    outcomes = collect(server.address, items())
    assert [type(outcome) for _, outcome in outcomes] == [np.ndarray, np.ndarray, ZeroDivisionError]


@either_way
@pytest.mark.parametrize("most", [1, 5])
def test_items_are_taken_only_as_there_is_room(
    server: ServerThread, collect: Collect, *, ordered: bool, most: int
) -> None:
    open_now: set[int] = set()
    seen: list[int] = []

    def items() -> Iterator[Item]:
        for number, item in enumerate(numbered(100)):
            open_now.add(number)
            seen.append(len(open_now))
            yield item

    options = {"ordered": ordered, "max_in_flight": most}
    collect(server.address, items(), on_outcome=open_now.remove, **options)
    assert max(seen) == most
    assert not open_now


@either_way
def test_results_do_not_wait_until_many_slow_items_are_there(
    server: ServerThread, collect: Collect, *, ordered: bool
) -> None:
    done: list[int] = []
    done_before: list[int] = []

    def items() -> Iterator[Item]:
        for item in numbered(7):
            time.sleep(0.06)
            done_before.append(len(done))
            yield item

    outcomes = collect(server.address, items(), ordered=ordered, on_outcome=done.append)
    assert len(outcomes) == 7
    assert done_before[-1] > 0


def test_an_array_may_be_used_anew_for_the_next_item(
    server: ServerThread, collect: Collect
) -> None:
    array = np.empty((4, 6), np.float32)

    def items() -> Iterator[Item]:
        for number in range(100):
            array[...] = number
            layout = array if number % 2 else array.T[::-1]
            yield Item(COPY, layout, layout.shape)

    check(collect(server.address, items()), 100)


def test_results_are_stored_where_an_item_says(server: ServerThread, collect: Collect) -> None:
    given = [np.full((2, 3), number, np.float32) for number in range(20)]
    outs = [np.empty((3, 2), np.float32).T if n % 2 else np.empty((2, 3), ">f4") for n in range(20)]
    items = [Item(COPY, array, out=out) for array, out in zip(given, outs, strict=True)]
    for index, result in collect(server.address, items):
        assert result is outs[index]
        np.testing.assert_array_equal(outs[index], given[index])


def test_no_items_are_no_results_and_no_call() -> None:
    with Client("127.0.0.1:1") as client:
        assert list(client.evaluate_many([])) == []


def test_items_may_come_asynchronously(server: ServerThread) -> None:
    async def run() -> list[float]:
        first_result = asyncio.Event()

        async def items() -> AsyncIterator[Item]:
            for item in numbered(50):
                yield item
                # The first result is handed over although more may come.
                await first_result.wait()

        seen: list[float] = []
        async with AsyncClient(server.address) as client:
            results = client.evaluate_many(items(), max_in_flight=7)
            seen.append(float((await anext(results))[0]))
            # Waiting for a result may be given up and taken up again.
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(results), 0.05)
            first_result.set()
            return seen + [float(result[0]) async for result in results]

    assert asyncio.run(run()) == list(range(50))


# A stream for the small ones and another one for a large one would be one too many.
either_limit = pytest.mark.parametrize("streams", [1, 64])


@either_way
@either_limit
def test_large_tensors_are_evaluated_among_small_ones(
    streams: int, collect: Collect, *, ordered: bool
) -> None:
    large = np.random.default_rng(1).normal(size=(1, 1, 512, 512)).astype(np.float32)
    sizes = [4, 512, 8, 512, 512, 4, 4]
    items = [(BILINEAR, large[..., :n, :n], (1, 1, n // 2, n // 2)) for n in sizes]
    with serving(max_streams=streams) as server:
        outcomes = collect(server.address, items, ordered=ordered, options={"retry": ONCE})
        check_places(outcomes, len(items), ordered=ordered)
        with Client(server.address) as client:
            check_results(client, items, outcomes)
        wait_idle(server)


@either_limit
@pytest.mark.parametrize("spread", [False, True], ids=["plain", "broadcast"])
def test_a_result_that_turns_out_to_be_large_is_fetched_by_a_stream(
    streams: int, collect: Collect, *, spread: bool
) -> None:
    enlarge = ops.Interpolate(mode="nearest", scales=(160.0, 160.0), data_format="NCX")
    array = np.random.default_rng(2).normal(size=(1, 1, 8, 8)).astype(np.float32)
    if spread:
        array = np.broadcast_to(array[:, :, :1], array.shape)
    items = [(enlarge, array, None), (BILINEAR, array, (1, 1, 4, 4)), (enlarge, array, None)]
    with serving(max_streams=streams) as server:
        outcomes = collect(server.address, items, options={"retry": ONCE})
        check_places(outcomes, len(items), ordered=True)
        with Client(server.address) as client:
            check_results(client, items, outcomes)
        wait_idle(server)


@pytest.mark.slow
@pytest.mark.parametrize(
    "cuts", [(1,), (300,), (2_000,), (9_000, 1, 1, 20_000, 300, 5_000)], ids=str
)
def test_a_stream_that_is_cut_anywhere_goes_on_where_it_stopped(
    server: ServerThread, collect: Collect, cuts: tuple[int, ...]
) -> None:
    check_cut(server, collect, cuts, PATIENT)


def test_tries_are_counted_anew_after_every_answer(server: ServerThread, collect: Collect) -> None:
    retry = RetryPolicy(initial_backoff_s=0.15, max_backoff_s=0.15, max_attempts=3)
    check_cut(server, collect, (4_000,) * 8, {"retry": retry})


def check_cut(
    server: ServerThread, collect: Collect, cuts: tuple[int, ...], options: dict[str, Any]
) -> None:
    with relaying(server.address, cuts=cuts) as relay:
        check(collect(relay.address, numbered(600), options=options), 600)
        assert relay.connections == len(cuts) + 1


def test_a_server_killed_and_started_again_is_sent_what_it_has_not_answered() -> None:
    with serving_process() as server:

        def restart() -> None:
            server.kill()
            server.start()

        with relaying(server.address, cuts=(5_000,), on_cut=restart) as relay:
            check(outcomes_of(Client, relay.address, numbered(300)), 300)
            assert relay.connections > 1


@pytest.mark.slow
def test_a_server_that_drains_hands_over_to_another(server: ServerThread, collect: Collect) -> None:
    old = ServerThread()
    old.start()
    stopping: list[threading.Thread] = []
    with relaying(old.address) as relay:

        def hand_over() -> None:
            old.stop()
            relay.lead_to(server.address)

        def note(index: int) -> None:
            if index == 30:
                stopping.append(threading.Thread(target=hand_over))
                stopping[0].start()

        check(collect(relay.address, numbered(3000), options=PATIENT, on_outcome=note), 3000)
        stopping[0].join()


def test_silence_ends_what_is_in_flight_and_the_next_items_go_on(
    relay: Relay, collect: Collect
) -> None:
    def note(index: int) -> None:
        if index == 4:
            relay.hold()
        if index == 10:
            relay.let_go()

    outcomes = collect(relay.address, numbered(30), on_outcome=note, max_in_flight=3, timeout_s=1.0)
    check_places(outcomes, 30, ordered=True)
    failed: list[int] = []
    for index, outcome in outcomes:
        if isinstance(outcome, np.ndarray):
            assert (outcome == index).all()
            continue
        failed.append(index)
        assert isinstance(outcome, DeadlineExceededError)
        assert str(outcome).startswith("no answer for 1.0 s, while ")
    assert failed
    assert set(failed) <= set(range(5, 14))


@pytest.mark.parametrize("slow", ["items", "results"])
def test_a_stream_that_the_server_ends_meanwhile_is_opened_again(
    collect: Collect, slow: str
) -> None:
    def items() -> Iterator[Item]:
        for item in numbered(4):
            if slow == "items":
                time.sleep(0.25)
            yield item

    def note(_index: int) -> None:
        if slow == "results":
            time.sleep(0.25)

    with serving(stall_timeout_s=0.1) as server:
        check(collect(server.address, items(), on_outcome=note, max_in_flight=2), 4)


@contextmanager
def full_server() -> Generator[tuple[ServerThread, ManyCall]]:
    """Run a server whose memory a call has taken."""
    with served_many(max_memory_bytes=1) as (server, _, other):
        other.send(named(summed(1 << 18), "long"))  # hours of work
        wait_until(lambda: server.server.service.admission.memory_bytes)
        yield server, other


def test_items_that_a_full_server_refuses_are_sent_again(collect: Collect) -> None:
    with full_server() as (server, other):
        threading.Timer(0.3, other.call.cancel).start()
        check(collect(server.address, numbered(20), options=PATIENT), 20)


def test_an_overload_that_lasts_is_told_with_the_time_to_wait(collect: Collect) -> None:
    with full_server() as (server, _):
        outcomes = collect(server.address, numbered(3), options={"retry": BRISK})
    for index, error in outcomes:
        assert isinstance(error, OverloadedError)
        assert error.retry_after_s == RETRY_AFTER_S
        assert (error.request_id or "").endswith(f"-{index}")
    check_places(outcomes, 3, ordered=True)


def test_more_callers_than_streams_all_get_their_results(collect: Collect) -> None:
    with serving(max_streams=1) as server, ThreadPoolExecutor(4) as pool:
        calls = [
            pool.submit(collect, server.address, numbered(50), options=PATIENT) for _ in range(6)
        ]
        for call in calls:
            check(call.result(), 50)


def test_a_server_that_is_not_there_fails_every_item(nobody: str, collect: Collect) -> None:
    outcomes = collect(nobody, numbered(5), options={"retry": BRISK})
    for index, outcome in outcomes:
        assert isinstance(outcome, UnavailableError)
        assert outcome.__notes__ == [f"item {index} of evaluate_many"]
    check_places(outcomes, 5, ordered=True)


def test_a_server_without_the_method_is_called_once_for_each_item(
    server: ServerThread, collect: Collect
) -> None:
    broadcast = np.broadcast_to(np.float32(100), (16,))
    items = [*numbered(100), Item(COPY, broadcast, (16,))]
    with skewed(server.address, older) as old:
        check(collect(old, items), 101)


def test_an_interrupt_loses_nothing(relay: Relay) -> None:
    with Client(relay.address) as client:
        results = client.evaluate_many(numbered(100))
        before = list(itertools.islice(results, 10))
        relay.hold()
        with interrupted(after_s=0.2), pytest.raises(KeyboardInterrupt):
            before.extend(results)
        relay.let_go()
        after = [*before, *results]
    check(list(enumerate(after)), 100)


def test_a_client_closed_by_another_thread_ends_what_is_in_flight(relay: Relay, face: Face) -> None:
    client = face(relay.address)
    results = client.evaluate_many(numbered(100))
    next(results)
    relay.hold()
    threading.Timer(0.2, client.close).start()
    with pytest.raises(CallCancelledError):
        list(results)


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
        (Client, failing, KeyboardInterrupt),
        (Client, failing, GeneratorExit),
        (Client, failing, asyncio.CancelledError),
        (AWAITED, failing, GeneratorExit),
        (AWAITED, failing, asyncio.CancelledError),
        (AWAITED, failing_in_loop, GeneratorExit),
        (AWAITED, failing_in_loop, asyncio.CancelledError),
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
        # Behind the last one too.
        next(client.evaluate_many([ITEM]))
        wait_idle(server)
        wait_until(lambda: "gradwire-receiver" not in {each.name for each in threading.enumerate()})


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
