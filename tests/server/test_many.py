"""EvaluateMany answers each request as a call would, whatever its neighbors are."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import pytest

from gradwire import ops, tensors, v1
from gradwire_server.rpc.batch import find_prepared
from gradwire_server.scheduling.admission import Admission
from support.nobody import Nobody
from support.raw_calls import (
    PATIENCE_S,
    PUBLISHED_RESULT,
    REQUEST_ID,
    ManyCall,
    RawClient,
    ended,
    float32,
    identity_request,
    named,
    published_request,
    rows,
    summed,
    wait_until,
)
from support.servers import Gated, ServerThread, in_threads, served_many, serving, wait_idle

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


def test_a_name_may_be_used_again_once_it_is_answered(client: RawClient) -> None:
    with ManyCall(client) as call:
        for number in range(200):
            request = gradient(number % 3, 2)
            call.send(named(request, "again"))
            assert call.receive().WhichOneof("outcome") == "result"
        assert call.answers() == {}
        assert call.call.code() is grpc.StatusCode.OK


def test_long_work_does_not_hold_up_what_comes_after_it(client: RawClient) -> None:
    with ManyCall(client) as call:
        call.send(named(summed(1 << 18), "long"))
        for number in range(20):
            call.send(named(published_request(), str(number)))
            assert call.receive().request_id == str(number)


def newer() -> v1.EvaluateManyRequest:
    """Name an evaluation beside a field that no schema has."""
    message = named(published_request(), "a")
    message.MergeFromString(b"\x10\x01")
    return message


NAME = "evaluation.request_id"
# The messages, the field at fault, and the reason.
VIOLATIONS: dict[str, tuple[list[v1.EvaluateManyRequest], str | None, str]] = {
    "no evaluation": ([v1.EvaluateManyRequest()], "evaluation", "INVALID_DATA"),
    "no name": ([named(published_request(), "")], NAME, "INVALID_DATA"),
    "a name too long": ([named(published_request(), "n" * 129)], NAME, "INVALID_DATA"),
    "a name much too long": ([named(published_request(), "n" * (15 << 20))], NAME, "INVALID_DATA"),
    "a name in use": (
        [named(summed(1 << 18), "same"), named(published_request(), "same")],
        NAME,
        "INVALID_DATA",
    ),
    "a newer field": ([newer()], None, "UNKNOWN_FIELD"),
}


@pytest.mark.parametrize(("messages", "field", "reason"), VIOLATIONS.values(), ids=list(VIOLATIONS))
def test_what_no_answer_could_be_matched_with_ends_the_stream(
    client: RawClient, messages: list[v1.EvaluateManyRequest], field: str | None, reason: str
) -> None:
    with ManyCall(client) as call:
        call.send(*messages)
        ended(call.refusal(), reason, field=field)


NAMES = [str(number) for number in range(100)]


@contextmanager
def gated(**settings: Any) -> Generator[tuple[Gated, Admission, RawClient, ManyCall]]:
    """Run a server of one thread that computes behind a gate, with a stream of requests."""
    backend = Gated(least_work=0)
    backend.gate.clear()
    with served_many(backend=backend, compute_threads=1, **settings) as (server, client, call):
        in_threads(server)
        try:
            yield backend, server.server.service.admission, client, call
        finally:
            backend.gate.set()


@pytest.fixture(scope="module")
def each() -> int:
    """Return the memory that one of the requests takes of a server's budget."""
    with gated() as (backend, admission, _, call):
        call.send(named(rows(4), "one"))
        assert backend.at_work.acquire(timeout=PATIENCE_S)
        return int(admission.memory_bytes)


ALL = [named(rows(4), name) for name in NAMES]


def check_results(answers: dict[str, v1.EvaluateManyResponse]) -> None:
    assert sorted(answers) == sorted(NAMES)
    assert {each.WhichOneof("outcome") for each in answers.values()} == {"result"}


def test_what_waits_for_a_thread_and_is_alike_is_computed_together(each: int) -> None:
    with gated() as (backend, admission, _, call):
        call.send(named(rows(4), "first"))
        assert backend.at_work.acquire(timeout=PATIENCE_S)
        call.send(*ALL[:10], named(rows(5), "other"))
        wait_until(lambda: admission.memory_bytes > 11 * each)
        backend.gate.set()
        assert list(call.answers()) == ["first", *NAMES[:10], "other"]
    # Ten are filled up to sixteen.
    assert backend.tensors == [1, 16, 1]


def test_no_more_requests_are_read_than_may_be_in_flight(each: int) -> None:
    most, answers = 0, dict[str, v1.EvaluateManyResponse]()
    with gated(max_in_flight=3) as (backend, admission, _, call):
        call.send(*ALL)
        wait_until(lambda: admission.memory_bytes == 3 * each)
        backend.gate.set()
        call.half_close()
        for answer in call:
            most = max(most, admission.memory_bytes)
            answers[answer.request_id] = answer
    assert most <= 3 * each
    check_results(answers)


def test_requests_of_one_stream_wait_for_the_memory_of_one_another(each: int) -> None:
    with gated(max_memory_bytes=each) as (backend, admission, client, call):
        call.send(*ALL)
        assert backend.at_work.acquire(timeout=PATIENCE_S)
        wait_until(lambda: admission.memory_bytes == each)
        with ManyCall(client) as other:
            other.send(named(rows(4), "one too many"))
            error = other.receive().error
        assert error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        assert error.reason == v1.ErrorReason.ERROR_REASON_OVERLOADED
        assert error.HasField("retry_after")
        # Of the other stream: who waits was not refused.
        assert admission.refusals == {"max_memory_bytes": 1}
        backend.gate.set()
        check_results(call.answers())


def test_a_stream_leaves_memory_to_others(each: int) -> None:
    with (
        gated(max_memory_bytes=32 * each) as (backend, admission, client, call),
        ManyCall(client) as other,
    ):
        call.send(*ALL)
        wait_until(lambda: admission.memory_bytes == 4 * each)
        other.send(named(rows(4), "other"))
        wait_until(lambda: admission.memory_bytes == 5 * each)
        backend.gate.set()
        assert other.receive().WhichOneof("outcome") == "result"
        check_results(call.answers())
        assert not admission.refusals


@pytest.mark.parametrize(("length", "kept"), [(1, True), (5000, False)])
def test_what_was_made_of_a_header_is_kept_unless_that_is_long(length: int, *, kept: bool) -> None:
    request = published_request()
    request.ClearField("data")
    # Another member of the same oneof, which the one behind it takes the place of.
    before = v1.Operator(interpolate=v1.Interpolate(sizes=[1] * length))
    header = v1.EvaluateRequest(operator=before).SerializeToString() + request.SerializeToString()
    with serving() as server:
        service = server.server.service
        first, second = (asyncio.run(find_prepared(header, service, Nobody())) for _ in range(2))
        # One memory serves Evaluate too.
        assert (service.preparer.find(header) is second) == kept
    assert first is second
    assert first.response_header
