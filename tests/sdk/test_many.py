"""evaluate_many gives what evaluate gives for each item, in order or as it comes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gradwire import AsyncClient, Client, Item, ops
from gradwire.errors import GradwireError, InvalidRequestError
from sdk.strided_arrays import arrays
from support.clients import BILINEAR, COPY, ONCE, Collect, Outcome, both_clients, either_way, half
from support.oracles import oracles
from support.servers import ServerThread, serving, wait_idle

NEAREST = ops.DmlResampleGrad(interpolation_mode="nearest")

pytestmark = pytest.mark.usefixtures("nothing_is_held_on_the_server")


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


@both_clients
@either_way
@pytest.mark.parametrize("most", [1, 3, 64])
def test_results_are_those_of_evaluate(
    server: ServerThread, collect: Collect, *, ordered: bool, most: int
) -> None:
    items = [(op, array, half(array)) for array in given_arrays() * 4 for op in (BILINEAR, NEAREST)]
    outcomes = collect(server.address, iter(items), ordered=ordered, max_in_flight=most)
    check_places(outcomes, len(items), ordered=ordered)
    with Client(server.address) as client:
        for index, result in outcomes:
            op, array, shape = items[index]
            wanted = client.evaluate(op, array, output_shape=shape)
            assert isinstance(result, np.ndarray)
            oracles.same_bits(result, wanted)
            assert result.strides == wanted.strides
            assert result.flags.writeable


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


@both_clients
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


@both_clients
def test_a_fault_of_the_iterable_comes_behind_the_items_before_it(
    server: ServerThread, collect: Collect
) -> None:
    one = np.ones((2, 2), np.float32)

    def items() -> Iterator[Item]:
        yield Item(COPY, one, (2, 2))
        yield Item(COPY, one, (2, 2))
        raise ZeroDivisionError("no more")

    outcomes = collect(server.address, items())
    assert [type(outcome) for _, outcome in outcomes] == [np.ndarray, np.ndarray, ZeroDivisionError]


@both_clients
@either_way
@pytest.mark.parametrize("most", [1, 5])
def test_items_are_taken_only_as_there_is_room(
    server: ServerThread, collect: Collect, *, ordered: bool, most: int
) -> None:
    open_now: set[int] = set()
    seen: list[int] = []

    def items() -> Iterator[Item]:
        for number in range(100):
            open_now.add(number)
            seen.append(len(open_now))
            yield Item(COPY, np.full((2, 2), number, np.float32), (2, 2))

    options = {"ordered": ordered, "max_in_flight": most}
    collect(server.address, items(), on_outcome=open_now.remove, **options)
    assert max(seen) == most
    assert not open_now


@both_clients
def test_with_one_in_flight_an_item_may_be_made_of_the_result_before_it(
    server: ServerThread, collect: Collect
) -> None:
    done: list[int] = []

    def items() -> Iterator[Item]:
        for number in range(20):
            assert done == list(range(number))
            yield Item(COPY, np.ones((2, 2), np.float32), (2, 2))

    assert len(collect(server.address, items(), max_in_flight=1, on_outcome=done.append)) == 20


@both_clients
@either_way
def test_results_do_not_wait_until_many_slow_items_are_there(
    server: ServerThread, collect: Collect, *, ordered: bool
) -> None:
    done: list[int] = []
    done_before: list[int] = []

    def items() -> Iterator[Item]:
        for number in range(7):
            time.sleep(0.06)
            done_before.append(len(done))
            yield Item(COPY, np.full((2,), number, np.float32), (2,))

    outcomes = collect(server.address, items(), ordered=ordered, on_outcome=done.append)
    assert len(outcomes) == 7
    assert done_before[-1] > 0


@both_clients
def test_an_array_may_be_used_anew_for_the_next_item(
    server: ServerThread, collect: Collect
) -> None:
    array = np.empty((4, 6), np.float32)

    def items() -> Iterator[Item]:
        for number in range(100):
            array[...] = number
            layout = array if number % 2 else array.T[::-1]
            yield Item(COPY, layout, layout.shape)

    for index, result in collect(server.address, items()):
        assert (np.asarray(result) == index).all()


@both_clients
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
            yield Item(COPY, np.full((1,), 0.0, np.float32), (1,))
            # The result is handed over although more may come.
            await first_result.wait()
            for number in range(1, 50):
                await asyncio.sleep(0)
                yield Item(COPY, np.full((1,), number, np.float32), (1,))

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


@both_clients
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
            for index, result in outcomes:
                op, array, shape = items[index]
                wanted = client.evaluate(op, array, output_shape=shape)
                np.testing.assert_array_equal(np.asarray(result), wanted)
        wait_idle(server)


@both_clients
@either_limit
@pytest.mark.parametrize("spread", [False, True], ids=["plain", "broadcast"])
def test_a_result_that_turns_out_to_be_large_is_fetched_by_a_stream(
    streams: int, collect: Collect, *, spread: bool
) -> None:
    enlarge = ops.Interpolate(mode="nearest", scales=(160.0, 160.0), data_format="NCX")
    array = np.random.default_rng(2).normal(size=(1, 1, 8, 8)).astype(np.float32)
    if spread:
        array = np.broadcast_to(array[:, :, :1], array.shape)
    items = [(enlarge, array), (BILINEAR, array, (1, 1, 4, 4)), (enlarge, array)]
    with serving(max_streams=streams) as server:
        with Client(server.address) as client:
            wanted = client.evaluate(enlarge, array)
        outcomes = collect(server.address, items, options={"retry": ONCE})
        assert len(outcomes) == len(items)
        for index, result in outcomes:
            assert isinstance(result, np.ndarray)
            assert index == 1 or result.tobytes() == wanted.tobytes()
        wait_idle(server)
