"""LocalClient is the service without sockets: same bits, same words, any thread count."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
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
from support.serving import serving

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
