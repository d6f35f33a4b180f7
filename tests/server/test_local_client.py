"""LocalClient is the service without sockets: same bits, same words, any thread count."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import DTypeLike, NDArray

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
from support.servers import serving

UP = ops.InterpolateBackward(mode="bilinear", data_format="NCX")
SMALL_SLABS = Limits(slab_bytes=1 << 12)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serving() as server, Client(server.address) as client:
        yield client


def _input(dtype: DTypeLike, layout: str) -> NDArray[Any]:
    rng = np.random.default_rng(1)
    packed: NDArray[Any] = rng.normal(size=(2, 3, 66, 64)).astype(np.dtype(dtype))
    match layout:
        case "packed":
            return packed
        case "channels last":
            return np.ascontiguousarray(packed.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        case "reversed":
            return packed[::-1, :, ::-2]
        case "broadcast":
            return np.broadcast_to(packed[:1, :, :, :1], (2, 3, 66, 64))
        case _:
            raise AssertionError(layout)


@pytest.mark.parametrize("layout", ["packed", "channels last", "reversed", "broadcast"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_it_gives_the_bits_of_the_service(client: Client, dtype: DTypeLike, layout: str) -> None:
    array = _input(dtype, layout)
    shape = (2, 3, array.shape[2] // 2, 32)
    remote = client.evaluate(UP, array, output_shape=shape)
    for threads in (1, 2):
        with LocalClient(threads=threads, limits=SMALL_SLABS) as local:
            result = local.evaluate(UP, array, output_shape=shape)
        assert result.dtype == remote.dtype
        assert result.strides == remote.strides
        assert result.tobytes() == remote.tobytes()


def test_wide_bands_give_the_same_bits_on_any_number_of_threads() -> None:
    array = np.random.default_rng(0).normal(size=(1, 2, 4000, 40)).astype(np.float32)
    results: set[bytes] = set()
    for threads in (1, 2):
        for slab in (1 << 10, 1 << 14, 1 << 30):
            with LocalClient(threads=threads, limits=Limits(slab_bytes=slab)) as local:
                result = local.evaluate(UP, array, output_shape=(1, 2, 3, 20))
                results.add(result.tobytes())
    assert len(results) == 1


@pytest.mark.parametrize(
    ("array", "shape"),
    [
        (np.ones((2, 3, 4, 4), np.float32), (2, 4, 2, 2)),
        (np.ones((3, 4), np.float32), (3, 2)),
        (np.ones((2, 3, 4, 4), np.float32), (2, 3, 0, 2)),
        (np.ones((2, 3, 4, 4), np.float32), (2, 3)),
        (np.ones((2, 3, 4, 4), np.float32), (2, 3, 2, 2, 1)),
        (np.ones((2, 3, 4, 4), np.int32), (2, 3, 2, 2)),
        (np.ones((2, 3, 4, 4), np.float32), None),
    ],
)
def test_it_refuses_in_the_words_of_the_service(
    client: Client, array: NDArray[Any], shape: tuple[int, ...] | None
) -> None:
    with pytest.raises(GradwireError) as remote:
        client.evaluate(UP, array, output_shape=shape)
    with LocalClient() as local, pytest.raises(GradwireError) as here:
        local.evaluate(UP, array, output_shape=shape)
    assert type(here.value) is type(remote.value)
    assert str(here.value) == str(remote.value)
    assert getattr(here.value, "field", None) == getattr(remote.value, "field", None)


def test_a_layout_too_large_to_hold_is_gathered_in_the_results_order() -> None:
    array = np.random.default_rng(0).normal(size=(1, 64, 64, 64)).astype(np.float32)
    out = np.empty((1, 32, 32, 64), np.float32).transpose(0, 3, 1, 2)
    tight = Limits(max_request_memory_bytes=600_000, slab_bytes=1 << 12)
    with LocalClient(limits=tight) as local:
        local.evaluate(UP, array, out=out)
    with LocalClient() as local:
        np.testing.assert_array_equal(local.evaluate(UP, array, output_shape=out.shape), out)


def test_memory_maps_are_read_and_written_in_place(tmp_path: Any) -> None:
    array = np.random.default_rng(0).normal(size=(1, 1, 64, 64)).astype(np.float32)
    np.save(tmp_path / "in.npy", array)
    out = np.lib.format.open_memmap(tmp_path / "out.npy", "w+", np.float32, (1, 1, 32, 32))
    with LocalClient() as local:
        mapped = np.load(tmp_path / "in.npy", mmap_mode="r")
        assert local.evaluate(UP, mapped, out=out) is out
        np.testing.assert_array_equal(out, local.evaluate(UP, array, output_shape=out.shape))


def test_a_limit_names_its_setting() -> None:
    with LocalClient(limits=Limits(max_elements=10)) as local:
        with pytest.raises(LimitExceededError, match="GRADWIRE_MAX_ELEMENTS") as caught:
            local.evaluate(UP, np.ones((1, 1, 4, 4), np.float32), output_shape=(1, 1, 2, 2))
        assert caught.value.limit == "max_elements"


@pytest.mark.parametrize("roi", [(1.0, 0.0), (0.0, 1.0)])
def test_a_map_that_runs_backward_is_told_as_the_reason_for_much_memory(
    roi: tuple[float, float],
) -> None:
    cut: Any = {"coordinate_transformation_mode": "tf_crop_and_resize", "roi": roi, "axes": (0,)}
    crop = ops.OnnxResize(mode="linear", sizes=(2000,), **cut)
    tight = Limits(max_request_memory_bytes=1 << 20, slab_bytes=1 << 12)
    with LocalClient(limits=tight) as local:
        if roi[0] < roi[1]:
            local.evaluate(crop, np.ones((1000, 1000), np.float32))
            return
        with pytest.raises(LimitExceededError, match="since its map runs backward") as caught:
            local.evaluate(crop, np.ones((1000, 1000), np.float32))
    assert caught.value.limit == "max_request_memory_bytes"


def test_its_time_is_limited_and_its_progress_told() -> None:
    array = np.ones((1, 1, 512, 512), np.float32)
    told: list[tuple[int, int]] = []
    with LocalClient(limits=SMALL_SLABS) as local:
        with pytest.raises(DeadlineExceededError):
            local.evaluate(UP, array, output_shape=(1, 1, 256, 256), timeout_s=1e-9)
        local.evaluate(
            UP,
            array,
            output_shape=(1, 1, 256, 256),
            on_progress=lambda sent, got: told.append((sent, got)),
        )
    assert told == sorted(told)
    assert told[-1] == (array.nbytes, array.nbytes // 4)


BILINEAR = ops.InterpolateBackward(mode="bilinear", data_format="NCX")
GIVEN = [
    np.random.default_rng(seed).normal(size=(1, 2, 2 * size, 2 * size)).astype(np.float32)
    for seed, size in enumerate((1, 3, 8, 300, 8))
]
ITEMS = [Item(BILINEAR, each, (1, 2, each.shape[2] // 2, each.shape[3] // 2)) for each in GIVEN]


def test_results_are_those_of_evaluate() -> None:
    with LocalClient() as client:
        wanted = [client.evaluate(i.op, i.array, output_shape=i.output_shape) for i in ITEMS]
        for result, each in zip(client.evaluate_many(ITEMS), wanted, strict=True):
            np.testing.assert_array_equal(result, each)
        pairs = list(client.evaluate_many(ITEMS, ordered=False))
    assert [index for index, _ in pairs] == list(range(len(ITEMS)))
    for index, result in pairs:
        np.testing.assert_array_equal(result, wanted[index])


def test_an_error_is_raised_at_its_item_and_the_others_go_on() -> None:
    bad: list[Any] = [ITEMS[0], (BILINEAR, GIVEN[0], (1, 1)), GIVEN[0], ITEMS[1]]
    with LocalClient() as client:
        results = client.evaluate_many(bad)
        next(results)
        with pytest.raises(InvalidRequestError, match="output") as caught:
            next(results)
        assert (results.index, caught.value.__notes__) == (1, ["item 1 of evaluate_many"])
        with pytest.raises(TypeError, match="an item is a ndarray"):
            next(results)
        assert next(results).shape == ITEMS[1].output_shape
        with pytest.raises(StopIteration):
            next(results)


def test_items_are_taken_when_results_are_asked_for() -> None:
    taken = iter(ITEMS)
    with LocalClient() as client, client.evaluate_many(taken) as results:
        next(results)
        assert next(taken) is ITEMS[1]
    assert list(results) == []
    assert next(taken) is ITEMS[2]


@pytest.mark.parametrize("most", [0, 1.5, True])
def test_it_refuses_what_a_client_refuses(most: Any) -> None:
    with LocalClient() as client, pytest.raises(InvalidRequestError, match="max_in_flight: is"):
        client.evaluate_many([], max_in_flight=most)


def test_it_takes_the_same_arguments() -> None:
    local, client = (
        inspect.signature(kind.evaluate_many).parameters for kind in (LocalClient, Client)
    )
    assert local == client


Array = NDArray[Any]

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


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments of one evaluate(); the arrays' numbers are made from a seed."""

    operator: ops.Operator
    source: Array
    result_shape: tuple[int, ...]
    out: Array | None

    def outcome(self, client: LocalClient) -> tuple[object, ...]:
        """Evaluate and tell all that comes of it."""
        if self.out is not None and self.out.flags.writeable:
            self.out[...] = 77
        try:
            result = client.evaluate(
                self.operator, self.source, output_shape=self.result_shape, out=self.out
            )
        except (GradwireError, TypeError) as error:
            return type(error), str(error).partition(" (request ")[0]
        assert self.out is None or result is self.out
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
    dtype = draw(st.sampled_from(TYPES))
    source_shape = draw(st.sampled_from([(1, 2, 4, 6), (2, 2, 6, 6)]))
    result_shape = draw(st.sampled_from([(1, 2, 2, 3), (2, 2, 3, 3), (1, 2, 8, 9), (2, 2)]))
    source = draw(layouts(source_shape, dtype))
    if draw(st.integers(0, 4)) == 0:
        source = np.broadcast_to(source[:, :, :1, :1], source_shape)
    out = None
    if draw(st.booleans()):
        out = draw(layouts(result_shape, draw(st.sampled_from([dtype, dtype, dtype, TYPES[0]]))))
        out.flags.writeable = draw(st.integers(0, 5)) > 0
    return Call(draw(st.sampled_from(OPERATORS)), source, result_shape, out)


