"""evaluate() gives the right bits whatever the array, the result's place and the way it travels."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from google.protobuf.message import Message
from numpy.typing import NDArray

from gradwire import Client, health, ops, v1
from gradwire.errors import LimitExceededError, UnavailableError
from support.clients import (
    BILINEAR,
    COPY,
    LARGE,
    LAYOUTS,
    ONCE,
    Face,
    copied,
    driver_thread,
    halved,
)
from support.relay import relaying
from support.servers import ServerThread, serving

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
def expected(plain: Client) -> Any:
    return halved(plain, DIFF_DST)


def test_the_published_example_has_its_published_result(client: Client) -> None:
    op = ops.DmlResampleGrad(interpolation_mode="nearest", scales=(0.5, 1.5))
    result = client.evaluate(op, np.array([[4, 5, 6]], np.float32), output_shape=(2, 2))
    np.testing.assert_array_equal(result, np.array([[9, 6], [0, 0]], np.float32))
    assert result.dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16, np.float32, np.float64], ids=str)
def test_the_result_has_the_type_of_the_input(client: Client, dtype: np.dtype[Any]) -> None:
    array = RANDOM.normal(size=(5, 7)).astype(dtype)
    result = copied(client, array)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, array)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_same_elements_give_the_same_bits_wherever_they_lie(
    client: Client, expected: NDArray[Any], layout: Callable[[NDArray[Any]], NDArray[Any]]
) -> None:
    np.testing.assert_array_equal(halved(client, layout(DIFF_DST)), expected)


def test_a_result_nests_its_axes_as_the_input_does(client: Client) -> None:
    result = halved(client, LAYOUTS["channels last"](DIFF_DST))
    assert result.transpose(0, 2, 3, 1).flags.c_contiguous


@pytest.mark.parametrize("axes", [(0,), (3,), (1, 2), (0, 1, 2, 3)], ids=str)
def test_a_broadcast_input_travels_as_one_element_of_each_broadcast_axis(
    client: Client, axes: tuple[int, ...]
) -> None:
    thin = DIFF_DST[tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(4))]
    sent: list[int] = []
    thick = np.broadcast_to(thin, DIFF_DST.shape)
    result = halved(client, thick, on_progress=lambda sent_bytes, _: sent.append(sent_bytes))
    np.testing.assert_array_equal(result, halved(client, thick.copy()))
    assert sent[-1] == thin.nbytes


PLACES: dict[str, Callable[[], NDArray[Any]]] = {
    "plain": lambda: np.full(SHAPE, np.nan, np.float32),
    "every other element": lambda: np.full((2, 3, 32, 48), np.nan, np.float32)[..., ::2],
    "column-major": lambda: np.full(SHAPE, np.nan, np.float32, order="F"),
    "backward": lambda: np.full(SHAPE, np.nan, np.float32)[:, :, ::-1],
    "big-endian": lambda: np.full(SHAPE, np.nan, ">f4"),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_out_takes_the_result_whatever_its_strides(
    client: Client, expected: NDArray[Any], place: Callable[[], NDArray[Any]]
) -> None:
    out = place()
    assert client.evaluate(BILINEAR, DIFF_DST, out=out) is out
    np.testing.assert_array_equal(out, expected)


def test_memmaps_are_read_and_written_in_place(
    client: Client, expected: NDArray[Any], tmp_path: Path
) -> None:
    DIFF_DST.tofile(tmp_path / "diff_dst")
    source = np.memmap(tmp_path / "diff_dst", np.float32, "r", shape=DIFF_DST.shape)
    out = np.memmap(tmp_path / "diff_src", np.float32, "w+", shape=SHAPE)
    assert client.evaluate(BILINEAR, source, out=out) is out
    out.flush()
    stored = np.fromfile(tmp_path / "diff_src", np.float32).reshape(SHAPE)
    np.testing.assert_array_equal(stored, expected)


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
        np.testing.assert_array_equal(copied(client, array), array)


@pytest.mark.parametrize(
    "source",
    [
        LAYOUTS["channels last"](RANDOM.normal(size=(2, 3, 256, 256)).astype(np.float32)),
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
        Client(tight.address, retry=ONCE) as client,
    ):
        client.evaluate(COPY, source, out=out)
        np.testing.assert_array_equal(out, source)


def test_a_limit_that_no_retry_helps_is_named() -> None:
    with serving(max_elements=100) as server, Client(server.address) as client:
        with pytest.raises(LimitExceededError) as caught:
            halved(client, DIFF_DST)
        assert caught.value.limit == "max_elements"


def test_progress_grows_and_ends_with_the_end(server: ServerThread, face: Face) -> None:
    reports: list[tuple[int, int]] = []
    threads: set[threading.Thread] = set()

    def report(sent_bytes: int, received_bytes: int) -> None:
        reports.append((sent_bytes, received_bytes))
        threads.add(threading.current_thread())
        relay.let_go()

    with relaying(server.address) as relay, face(relay.address, chunk_bytes=5000) as client:
        relay.hold(after=1 << 20)
        copied(client, LARGE, on_progress=report)
    assert len(reports) > 1
    assert reports[-1] == (LARGE.nbytes, LARGE.nbytes)
    for before, after in pairwise(reports):
        assert before[0] <= after[0]
        assert before[1] <= after[1]
    assert threads == {threading.current_thread() if face is Client else driver_thread()}


def test_a_unary_call_reports_its_end(server: ServerThread, face: Face) -> None:
    reports: list[tuple[int, int]] = []
    with face(server.address) as client:
        halved(client, DIFF_DST, on_progress=lambda up, down: reports.append((up, down)))
    assert reports == [(DIFF_DST.nbytes, DIFF_DST.nbytes // 4)]


@pytest.mark.parametrize("threshold", [0, 1 << 16, 1 << 40], ids=["stream", "both", "unary"])
def test_calls_at_once_share_a_client(
    server: ServerThread, face: Face, expected: NDArray[Any], threshold: int
) -> None:
    large = RANDOM.normal(size=(512, 512)).astype(np.float32)
    with (
        face(server.address, stream_threshold_bytes=threshold) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        small_calls = [pool.submit(halved, client, DIFF_DST) for _ in range(40)]
        large_calls = [pool.submit(copied, client, large) for _ in range(10)]
        for call in small_calls:
            np.testing.assert_array_equal(call.result(), expected)
        for call in large_calls:
            np.testing.assert_array_equal(call.result(), large)


def test_a_call_that_succeeds_gives_back_to_the_budget_of_retries(client: Client) -> None:
    budget = vars(client)["_options"].budget
    while budget.allows_retry:
        budget.fail()
    halved(client, DIFF_DST)
    assert budget.allows_retry


def test_a_second_call_on_one_client_streams_as_the_first(server: ServerThread) -> None:
    # The first result row needs no row before the second: later streams send before they are asked.
    array = RANDOM.normal(size=(1, 1, 1024, 1024)).astype(np.float32)
    operator = ops.Interpolate(mode="bilinear", sizes=(256, 256), data_format="NCX")
    with Client(server.address) as client:
        first, second = (client.evaluate(operator, array) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_a_server_tells_of_itself(server: ServerThread, plain: Client, face: Face) -> None:
    with face(server.address) as client:
        client.wait_ready(30)
        info, operators = client.server_info(), client.operators()
    assert (info, operators) == (plain.server_info(), plain.operators())
    assert [each.name for each in operators] == list(ops.OPERATORS) == list(info.operators)
    assert info.limits.max_unary_bytes == (4 << 20) - (64 << 10)


def test_what_a_server_tells_is_made_of_values_with_the_names_of_the_schema(plain: Client) -> None:
    info, (operator, *_) = plain.server_info(), plain.operators()
    values: list[tuple[Any, Any]] = [
        (info, v1.GetServerInfoResponse),
        (info.limits, v1.Limits),
        (operator, v1.OperatorInfo),
        (operator.attributes[0], v1.AttributeInfo),
    ]
    for value, message in values:
        names = {field.name for field in message.DESCRIPTOR.fields}
        named = {field.name.replace("timeout_s", "timeout") for field in fields(value)}
        assert named == names
        assert not isinstance(value, Message)
        assert value == pickle.loads(pickle.dumps(value))  # noqa: S301 - dumped here
        with pytest.raises(FrozenInstanceError):
            setattr(value, fields(value)[0].name, None)
    assert info.limits.stall_timeout_s == 60
    assert operator.data_types == ("float32", "float16", "bfloat16", "float64")
    assert operator.attributes[0].allowed_values[0] == "DML_INTERPOLATION_MODE_NEAREST_NEIGHBOR"


def test_a_server_that_serves_is_healthy(server: ServerThread) -> None:
    assert health.health(server.address) == "SERVING"
    assert health.health(server.address, service="gradwire.v1.GradientService") == "SERVING"
    assert health.health(server.address, service="nobody.Service") == "SERVICE_UNKNOWN"


def test_a_server_that_is_ready_has_answered(server: ServerThread, face: Face) -> None:
    with face(server.address) as client:
        budget = vars(vars(client).get("client", client))["_options"].budget
        assert not budget.reached
        client.wait_ready()
        assert budget.reached


def test_waiting_for_a_server_ends_as_soon_as_it_serves(nobody: str, face: Face) -> None:
    with serving() as server:
        address = server.address
    later = ServerThread(address=address)
    with face(address) as client:
        with pytest.raises(UnavailableError):
            client.wait_ready(0.05)
        timer = threading.Timer(0.3, later.start)
        timer.start()
        client.wait_ready(30)
        client.server_info()
        timer.join()
    later.stop()
    with face(nobody) as client, pytest.raises(UnavailableError, match=r"0\.3 s.*refused") as late:
        client.wait_ready(0.3)
    assert late.value.unreachable
    with pytest.raises(UnavailableError, match="refused"):
        health.health(nobody)
