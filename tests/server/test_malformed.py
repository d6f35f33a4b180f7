"""Bytes that are no message of the schema are refused like any bad data."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from gradwire import v1
from raw_calls import PATIENCE_S, RawClient, opening, published_request, read_all
from refusals import check_in_band, check_refusal, refusal_of
from serving import serving


@pytest.fixture(scope="module")
def client() -> Iterator[RawClient]:
    with serving() as server, RawClient(server.address) as client:
        yield client
        client.check_alive()


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


@pytest.mark.parametrize(("method", "garbage"), CALLS)
def test_bytes_that_are_no_message_are_refused_as_invalid_data(
    client: RawClient, method: str, garbage: bytes
) -> None:
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
    call = client.channel.unary_unary(f"/gradwire.v1.GradientService/{method}")
    with pytest.raises(grpc.RpcError) as caught:
        call(garbage, timeout=PATIENCE_S)
    refusal = check_refusal(
        refusal_of(caught.value),
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_DATA",
        field="message",
    )
    assert f"{len(garbage)} bytes" in refusal.message


@pytest.mark.parametrize("before", [0, 1], ids=["first", "after open"])
@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=list(GARBAGE))
def test_bytes_that_are_no_message_of_a_stream_are_refused_as_invalid_data(
    client: RawClient, garbage: bytes, before: int
) -> None:
    messages = [opening(published_request()).SerializeToString()][:before]
    call: grpc.StreamStreamMultiCallable[bytes, v1.EvaluateStreamResponse]
    call = client.channel.stream_stream(
        "/gradwire.v1.GradientService/EvaluateStream",
        response_deserializer=v1.EvaluateStreamResponse.FromString,
    )
    # Field 1 is open, a message: what is inside it need not be one either.
    wrapped = b"\x0a" + bytes([len(garbage)]) + garbage if len(garbage) < 128 else garbage
    answer = read_all(call(iter([*messages, wrapped]), timeout=PATIENCE_S))
    refusal = check_refusal(
        answer.refusal, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_DATA", field="message"
    )
    check_in_band(refusal)


def test_a_unary_call_without_a_request_is_refused_as_invalid_data(client: RawClient) -> None:
    call: grpc.StreamUnaryMultiCallable[bytes, bytes]
    call = client.channel.stream_unary("/gradwire.v1.GradientService/Evaluate")
    with pytest.raises(grpc.RpcError) as caught:
        call(iter([]), timeout=PATIENCE_S)
    check_refusal(
        refusal_of(caught.value),
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_DATA",
        field="message",
    )
