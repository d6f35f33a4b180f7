"""A message with too much beside its tensor is refused before it is parsed, whatever it is."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from gradwire import v1
from gradwire._wire.framing import varint
from gradwire_server.config.settings import MAX_HEADER_BYTES
from gradwire_server.rpc.codec import beside_data
from many_calls import ManyCall, named
from raw_calls import PATIENCE_S, RawClient, opening, published_request, read_all
from refusals import Refusal, check_in_band, check_refusal, refusal_of
from serving import serving

LARGE = 15 << 20


@pytest.fixture(scope="module")
def client() -> Iterator[RawClient]:
    with serving() as server, RawClient(server.address) as client:
        yield client
        client.check_alive()


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
    refused = check_refusal(
        refusal, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_DATA", field="message"
    )
    assert f"at most {MAX_HEADER_BYTES} (max_header_bytes) are read" in refused.message
    assert refused.info.metadata["limit"] == "max_header_bytes"
    assert refused.info.metadata["allowed"] == str(MAX_HEADER_BYTES)
    return refused


@pytest.mark.parametrize("method", ["Evaluate", "ListOperators", "GetServerInfo"])
@fillings
def test_a_request_is_refused(client: RawClient, method: str, filling: bytes) -> None:
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
    call = client.channel.unary_unary(f"/gradwire.v1.GradientService/{method}")
    with pytest.raises(grpc.RpcError) as caught:
        call(filling + field(6, b""), timeout=PATIENCE_S)
    check_too_long(refusal_of(caught.value))


@pytest.mark.parametrize("before", [0, 1], ids=["first", "after open"])
@pytest.mark.parametrize("inside", [1, 2], ids=["open", "chunk"])
@fillings
def test_a_message_of_a_stream_is_refused(
    client: RawClient, filling: bytes, inside: int, before: int
) -> None:
    messages = [opening(published_request()).SerializeToString()][:before]
    call: grpc.StreamStreamMultiCallable[bytes, v1.EvaluateStreamResponse]
    call = client.channel.stream_stream(
        "/gradwire.v1.GradientService/EvaluateStream",
        response_deserializer=v1.EvaluateStreamResponse.FromString,
    )
    message = field(inside, filling)
    answer = read_all(call(iter([*messages, message]), timeout=PATIENCE_S))
    check_in_band(check_too_long(answer.refusal))


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
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
    call = client.channel.unary_unary("/gradwire.v1.GradientService/Evaluate")
    with pytest.raises(grpc.RpcError) as caught:
        call(of_length(count), timeout=PATIENCE_S)
    assert refusal_of(caught.value).code is code


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
        assert beside_data(among_many, inside=1) == len(among_many) - len(message) + expected
    # Of a field beside the one it is looked for in it is as good as anything else.
    elsewhere = field(2, data)
    assert beside_data(elsewhere, inside=1) == len(elsewhere)


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
