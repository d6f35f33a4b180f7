"""evaluate() gives the right bits whatever the array, the result's place and the way it travels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from gradwire import (
    Client,
    InvalidRequestError,
    LimitExceededError,
    RetryPolicy,
    ops,
)
from relay import relaying
from serving import ServerThread, serving

BILINEAR = ops.InterpolateBackward(mode="bilinear", data_format="NCX")
COPY = ops.DmlResample(interpolation_mode="linear")
RANDOM = np.random.default_rng(0)
DIFF_DST = RANDOM.normal(size=(2, 3, 64, 48)).astype(np.float32)
SHAPE = (2, 3, 32, 24)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture(scope="module", params=["unary", "stream"])
def client(request: pytest.FixtureRequest, server: ServerThread) -> Iterator[Client]:
    """Each test that asks for it runs twice: by Evaluate, and by EvaluateStream in odd chunks."""
    threshold = 1 << 20 if request.param == "unary" else 0
    with Client(server.address, stream_threshold_bytes=threshold, chunk_bytes=4099) as client:
        yield client


@pytest.fixture(scope="module")
def plain(server: ServerThread) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client


@pytest.fixture(scope="module")
def expected(plain: Client) -> NDArray[Any]:
    return plain.evaluate(BILINEAR, DIFF_DST, output_shape=SHAPE)


def test_the_published_example_has_its_published_result(client: Client) -> None:
    op = ops.DmlResampleGrad(interpolation_mode="nearest", scales=(0.5, 1.5))
    result = client.evaluate(op, np.array([[4, 5, 6]], np.float32), output_shape=(2, 2))
    np.testing.assert_array_equal(result, np.array([[9, 6], [0, 0]], np.float32))
    assert result.dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16, np.float32, np.float64], ids=str)
def test_the_result_has_the_type_of_the_input(client: Client, dtype: np.dtype[Any]) -> None:
    array = RANDOM.normal(size=(5, 7)).astype(dtype)
    result = client.evaluate(COPY, array, output_shape=(5, 7))
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, array)


@pytest.mark.parametrize(
    "view",
    [
        DIFF_DST.astype(">f4"),
        np.asfortranarray(DIFF_DST),
        DIFF_DST[:, ::-1][:, ::-1],
        np.repeat(DIFF_DST, 2, axis=3)[..., ::2],
        np.ascontiguousarray(DIFF_DST.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
        np.ascontiguousarray(DIFF_DST[::-1])[::-1],
        DIFF_DST.tolist(),
    ],
    ids=[
        "big-endian",
        "column-major",
        "reversed twice",
        "gaps",
        "channels last",
        "backward",
        "list",
    ],
)
def test_the_same_elements_give_the_same_bits_wherever_they_lie(
    client: Client, expected: NDArray[Any], view: Any
) -> None:
    array = np.asarray(view, np.float32) if isinstance(view, list) else view
    result = client.evaluate(BILINEAR, array, output_shape=SHAPE)
    np.testing.assert_array_equal(result, expected)


def test_a_result_nests_its_axes_as_the_input_does(client: Client) -> None:
    channels_last = np.ascontiguousarray(DIFF_DST.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    result = client.evaluate(BILINEAR, channels_last, output_shape=SHAPE)
    assert result.transpose(0, 2, 3, 1).flags.c_contiguous


@pytest.mark.parametrize("axes", [(0,), (3,), (1, 2), (0, 1, 2, 3)], ids=str)
def test_a_broadcast_input_travels_as_one_element_of_each_broadcast_axis(
    client: Client, axes: tuple[int, ...]
) -> None:
    thin = DIFF_DST[tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(4))]
    sent: list[int] = []
    result = client.evaluate(
        BILINEAR,
        np.broadcast_to(thin, DIFF_DST.shape),
        output_shape=SHAPE,
        on_progress=lambda sent_bytes, _: sent.append(sent_bytes),
    )
    full = np.broadcast_to(thin, DIFF_DST.shape).copy()
    np.testing.assert_array_equal(result, client.evaluate(BILINEAR, full, output_shape=SHAPE))
    assert sent[-1] == thin.nbytes


PLACES: dict[str, Callable[[Path], NDArray[Any]]] = {
    "plain": lambda _: np.full(SHAPE, np.nan, np.float32),
    "every other element": lambda _: np.full((2, 3, 32, 48), np.nan, np.float32)[..., ::2],
    "column-major": lambda _: np.full(SHAPE, np.nan, np.float32, order="F"),
    "backward": lambda _: np.full(SHAPE, np.nan, np.float32)[:, :, ::-1],
    "big-endian": lambda _: np.full(SHAPE, np.nan, ">f4"),
    "memmap": lambda folder: np.memmap(folder / "out", np.float32, "w+", shape=SHAPE),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_out_takes_the_result_whatever_its_strides(
    client: Client,
    expected: NDArray[Any],
    tmp_path: Path,
    place: Callable[[Path], NDArray[Any]],
) -> None:
    out = place(tmp_path)
    assert client.evaluate(BILINEAR, DIFF_DST, out=out) is out
    np.testing.assert_array_equal(out, expected)


def test_memmaps_are_read_and_written_in_place(
    client: Client, expected: NDArray[Any], tmp_path: Path
) -> None:
    DIFF_DST.tofile(tmp_path / "diff_dst")
    source = np.memmap(tmp_path / "diff_dst", np.float32, "r", shape=DIFF_DST.shape)
    out = np.memmap(tmp_path / "diff_src", np.float32, "w+", shape=SHAPE)
    client.evaluate(BILINEAR, source, out=out)
    out.flush()
    stored = np.fromfile(tmp_path / "diff_src", np.float32).reshape(SHAPE)
    np.testing.assert_array_equal(stored, expected)


@pytest.mark.parametrize(
    ("out", "named"),
    [
        (np.empty((2, 3, 32, 25), np.float32), "shape"),
        (np.empty(SHAPE, np.float64), "dtype"),
        (np.broadcast_to(np.float32(0), SHAPE), "read-only"),
        (DIFF_DST[:, :, ::2, ::2], "memory"),
    ],
    ids=["shape", "dtype", "read-only", "overlap"],
)
def test_an_out_that_does_not_fit_is_refused(plain: Client, out: NDArray[Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        plain.evaluate(BILINEAR, DIFF_DST, output_shape=SHAPE, out=out)


def test_what_is_no_operator_or_no_out_is_a_type_error(plain: Client) -> None:
    message: Any = ops.to_message(BILINEAR)
    with pytest.raises(TypeError, match=r"gradwire\.ops"):
        plain.evaluate(message, DIFF_DST, output_shape=SHAPE)
    bytes_like: Any = bytearray(100)
    with pytest.raises(TypeError, match="out is a bytearray"):
        plain.evaluate(BILINEAR, DIFF_DST, output_shape=SHAPE, out=bytes_like)


def test_an_output_shape_that_is_none_names_its_axis(plain: Client) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        plain.evaluate(BILINEAR, DIFF_DST, output_shape=(2, 3, -1, 24))
    assert caught.value.field == "output.sizes[2]"
    assert str(caught.value) == "output_shape[2]: is -1; give an integer from 0 to 2**63 - 1"


def test_a_gradient_without_an_output_shape_is_refused_by_the_server(plain: Client) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        plain.evaluate(BILINEAR, DIFF_DST)
    assert caught.value.field == "output"
    assert str(caught.value).startswith("output_shape: ")


def test_a_forward_operator_needs_no_output_shape(client: Client) -> None:
    op = ops.Interpolate(mode="nearest", sizes=(128, 96), data_format="NCX")
    result = client.evaluate(op, DIFF_DST)
    np.testing.assert_array_equal(result, DIFF_DST.repeat(2, axis=2).repeat(2, axis=3))


def test_a_small_input_with_a_result_too_large_for_one_message_is_streamed(plain: Client) -> None:
    op = ops.Interpolate(mode="nearest", sizes=(2048, 2048), data_format="NCX")
    result = plain.evaluate(op, np.array([[[[1, 2], [3, 4]]]], np.float32))
    quarters = np.array([[1, 2], [3, 4]], np.float32).repeat(1024, axis=0).repeat(1024, axis=1)
    np.testing.assert_array_equal(result, quarters[np.newaxis, np.newaxis])


@pytest.mark.parametrize("side", [1200, 2400], ids=["USE_STREAM", "over grpc's own limit"])
def test_what_a_server_does_not_take_in_one_message_is_streamed(
    server: ServerThread, side: int
) -> None:
    array = np.arange(side * side, dtype=np.float32).reshape(side, side)
    with Client(server.address, stream_threshold_bytes=1 << 40) as client:
        np.testing.assert_array_equal(client.evaluate(COPY, array, output_shape=array.shape), array)


@pytest.mark.parametrize(
    "source",
    [
        np.ascontiguousarray(RANDOM.normal(size=(2, 256, 256, 3)).astype(np.float32)).transpose(
            0, 3, 1, 2
        ),
        np.broadcast_to(RANDOM.normal(size=(3, 256, 256)).astype(np.float32), (2, 3, 256, 256)),
    ],
    ids=["channels last", "broadcast"],
)
def test_an_input_that_cannot_be_streamed_in_its_order_is_reordered_on_the_way(
    source: NDArray[Any],
) -> None:
    out = np.empty(source.shape, np.float32)
    with (
        serving(max_request_memory_bytes=600_000, slab_bytes=1 << 14) as tight,
        Client(tight.address, retry=RetryPolicy(max_attempts=1)) as client,
    ):
        client.evaluate(COPY, source, out=out)
        np.testing.assert_array_equal(out, source)


def test_a_limit_that_no_retry_helps_is_named() -> None:
    with serving(max_elements=100) as server, Client(server.address) as client:
        with pytest.raises(LimitExceededError) as caught:
            client.evaluate(BILINEAR, DIFF_DST, output_shape=SHAPE)
        assert caught.value.limit == "max_elements"


def test_progress_grows_and_ends_with_the_end(server: ServerThread) -> None:
    reports: list[tuple[int, int]] = []
    threads: set[threading.Thread] = set()

    def report(sent_bytes: int, received_bytes: int) -> None:
        reports.append((sent_bytes, received_bytes))
        threads.add(threading.current_thread())
        relay.let_go()

    array = np.ones((1024, 1024), np.float32)
    with (
        relaying(server.address) as relay,
        Client(relay.address, chunk_bytes=5000) as client,
    ):
        relay.hold(after=1 << 20)
        client.evaluate(COPY, array, output_shape=array.shape, on_progress=report)
    assert len(reports) > 1
    assert reports[-1] == (array.nbytes, array.nbytes)
    assert all(
        before[0] <= after[0] and before[1] <= after[1] for before, after in pairwise(reports)
    )
    assert threads == {threading.current_thread()}


def test_a_unary_call_reports_its_end(plain: Client) -> None:
    reports: list[tuple[int, int]] = []
    plain.evaluate(
        BILINEAR,
        DIFF_DST,
        output_shape=SHAPE,
        on_progress=lambda sent, received: reports.append((sent, received)),
    )
    assert reports == [(DIFF_DST.nbytes, DIFF_DST.nbytes // 4)]


def test_threads_share_a_client(server: ServerThread, expected: NDArray[Any]) -> None:
    large = RANDOM.normal(size=(512, 512)).astype(np.float32)
    with Client(server.address) as client, ThreadPoolExecutor(8) as pool:
        small_calls = [
            pool.submit(client.evaluate, BILINEAR, DIFF_DST, output_shape=SHAPE) for _ in range(40)
        ]
        large_calls = [
            pool.submit(client.evaluate, COPY, large, output_shape=large.shape) for _ in range(10)
        ]
        for call in small_calls:
            np.testing.assert_array_equal(call.result(), expected)
        for call in large_calls:
            np.testing.assert_array_equal(call.result(), large)


@pytest.mark.parametrize("threshold", [0, 1 << 20], ids=["stream", "unary"])
def test_a_call_that_succeeds_gives_back_to_the_budget_of_retries(
    server: ServerThread, threshold: int
) -> None:
    with Client(server.address, stream_threshold_bytes=threshold) as client:
        budget = vars(client)["_channels"].get().budget
        while budget.allows_retry:
            budget.fail()
        client.evaluate(BILINEAR, DIFF_DST, output_shape=SHAPE)
        assert budget.allows_retry
