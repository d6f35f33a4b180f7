"""Small calls like one before are answered in a shorter way, and nobody can tell."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gradwire import Client, Item, ops, v1
from support.raw_calls import (
    PATIENCE_S,
    REQUEST_ID,
    TRACEPARENT,
    RawClient,
    as_stream,
    float32,
    refused,
)
from support.servers import Gated, served


def request(seed: int, *, scale: float = 0.5, request_id: str = REQUEST_ID) -> v1.EvaluateRequest:
    """Ask for a gradient; all scales make messages of one length."""
    mode = v1.DmlInterpolationMode.DML_INTERPOLATION_MODE_LINEAR
    operator = v1.DmlResample(interpolation_mode=mode, scales=(1.0, scale))
    numbers = np.random.default_rng(seed).normal(size=(2, 8)).astype("<f4")
    return v1.EvaluateRequest(
        request_id=request_id,
        operator=v1.Operator(dml_resample_grad=operator),
        input=float32(2, 8),
        output=float32(2, 16),
        data=numbers.tobytes(),
    )


def test_results_are_those_of_streams_however_many_calls_of_one_length_take_turns(
    client: RawClient,
) -> None:
    for seed in range(60):
        asked = request(seed, scale=(0.5, 0.51, 0.52, 0.53, 0.54, 0.55)[seed * 7 % 11 % 6])
        answer = client.evaluate(asked)
        assert answer.refusal is None
        assert answer.data == client.stream(as_stream(asked)).data


@pytest.mark.parametrize("name", ["a", "two words", " ", " a ", "x" * 127, "~" * 128, "%25 \"'\\"])
def test_the_name_comes_back_in_message_and_trailers(client: RawClient, name: str) -> None:
    for seed in range(3):
        answer = client.evaluate(request(seed, request_id=name))
        assert answer.trailers["gradwire-request-id"] == name
        assert answer.trailers["traceparent"] == TRACEPARENT
        assert "compute;dur=" in answer.trailers["gradwire-timing"]


def test_calls_without_a_name_get_one_each_and_others_are_refused_again(client: RawClient) -> None:
    answers = [client.evaluate(request(seed, request_id="")) for seed in range(3)]
    names = {answer.trailers["gradwire-request-id"] for answer in answers}
    assert [len(name) for name in names] == [32] * 3
    for name in ["x" * 129, "line\nfeed", "é"] * 2:
        answer = client.evaluate(request(0, request_id=name))
        refused(answer, "INVALID_FIELD", field="request_id")
    asked = request(0)
    for nbytes in (0, 63, 65):
        asked.data = bytes(nbytes)
        refusal = refused(client.evaluate(asked), "INVALID_DATA", field="data")
        assert f"{nbytes} bytes" in refusal.message


def test_a_backend_that_may_wait_holds_up_no_other_call() -> None:
    backend, asked = Gated(least_work=0, may_wait=True), request(0)
    backend.gate.clear()
    scaled = ops.DmlResampleGrad(interpolation_mode="linear", scales=(1.0, 0.5))
    array = np.frombuffer(asked.data, np.float32).reshape(2, 8)
    with (
        served(backend=backend, compute_threads=3) as (server, client),
        Client(server.address) as several,
        ThreadPoolExecutor(3) as pool,
    ):
        item = Item(scaled, array, output_shape=(2, 16))
        calls = [
            pool.submit(lambda: client.evaluate(asked).data),
            pool.submit(lambda: client.stream(as_stream(asked)).data),
            pool.submit(lambda: next(iter(several.evaluate_many([item]))).tobytes()),
        ]
        for _ in calls:
            assert backend.at_work.acquire(timeout=PATIENCE_S)
        with RawClient(server.address) as other:
            operators = other.stub.ListOperators(v1.ListOperatorsRequest(), timeout=PATIENCE_S)
        assert operators.operators
        backend.gate.set()
        results = [call.result(timeout=PATIENCE_S) for call in calls]
    assert len(set(results)) == 1
    assert len(results[0]) == 4 * 2 * 16
