"""What a client is made of and asked with, and what it tells of its server."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message

from gradwire import (
    Client,
    DeadlineExceededError,
    InvalidRequestError,
    UnavailableError,
    health,
    ops,
    v1,
)
from serving import ServerThread, serving

BILINEAR = ops.InterpolateBackward(mode="bilinear", data_format="NCX")


@pytest.fixture(scope="module")
def plain(server: ServerThread) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client


def test_a_server_tells_of_itself(plain: Client) -> None:
    info = plain.server_info()
    operators = plain.operators()
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


def test_a_server_that_serves_is_ready_and_healthy(server: ServerThread, plain: Client) -> None:
    plain.wait_ready(30)
    assert health.health(server.address) == "SERVING"
    assert health.health(server.address, service="gradwire.v1.GradientService") == "SERVING"
    assert health.health(server.address, service="nobody.Service") == "SERVICE_UNKNOWN"


def test_waiting_for_a_server_ends_as_soon_as_it_serves() -> None:
    with serving() as server:
        address = server.address
    later = ServerThread(address=address)
    with Client(address) as client:
        timer = threading.Timer(0.3, later.start)
        timer.start()
        client.wait_ready(30)
        client.server_info()
        timer.join()
    later.stop()


def test_waiting_for_a_server_that_never_comes_tells_why() -> None:
    with serving() as server:
        address = server.address
    with Client(address) as client, pytest.raises(UnavailableError, match=r"0\.3 s.*refused"):
        client.wait_ready(0.3)
    with pytest.raises(UnavailableError, match="refused"):
        health.health(address)


@pytest.mark.parametrize(
    "wrong",
    [
        {"target": ""},
        {"timeout_s": 0},
        {"timeout_s": float("nan")},
        {"stream_threshold_bytes": -1},
        {"chunk_bytes": 0},
        {"chunk_bytes": 4095},
        {"chunk_bytes": 1 << 30},
    ],
    ids=str,
)
def test_a_client_cannot_be_made_of_nonsense(wrong: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"target": "127.0.0.1:1", **wrong}
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Client(**arguments)


def test_a_second_call_on_one_client_streams_as_the_first(server: ServerThread) -> None:
    # The first result row needs no row before the second: later streams send before they are asked.
    array = np.random.default_rng(0).normal(size=(1, 1, 1024, 1024)).astype(np.float32)
    operator = ops.Interpolate(mode="bilinear", sizes=(256, 256), data_format="NCX")
    with Client(server.address) as client:
        first, second = (client.evaluate(operator, array) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("streams", [False, True])
def test_a_deadline_is_told_with_the_timeout(server: ServerThread, *, streams: bool) -> None:
    array = np.ones((1, 1, 4096, 4096), np.float32)
    with (
        Client(server.address, stream_threshold_bytes=0 if streams else 1 << 30) as client,
        pytest.raises(DeadlineExceededError, match=r"timeout_s, 0\.01 s") as caught,
    ):
        client.evaluate(BILINEAR, array, output_shape=(1, 1, 2048, 2048), timeout_s=0.01)
    assert caught.value.request_id


@pytest.mark.parametrize("shape", [5, "ab", (2, True), (2.5, 3), object()])
def test_a_shape_of_anything_but_integers_is_refused_by_name(
    server: ServerThread, shape: Any
) -> None:
    with (
        Client(server.address) as client,
        pytest.raises(InvalidRequestError, match=r"^output_shape"),
    ):
        client.evaluate(BILINEAR, np.ones((1, 1, 4, 4), np.float32), output_shape=shape)


@pytest.mark.parametrize("timeout_s", [0, -1, 1e10, float("nan"), float("inf"), "5"])
def test_a_timeout_that_is_none_is_refused_by_name(server: ServerThread, timeout_s: Any) -> None:
    with (
        Client(server.address) as client,
        pytest.raises(InvalidRequestError, match=r"^timeout_s"),
    ):
        client.evaluate(
            BILINEAR,
            np.ones((1, 1, 4, 4), np.float32),
            output_shape=(1, 1, 2, 2),
            timeout_s=timeout_s,
        )
