"""EvaluateMany answers each request as a call would, whatever its neighbors are."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from gradwire import ops, tensors, v1
from support.many_calls import ManyCall, named
from support.raw_calls import (
    PUBLISHED_RESULT,
    REQUEST_ID,
    RawClient,
    float32,
    identity_request,
    published_request,
    wait_idle,
    wait_until,
)
from support.served import ended, summed
from support.serving import ServerThread, serving

OPERATOR = ops.to_message(ops.InterpolateBackward(mode="bilinear", data_format="NCX"))


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with serving(max_unary_bytes=1 << 16, compute_threads=2) as server:
        yield server


@pytest.fixture
def client(server: ServerThread) -> Iterator[RawClient]:
    with RawClient(server.address) as client:
        yield client
        client.check_alive()
    wait_idle(server)


def gradient(seed: int, size: int = 8, dtype: str = "float32") -> v1.EvaluateRequest:
    """Ask for a bilinear x2 gradient of random numbers."""
    values = np.random.default_rng(seed).normal(size=(1, 3, 2 * size, 2 * size))
    array = values.astype(tensors.DTYPES[getattr(v1.DataType, f"DATA_TYPE_{dtype.upper()}")])
    described = tensors.describe(array)
    return v1.EvaluateRequest(
        request_id=REQUEST_ID,
        operator=OPERATOR,
        input=described,
        output=tensors.result_descriptor(described, (1, 3, size, size)),
        data=array.tobytes(),
    )


def mixed(count: int) -> list[v1.EvaluateRequest]:
    """Make requests alike and not, small and less so, in every type and layout, in any order."""
    turned, broadcast = gradient(5), gradient(6)
    turned.output.strides[:] = [1, 1, 3, 24]
    broadcast.input.strides[:] = [0, 16, 0, 1]
    broadcast.data = broadcast.data[: 3 * 16 * 4]
    kinds = [
        *(gradient(seed, size) for seed in range(6) for size in (2, 8, 32)),
        *(gradient(seed, 4, dtype) for seed in range(4) for dtype in ("float16", "bfloat16")),
        gradient(9, 8, "float64"),
        identity_request(3, data=bytes(range(12))),
        published_request(),
        turned,
        broadcast,
    ]
    return random.Random(0).choices(kinds, k=count)  # noqa: S311 - a test's order


def test_every_answer_has_the_bits_of_a_call_by_itself(client: RawClient) -> None:
    requests = mixed(300)
    with ManyCall(client) as call:
        call.send(*(named(each, str(number)) for number, each in enumerate(requests)))
        answers = call.answers()
    assert sorted(answers, key=int) == [str(number) for number in range(300)]
    alone: dict[bytes, tuple[bytes, v1.TensorDescriptor]] = {}
    for number, each in enumerate(requests):
        key = each.SerializeToString()
        if key not in alone:
            answer = client.evaluate(each)
            assert answer.refusal is None
            alone[key] = answer.data, answer.output
        result = answers[str(number)].result
        assert (result.data, result.output) == alone[key]


def changed(raw: bytes = b"", *, without: str = "", **fields: Any) -> v1.EvaluateRequest:
    """Change fields of the published request; raw bytes come after it."""
    request = published_request()
    for name in filter(None, (without, *fields)):
        request.ClearField(name)  # type: ignore[arg-type]
    request.MergeFrom(v1.EvaluateRequest(**fields))
    request.MergeFromString(raw)
    return request


BAD: dict[str, Callable[[], v1.EvaluateRequest]] = {
    "without an operator": lambda: changed(without="operator"),
    "too little data": lambda: changed(data=b"1234"),
    "no data": lambda: changed(data=b""),
    "no sizes": lambda: changed(input=float32()),
    "wrong sizes": lambda: changed(output=float32(2, 7, 1)),
    "a newer field": lambda: changed(b"\x30\x01"),
    "too large": lambda: identity_request(1 << 20, data=bytes(8)),
    "too large a result": lambda: changed(output=float32(1 << 10, 1 << 10)),
    "more than any limit": lambda: changed(output=float32(1 << 40, 1 << 20)),
}


@pytest.mark.parametrize("make", BAD.values(), ids=list(BAD))
def test_a_request_is_refused_as_a_call_is_and_disturbs_no_other(
    client: RawClient, make: Callable[[], v1.EvaluateRequest]
) -> None:
    bad = make()
    with ManyCall(client) as call:
        for number in range(3):
            call.send(named(published_request(), f"good {number}"), named(bad, f"bad {number}"))
        answers = call.answers()
    refusal = client.evaluate(bad).refusal
    assert refusal is not None
    for number in range(3):
        assert answers[f"good {number}"].result.data == PUBLISHED_RESULT
        error = answers[f"bad {number}"].error
        assert error.code == refusal.code.value[0]
        assert v1.ErrorReason.Name(error.reason) == f"ERROR_REASON_{refusal.info.reason}"
        assert error.message == refusal.message.replace("; Evaluate takes", "; EvaluateMany takes")
        assert error.metadata["request_id"] == f"bad {number}"
        assert error.metadata["traceparent"] == refusal.trailers["traceparent"]


@pytest.mark.parametrize("name", ["line\nbreak", "ä" * 64])
def test_a_name_that_no_log_takes_is_refused_and_returned(client: RawClient, name: str) -> None:
    with ManyCall(client) as call:
        call.send(named(published_request(), name), named(published_request(), "good"))
        answers = call.answers()
    assert answers["good"].result.data == PUBLISHED_RESULT
    assert answers[name].error.reason == v1.ErrorReason.ERROR_REASON_INVALID_FIELD
    assert answers[name].error.field_violations[0].field == "request_id"


def test_a_name_may_be_used_again_once_it_is_answered(client: RawClient) -> None:
    with ManyCall(client) as call:
        for number in range(200):
            request = gradient(number % 3, 2)
            call.send(named(request, "again"))
            assert call.receive().WhichOneof("outcome") == "result"
        assert call.answers() == {}


def test_long_work_does_not_hold_up_what_comes_after_it(client: RawClient) -> None:
    with ManyCall(client) as call:
        call.send(named(summed(1 << 18), "long"))
        for number in range(20):
            call.send(named(published_request(), str(number)))
            assert call.receive().request_id == str(number)


VIOLATIONS: dict[str, tuple[list[v1.EvaluateManyRequest], str]] = {
    "no evaluation": ([v1.EvaluateManyRequest()], "evaluation"),
    "no name": ([named(published_request(), "")], "evaluation.request_id"),
    "a name too long": ([named(published_request(), "n" * 129)], "evaluation.request_id"),
    "a name much too long": (
        [named(published_request(), "n" * (15 << 20))],
        "evaluation.request_id",
    ),
    "a name in use": (
        [named(summed(1 << 18), "same"), named(published_request(), "same")],
        "evaluation.request_id",
    ),
}


@pytest.mark.parametrize(("messages", "field"), VIOLATIONS.values(), ids=list(VIOLATIONS))
def test_what_no_answer_could_be_matched_with_ends_the_stream(
    client: RawClient, messages: list[v1.EvaluateManyRequest], field: str
) -> None:
    with ManyCall(client) as call:
        call.send(*messages)
        ended(call.refusal(), "INVALID_DATA", field=field)


def test_a_newer_field_beside_the_evaluation_ends_the_stream(client: RawClient) -> None:
    message = named(published_request(), "a")
    message.MergeFromString(b"\x10\x01")
    with ManyCall(client) as call:
        call.send(message)
        refusal = ended(call.refusal(), "UNKNOWN_FIELD")
    assert "field 2 of gradwire.v1.EvaluateManyRequest " in refusal.message


def test_a_stream_without_a_request_ends_with_ok(client: RawClient) -> None:
    with ManyCall(client) as call:
        assert call.answers() == {}
        assert call.call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_what_a_stream_held_is_free_when_it_is_over(
    server: ServerThread, client: RawClient, how: str
) -> None:
    admission = server.server.service.admission
    with ManyCall(client, timeout_s=0.4 if how == "deadline" else None) as call:
        call.send(*(named(summed(1 << 18), str(number)) for number in range(8)))
        wait_until(lambda: admission.memory_bytes)
        if how == "cancel":
            call.call.cancel()
        else:
            assert call.refusal().code is grpc.StatusCode.DEADLINE_EXCEEDED
        wait_idle(server)
