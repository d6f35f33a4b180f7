"""LocalClient is the service without sockets: same bits, same words, any thread count."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gradwire import (
    Client,
    DeadlineExceededError,
    GradwireError,
    InvalidRequestError,
    Item,
    LimitExceededError,
    ops,
)
from gradwire_server import LocalClient
from gradwire_server.engine import Limits
from support.servers import ServerThread

Array = NDArray[Any]

UP = ops.InterpolateBackward(mode="bilinear", data_format="NCX")


@pytest.fixture(scope="module")
def client(server: ServerThread) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def limited(threads: int = 1, **limits: int) -> LocalClient:
    return LocalClient(threads=threads, limits=Limits(**limits))


def test_wide_bands_give_the_same_bits_on_any_number_of_threads() -> None:
    array = normal(1, 2, 4000, 40)
    results: set[bytes] = set()
    for threads in (1, 2):
        for slab in (1 << 10, 1 << 14, 1 << 30):
            with limited(threads, slab_bytes=slab) as local:
                results.add(local.evaluate(UP, array, output_shape=(1, 2, 3, 20)).tobytes())
    assert len(results) == 1


def test_a_layout_too_large_to_hold_is_gathered_in_the_results_order_and_progress_is_told() -> None:
    array = normal(1, 64, 64, 64)
    out = np.empty((1, 32, 32, 64), np.float32).transpose(0, 3, 1, 2)
    told: list[tuple[int, int]] = []
    with limited(max_request_memory_bytes=600_000, slab_bytes=1 << 12) as local:
        local.evaluate(UP, array, out=out, on_progress=lambda *bytes_: told.append(bytes_))
    with LocalClient() as local:
        np.testing.assert_array_equal(local.evaluate(UP, array, output_shape=out.shape), out)
    assert told == sorted(told)
    assert told[-1] == (array.nbytes, out.nbytes)


def test_a_map_that_runs_backward_is_told_as_the_reason_for_much_memory() -> None:
    def crop(*roi: float) -> ops.OnnxResize:
        cut: Any = {"coordinate_transformation_mode": "tf_crop_and_resize", "axes": (0,)}
        return ops.OnnxResize(mode="linear", sizes=(2000,), roi=roi, **cut)

    array = np.ones((1000, 1000), np.float32)
    with limited(max_request_memory_bytes=1 << 20, slab_bytes=1 << 12) as local:
        local.evaluate(crop(0.0, 1.0), array)
        with pytest.raises(LimitExceededError, match="since its map runs backward") as caught:
            local.evaluate(crop(1.0, 0.0), array)
    assert caught.value.limit == "max_request_memory_bytes"
    assert "GRADWIRE_MAX_REQUEST_MEMORY_BYTES" in str(caught.value)


ITEMS = [
    Item(UP, normal(1, 2, 2 * size, 2 * size, seed=seed), (1, 2, size, size))
    for seed, size in enumerate((1, 3, 8, 300, 8))
]


def test_results_of_many_are_those_of_evaluate() -> None:
    with LocalClient() as client:
        wanted = [client.evaluate(i.op, i.array, output_shape=i.output_shape) for i in ITEMS]
        results = list(client.evaluate_many(ITEMS))
        pairs = list(client.evaluate_many(ITEMS, ordered=False))
    assert [index for index, _ in pairs] == list(range(len(ITEMS)))
    for each in (results, [result for _, result in pairs]):
        for result, expected in zip(each, wanted, strict=True):
            np.testing.assert_array_equal(result, expected)


def test_an_error_is_raised_at_its_item_and_the_others_go_on() -> None:
    first, second, *_ = ITEMS
    bad: list[Any] = [first, (UP, first.array, (1, 1)), first.array, second]
    with LocalClient() as client:
        results = client.evaluate_many(bad)
        next(results)
        with pytest.raises(InvalidRequestError, match="output") as caught:
            next(results)
        assert (results.index, caught.value.__notes__) == (1, ["item 1 of evaluate_many"])
        with pytest.raises(TypeError, match="an item is a ndarray"):
            next(results)
        assert next(results).shape == second.output_shape
        assert list(results) == []


def test_items_are_taken_when_results_are_asked_for() -> None:
    taken = iter(ITEMS)
    with LocalClient() as client, client.evaluate_many(taken) as results:
        next(results)
        assert next(taken) is ITEMS[1]
    assert list(results) == []
    assert next(taken) is ITEMS[2]


def test_evaluate_many_takes_and_refuses_what_a_client_does() -> None:
    local, client = (
        inspect.signature(kind.evaluate_many).parameters for kind in (LocalClient, Client)
    )
    assert local == client
    most: Any
    for most in (0, 1.5, True):
        with LocalClient() as one, pytest.raises(InvalidRequestError, match="max_in_flight: is"):
            one.evaluate_many([], max_in_flight=most)


TYPES = [np.dtype(t) for t in (np.float32, np.float16, ml_dtypes.bfloat16, np.float64)]
OPERATORS = (
    UP,
    ops.InterpolateBackward(mode="nearest", data_format="NCX"),
    ops.InterpolateBackward(mode="bilinear", coordinate_transformation_mode="align_corners"),
    ops.Interpolate(mode="linear", data_format="NCX"),
    ops.DmlResampleGrad(interpolation_mode="linear"),
    ops.DmlResample(interpolation_mode="linear", input_pixel_offsets=(0.0,) * 4),
    ops.DmlResample(interpolation_mode="linear", input_pixel_offsets=(-0.0,) * 4),
)


# Shapes that an array can have, and others, some of which equal them.
RESULTS: list[Any] = [
    *((1, 2, 2, 3), (2, 2, 3, 3), (1, 2, 8, 9), (2, 2)),
    *((True, 2, 2, 3), (1, 2, 2.0, 3), (1, 2, 0, 3), (1, 2, 2, 3, 1), (1, 3, 2, 3), None),
]
SOUND = 4


class Call(NamedTuple):
    """Arguments of one evaluate(); the arrays' numbers are made from a seed."""

    operator: ops.Operator
    source: Array
    result_shape: Any
    out: Array | None

    def outcome(self, client: LocalClient | Client) -> tuple[object, ...]:
        """Evaluate and tell all that comes of it."""
        operator, source, shape, out = self
        if out is not None and out.flags.writeable:
            out[...] = 77
        try:
            result = client.evaluate(operator, source, output_shape=shape, out=out)
        except (GradwireError, TypeError) as error:
            field = getattr(error, "field", None)
            return type(error), field, str(error).partition(" (request ")[0]
        assert out is None or result is out
        return result.dtype, result.shape, result.strides, result.tobytes()


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Draw an array of a shape: permuted, with gaps, backward, either byte order."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 1, 2, -1])) for _ in shape]
    seed = np.random.default_rng(draw(st.integers(0, 1000)))
    wide = [shape[axis] * abs(steps[axis]) for axis in order]
    if dtype.kind == "f" and draw(st.integers(0, 5)) == 0:
        dtype = dtype.newbyteorder(">")
    whole = seed.normal(size=wide).astype(dtype).transpose(np.argsort(order))
    return whole[tuple(slice(None, None, step) for step in steps)]


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Draw from so few shapes and layouts that many calls are alike."""
    dtype = draw(st.sampled_from([*TYPES, *TYPES, np.dtype(np.int32)]))
    source_shape = draw(st.sampled_from([(1, 2, 4, 6), (2, 2, 6, 6)]))
    number = draw(st.integers(0, len(RESULTS) - 1))
    result_shape = RESULTS[number]
    source = draw(layouts(source_shape, dtype))
    if draw(st.integers(0, 4)) == 0:
        source = np.broadcast_to(source[:, :, :1, :1], source_shape)
    out = None
    if number < SOUND and draw(st.booleans()):
        out = draw(layouts(result_shape, draw(st.sampled_from([dtype, dtype, dtype, TYPES[0]]))))
        out.flags.writeable = draw(st.integers(0, 5)) > 0
    return Call(draw(st.sampled_from(OPERATORS)), source, result_shape, out)


@pytest.fixture(scope="module", params=[1, 2])
def experienced(request: pytest.FixtureRequest) -> Iterator[dict[int, LocalClient]]:
    """Clients that have seen other calls before, by the size of their slabs."""
    with ExitStack() as stack:
        yield {
            slab: stack.enter_context(limited(request.param, slab_bytes=slab))
            for slab in (1 << 7, 1 << 20)
        }


@settings(max_examples=300)
@given(call=calls(), slab=st.sampled_from([1 << 7, 1 << 20]))
def test_it_answers_as_the_service_does_whether_it_knows_the_call_or_not(
    client: Client, experienced: dict[int, LocalClient], call: Call, slab: int
) -> None:
    with LocalClient(threads=1) as new:
        expected = call.outcome(new)
    assert call.outcome(client) == expected
    assert call.outcome(experienced[slab]) == expected
    assert call.outcome(experienced[slab]) == expected


@pytest.mark.parametrize("slab", [1 << 7, 1 << 20])
@pytest.mark.parametrize(
    "part", [np.s_[:, :, 2:6, 1:5], np.s_[:, :, ::2, 1::2], np.s_[:, :, 3::-1, -2:1:-1]]
)
def test_only_the_elements_of_out_are_written(slab: int, part: tuple[slice, ...]) -> None:
    array = normal(1, 1, 8, 8)
    memory = np.full((1, 1, 8, 9), 7.5, np.float32)
    others = np.ones(memory.shape, np.bool_)
    others[part] = False
    out = memory[part][:, :, :, :4]
    with limited(slab_bytes=slab) as client:
        expected = client.evaluate(UP, array, output_shape=(1, 1, 4, 4))
        for _ in range(2):
            out[...] = 0
            assert client.evaluate(UP, array, out=out) is out
            np.testing.assert_array_equal(out, expected)
    assert (memory[others] == 7.5).all()


def test_memory_that_became_unfit_for_a_result_is_refused() -> None:
    both = np.ones((1, 1, 12, 8), np.float32)
    out = np.empty((1, 1, 4, 8), np.float32)[..., :4]
    with LocalClient() as client:
        client.evaluate(UP, both[:, :, :8], out=out)
        with pytest.raises(GradwireError, match="shares memory"):
            client.evaluate(UP, both[:, :, :8], out=both[:, :, 6:10, :4])
        out.flags.writeable = False
        with pytest.raises(GradwireError, match="read-only"):
            client.evaluate(UP, both[:, :, :8], out=out)


@pytest.mark.parametrize("threads", [1, 2])
def test_nothing_is_written_to_out_after_a_deadline(threads: int) -> None:
    x = np.ones((1, 4, 512, 512), np.float32)
    outs = np.zeros((20, 1, 4, 256, 256), np.float32)
    left: list[Array] = []
    with LocalClient("numpy_cpu", threads, limits=Limits(slab_bytes=1 << 20)) as client:
        for out in outs:
            with pytest.raises(DeadlineExceededError):
                client.evaluate(UP, x, out=out, timeout_s=1e-9)
            left.append(out.copy())
    np.testing.assert_array_equal(outs, left)
    assert not np.all(left)
