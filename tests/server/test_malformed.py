"""Bytes that are no message, or have too much beside a tensor, are refused like any bad data."""

from __future__ import annotations

import grpc
import pytest

from gradwire._wire.framing import varint
from gradwire_server.config.settings import MAX_HEADER_BYTES
from gradwire_server.rpc.codec import DATA, beside_data
from support.raw_calls import (
    PATIENCE_S,
    SERVICE,
    ManyCall,
    RawClient,
    call,
    ended,
    named,
    opening,
    published_request,
    refused,
    send_bytes,
)
from support.refusals import Refusal, check_in_band, refusal_of

GARBAGE = {
    "a tag without a value": b"\x0a",
    "a length beyond the end": b"\x12\xff\xff\xff\x7f",
    "a group that does not end": b"\x0b",
    "no UTF-8": b"\x0a\x02\xc3\x28",
    "noise": bytes(range(255, 0, -1)),
}


# What the questions have no field for may hold anything.
CALLS = [
    *(
        pytest.param("Evaluate", garbage, id=f"Evaluate, {name}")
        for name, garbage in GARBAGE.items()
    ),
    *(
        pytest.param(method, garbage, id=f"{method}, {name}")
        for method in ("ListOperators", "GetServerInfo")
        for name, garbage in GARBAGE.items()
        if name != "no UTF-8"
    ),
]


after = pytest.mark.parametrize("before", [0, 1], ids=["first", "after open"])
OPEN = opening(published_request()).SerializeToString()


@pytest.mark.parametrize(("method", "garbage"), CALLS)
def test_bytes_that_are_no_message_are_refused_as_invalid_data(
    client: RawClient, method: str, garbage: bytes
) -> None:
    refusal = refused(send_bytes(client, method, garbage), "INVALID_DATA", field="message")
    assert f"{len(garbage)} bytes" in refusal.message


@after
@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=list(GARBAGE))
def test_bytes_that_are_no_message_of_a_stream_are_refused_as_invalid_data(
    client: RawClient, garbage: bytes, before: int
) -> None:
    # Field 1 is open, a message: what is inside it need not be one either.
    wrapped = b"\x0a" + bytes([len(garbage)]) + garbage if len(garbage) < 128 else garbage
    refusal = send_bytes(client, "EvaluateStream", *[OPEN][:before], wrapped)
    ended(refusal, "INVALID_DATA", field="message")


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=list(GARBAGE))
def test_bytes_that_are_no_request_among_many_end_the_stream(
    client: RawClient, garbage: bytes
) -> None:
    good = named(published_request(), "good").SerializeToString()
    with ManyCall.of_bytes(client, good, field(1, garbage)) as call:
        ended(call.refusal(), "INVALID_DATA", field="message")


def test_a_unary_call_without_a_request_is_refused_as_invalid_data(client: RawClient) -> None:
    _, refusal = call(client.channel, f"{SERVICE}/Evaluate", ())
    refused(refusal, "INVALID_DATA", field="message")


LARGE = 15 << 20


def field(number: int, content: bytes) -> bytes:
    """Encode a length-delimited field."""
    return varint(number << 3 | 2) + varint(len(content)) + content