@pytest.fixture(scope="module", params=[1, 2])
def experienced(request: pytest.FixtureRequest) -> Iterator[dict[int, LocalClient]]:
    """Clients that have seen other calls before, by the size of their slabs."""
    slabs = (1 << 7, 1 << 20)
    made = {
        slab: LocalClient(threads=request.param, limits=Limits(slab_bytes=slab)) for slab in slabs
    }
    yield made
    for client in made.values():
        client.close()


@settings(max_examples=300, deadline=None)
@given(call=calls(), slab=st.sampled_from([1 << 7, 1 << 20]))
def test_a_client_that_knows_the_call_answers_as_one_that_does_not(
    experienced: dict[int, LocalClient], call: Call, slab: int
) -> None:
    with LocalClient(threads=1) as new:
        expected = call.outcome(new)
    assert call.outcome(experienced[slab]) == expected
    assert call.outcome(experienced[slab]) == expected


X = np.arange(64, dtype=np.float32).reshape(1, 1, 8, 8)


@pytest.mark.parametrize("slab", [1 << 7, 1 << 20])
@pytest.mark.parametrize(
    "part", [np.s_[:, :, 2:6, 1:5], np.s_[:, :, ::2, 1::2], np.s_[:, :, 3::-1, -2:1:-1]]
)
def test_only_the_elements_of_out_are_written(slab: int, part: tuple[slice, ...]) -> None:
    memory = np.full((1, 1, 8, 9), 7.5, np.float32)
    others = np.ones(memory.shape, np.bool_)
    others[part] = False
    out = memory[part][:, :, :, :4]
    with LocalClient(limits=Limits(slab_bytes=slab)) as client:
        expected = client.evaluate(UP, X, output_shape=(1, 1, 4, 4))
        for _ in range(2):
            out[...] = 0
            assert client.evaluate(UP, X, out=out) is out
            np.testing.assert_array_equal(out, expected)
    assert (memory[others] == 7.5).all()


def test_what_only_equals_a_size_is_refused_after_the_size_too() -> None:
    with LocalClient() as client:
        client.evaluate(UP, X, output_shape=(1, 1, 4, 4))
        for size in (True, 1.0):
            with pytest.raises(GradwireError, match=r"output_shape\[1\]"):
                client.evaluate(UP, X, output_shape=(1, size, 4, 4))  # type: ignore[arg-type]


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
    outs = [np.zeros((1, 4, 256, 256), np.float32) for _ in range(20)]
    left: list[Array] = []
    with LocalClient("numpy_cpu", threads, limits=Limits(slab_bytes=1 << 20)) as client:
        for out in outs:
            with pytest.raises(DeadlineExceededError):
                client.evaluate(UP, x, out=out, timeout_s=1e-9)
            left.append(out.copy())
    np.testing.assert_array_equal(outs, left)
    assert not np.all(left)
