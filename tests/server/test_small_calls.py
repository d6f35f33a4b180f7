"""Small calls like one before are answered in a shorter way, and nobody can tell."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gradwire import Client, Item, ops, v1
from support.processes import running_command
from support.raw_calls import (
    PATIENCE_S,
    REQUEST_ID,
    TRACEPARENT,
    RawClient,
    WaitingStream,
    as_stream,
    float32,
    refused,
    wait_until,
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


def test_calls_without_a_name_get_one_each(client: RawClient) -> None:
    answers = [client.evaluate(request(seed, request_id="")) for seed in range(3)]
    names = {answer.trailers["gradwire-request-id"] for answer in answers}
    assert len(names) == 3
    assert all(len(name) == 32 for name in names)


@pytest.mark.parametrize("name", ["x" * 129, "line\nfeed", "é"])
def test_a_name_that_is_refused_is_refused_again(client: RawClient, name: str) -> None:
    client.evaluate(request(0))
    for seed in range(2):
        refused(
            client.evaluate(request(seed, request_id=name)), "INVALID_FIELD", field="request_id"
        )


@pytest.mark.parametrize("nbytes", [0, 63, 65])
def test_data_of_another_length_is_refused_behind_a_header_that_is_known(
    client: RawClient, nbytes: int
) -> None:
    client.evaluate(request(0))
    asked = request(0)
    asked.data = bytes(nbytes)
    assert (
        f"{nbytes} bytes" in refused(client.evaluate(asked), "INVALID_DATA", field="data").message
    )


def test_the_lines_of_later_calls_are_like_the_first(tmp_path: Path) -> None:
    flags = ("--log-format", "json", "--access-log")
    with running_command(*flags, log=tmp_path / "log") as command:
        with RawClient(command.address) as client:
            for seed in range(3):
                assert client.evaluate(request(seed)).refusal is None
        command.wait_for_log('"call"', times=3)
        lines = [json.loads(line) for line in command.log.splitlines()]
    first, *later = [
        {name: fact for name, fact in line.items() if name not in {"time", "duration_ms"}}
        for line in lines
        if line["event"] == "call"
    ]
    assert later == [first, first]


def test_a_call_that_is_known_is_refused_while_memory_is_full() -> None:
    with served(max_memory_bytes=1) as (server, client):
        assert client.evaluate(request(0)).refusal is None
        held = WaitingStream(client, request(1))
        wait_until(lambda: server.server.service.admission.memory_bytes)
        refused(client.evaluate(request(2)), "OVERLOADED", limit="max_memory_bytes")
        held.cancel()
        wait_until(lambda: not server.server.service.admission.memory_bytes)
        assert client.evaluate(request(3)).refusal is None


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