FILLINGS = {
    "empty fields": b"\x12\x00" * (LARGE // 2),
    "empty data": b"\x7a\x00" * (LARGE // 2),
    "unknown numbers": b"\x30\x01" * (LARGE // 2),
    "unknown groups": b"\x33\x34" * (LARGE // 2),
    "an unknown field": field(20, bytes(LARGE)),
    "long sizes": field(3, b"\x10\x01" * (LARGE // 2)),
    "a long name": field(1, b"n" * LARGE),
    "data behind a group": b"\x33\x34" + field(15, bytes(LARGE)),
}
fillings = pytest.mark.parametrize("filling", FILLINGS.values(), ids=list(FILLINGS))


def check_too_long(refusal: Refusal | None) -> Refusal:
    checked = refused(
        refusal, "INVALID_DATA", field="message", limit="max_header_bytes", allowed=MAX_HEADER_BYTES
    )
    assert f"at most {MAX_HEADER_BYTES} (max_header_bytes) are read" in checked.message
    return checked


@pytest.mark.parametrize("method", ["Evaluate", "ListOperators", "GetServerInfo"])
@fillings
def test_a_request_is_refused(client: RawClient, method: str, filling: bytes) -> None:
    check_too_long(send_bytes(client, method, filling + field(6, b"")))


@after
@pytest.mark.parametrize("inside", [1, 2], ids=["open", "chunk"])
@fillings
def test_a_message_of_a_stream_is_refused(
    client: RawClient, filling: bytes, inside: int, before: int
) -> None:
    message = field(inside, filling)
    refusal = send_bytes(client, "EvaluateStream", *[OPEN][:before], message)
    check_in_band(check_too_long(refusal))


@fillings
def test_a_request_among_many_ends_the_stream(client: RawClient, filling: bytes) -> None:
    message = field(1, field(1, b"name") + filling + field(6, b""))
    with ManyCall.of_bytes(client, message) as call:
        check_in_band(check_too_long(call.refusal()))


def test_a_request_among_many_in_the_usual_form_is_refused_alone(client: RawClient) -> None:
    usual = named(published_request(), "good")
    evaluation = published_request()
    evaluation.input.sizes.extend([1] * MAX_HEADER_BYTES)
    with ManyCall(client) as call:
        call.send(named(evaluation, "long"), usual)
        answers = call.answers()
    assert answers["good"].HasField("result")
    error = answers["long"].error
    assert error.metadata["limit"] == "max_header_bytes"
    assert error.field_violations[0].field == "message"


def of_length(count: int) -> bytes:
    """Encode an evaluation with so many bytes beside its data, most of them in an unknown field."""
    request = published_request()
    data = request.data
    request.ClearField("data")
    head = request.SerializeToString() + b"\x7a" + varint(len(data))
    rest = count - len(head)
    padding = field(6, bytes(rest - 3))
    assert len(padding) == rest
    return padding + head + data


@pytest.mark.parametrize(
    ("count", "code"),
    [
        (MAX_HEADER_BYTES, grpc.StatusCode.UNIMPLEMENTED),
        (MAX_HEADER_BYTES + 1, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_the_limit_is_exact(client: RawClient, count: int, code: grpc.StatusCode) -> None:
    refusal = send_bytes(client, "Evaluate", of_length(count))
    assert refusal is not None
    assert refusal.code is code


@pytest.mark.parametrize("size", [0, 1, 127, 128, 1 << 20])
def test_the_data_do_not_count_wherever_they_are(size: int) -> None:
    request = published_request()
    request.data = bytes(size)
    usual = request.SerializeToString()
    data = field(15, bytes(size)) if size else b""
    head = usual[: len(usual) - len(data)]
    for message in (usual, data + head, data + head + data):
        expected = len(message) - size * message.count(data) if size else len(message)
        assert beside_data(message) == expected
        among_many = field(1, message)
        assert beside_data(among_many, {1: DATA}) == len(among_many) - len(message) + expected
    # Of a field beside the one it is looked for in it is as good as anything else.
    elsewhere = field(2, data)
    assert beside_data(elsewhere, {1: DATA}) == len(elsewhere)


@pytest.mark.parametrize(("size", "served"), [(7 << 10, True), (16 << 10, False)])
def test_metadata_are_read_up_to_the_limits_of_grpc(
    client: RawClient, size: int, *, served: bool
) -> None:
    metadata = (("name", "x" * size),)
    if served:
        for _ in range(20):
            client.stub.Evaluate(published_request(), timeout=PATIENCE_S, metadata=metadata)
        return
    with pytest.raises(grpc.RpcError) as refused:
        client.stub.Evaluate(published_request(), timeout=PATIENCE_S, metadata=metadata)
    refusal = refusal_of(refused.value)
    assert refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "received metadata size exceeds hard limit" in refusal.message
