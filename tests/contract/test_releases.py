"""A server of one release serves the SDKs of the releases before and after it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import grpc
import numpy as np
import pytest

from contract.wire_exchange import EXCHANGE, requests
from gradwire import Client, InvalidRequestError, Item, RetryPolicy, Timing, ops, v1
from gradwire_server.backends.numpy_cpu import NumpyCpu
from support.raw_calls import PATIENCE_S, ManyCall, RawClient, as_stream
from support.relay import newer, older, skewed
from support.servers import ServerThread, serving

HALVE = ops.InterpolateBackward(mode="linear", data_format="NCX")
ARRAYS = {
    "Evaluate": np.arange(96, dtype=np.float32).reshape(1, 3, 32),
    "EvaluateStream": np.arange(1 << 18, dtype=np.float32).reshape(1, 4, 1 << 16),
}
EVALUATIONS: dict[str, dict[str, str]] = json.loads(EXCHANGE.read_text())["evaluations"]
OTHERS = [
    pytest.param(newer, True, id="newer"),
    pytest.param(older, True, id="older"),
    pytest.param(older, False, id="older, no trailers"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with serving(backend=NumpyCpu()) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ServerThread) -> Iterator[RawClient]:
    with RawClient(server.address) as client:
        yield client


@pytest.mark.parametrize("name", EVALUATIONS)
def test_what_an_sdk_of_a_release_before_sends_has_the_answer_it_had(
    client: RawClient, name: str
) -> None:
    sent, expected = (bytes.fromhex(EVALUATIONS[name][key]) for key in ("request", "answer"))
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
    call = client.channel.unary_unary("/gradwire.v1.GradientService/Evaluate")
    assert call(sent, timeout=PATIENCE_S) == expected
    request = v1.EvaluateRequest.FromString(sent)
    result = v1.EvaluateResponse.FromString(expected)
    assert client.stream(as_stream(request)).data == result.data
    message = v1.EvaluateManyRequest(evaluation=request)
    with ManyCall.of_bytes(client, message.SerializeToString()) as many:
        assert many.receive().result == result


@pytest.mark.parametrize("name", EVALUATIONS)
def test_this_sdk_writes_what_the_one_of_a_release_before_wrote(name: str) -> None:
    assert requests()[name].SerializeToString().hex() == EVALUATIONS[name]["request"]


@pytest.mark.parametrize(("change", "trailers"), OTHERS)
@pytest.mark.parametrize("array", ARRAYS.values(), ids=list(ARRAYS))
def test_this_sdk_is_served_by_servers_of_other_releases(
    server: ServerThread, array: Any, change: Any, *, trailers: bool
) -> None:
    shape = (*array.shape[:-1], array.shape[-1] // 2)
    timings: list[Timing] = []
    with Client(server.address) as client:
        expected = client.evaluate(HALVE, array, output_shape=shape)
    with skewed(server.address, change, trailers=trailers) as address, Client(address) as client:
        evaluate = partial(client.evaluate, output_shape=shape, on_timing=timings.append)
        np.testing.assert_array_equal(evaluate(HALVE, array), expected)
        for result in client.evaluate_many([Item(HALVE, array, shape)] * 3):
            np.testing.assert_array_equal(result, expected)
        assert client.server_info().version
        assert client.operators()
    assert len(timings) == 1


@pytest.mark.parametrize(("change", "trailers"), OTHERS)
def test_refusals_of_servers_of_other_releases_are_understood(
    server: ServerThread, change: Any, *, trailers: bool
) -> None:
    wrong = ops.DmlResampleGrad(interpolation_mode="linear", scales=(1.0,))
    once = RetryPolicy(max_attempts=1)
    with (
        skewed(server.address, change, trailers=trailers) as address,
        Client(address, retry=once) as client,
    ):
        for array in ARRAYS.values():
            with pytest.raises(InvalidRequestError, match="scales"):
                client.evaluate(wrong, array, output_shape=array.shape)
