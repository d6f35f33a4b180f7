"""Messages of EvaluateMany framed by hand are the bytes that protobuf writes and reads."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from hypothesis import example, given
from hypothesis import strategies as st

from gradwire import v1
from gradwire._wire.framing import (
    Parts,
    many_request_frame,
    many_result_frame,
    read_many_request,
    read_many_result,
)
from support.raw_calls import float32, published_request

NAMES = st.text(st.characters(max_codepoint=127), min_size=1, max_size=200)
DATA = st.binary(min_size=1, max_size=300)
M = TypeVar("M", bound=Message)


def plain(parts: Parts | None) -> tuple[bytes, bytes, bytes] | None:
    return None if parts is None else (parts[0], parts[1], bytes(parts[2]))


def request(name: str, data: bytes) -> tuple[v1.EvaluateManyRequest, bytes]:
    """Make a request, and its header."""
    evaluation = published_request()
    evaluation.ClearField("request_id")
    evaluation.ClearField("data")
    header = evaluation.SerializeToString()
    evaluation.MergeFrom(v1.EvaluateRequest(request_id=name, data=data))
    return v1.EvaluateManyRequest(evaluation=evaluation), header


def answer(name: str, data: bytes) -> tuple[v1.EvaluateManyResponse, bytes]:
    """Make the answer that carries a result, and its header."""
    result = v1.EvaluateResponse(output=float32(2, 300, strides=(0, 1)))
    header = result.SerializeToString()
    result.MergeFrom(v1.EvaluateResponse(request_id=name, data=data))
    return v1.EvaluateManyResponse(request_id=name, result=result), header


@given(NAMES, DATA)
def test_a_frame_is_what_protobuf_writes(name: str, data: bytes) -> None:
    message, header = request(name, data)
    assert many_request_frame(name.encode(), header, data) == message.SerializeToString()
    response, header = answer(name, data)
    assert many_result_frame(name.encode(), header, data) == response.SerializeToString()


@given(NAMES, DATA)
def test_what_protobuf_wrote_is_read_back(name: str, data: bytes) -> None:
    message, header = request(name, data)
    assert plain(read_many_request(message.SerializeToString())) == (name.encode(), header, data)
    response, header = answer(name, data)
    assert plain(read_many_result(response.SerializeToString())) == (name.encode(), header, data)


@given(NAMES, DATA, st.data())
def test_a_truncated_frame_is_none(name: str, data: bytes, draw: st.DataObject) -> None:
    for frame, read in (
        (request(name, data)[0].SerializeToString(), read_many_request),
        (answer(name, data)[0].SerializeToString(), read_many_result),
    ):
        assert read(frame[: draw.draw(st.integers(0, len(frame) - 1))]) is None


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Bytes near to a message: some of them changed, left out or doubled."""
    make = draw(st.sampled_from([request, answer]))
    message: Message = make(draw(NAMES), draw(DATA))[0]
    frame = bytearray(message.SerializeToString())
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(frame) - 1))
        match draw(st.sampled_from(["change", "insert", "remove", "repeat"])):
            case "change":
                frame[at] = draw(st.integers(0, 255))
            case "insert":
                frame.insert(at, draw(st.integers(0, 255)))
            case "remove" if len(frame) > 1:
                del frame[at]
            case _:
                stop = draw(st.integers(at, len(frame)))
                frame[at:at] = frame[at:stop]
    return bytes(frame)


@given(st.binary(max_size=40) | damaged())
# A name that is not UTF-8, lengths in more bytes than needed, a header that is no message.
@example(b"\x0a\x07\x0a\x01\xff\x7a\x01\x05")
@example(b"\x0a\x87\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00\x0a\x01a\x7a\x01\x05")
@example(b"\x0a\x87\x00\x0a\x81\x00a\x7a\x81\x00\x05")
@example(b"\x0a\x09\x0a\x01a\x12\x01\xff\x7a\x01\x05")
def test_what_is_read_by_hand_protobuf_reads_alike(message: bytes) -> None:
    parts = read_many_request(message)
    if parts is not None:
        asked = parsed(v1.EvaluateManyRequest, message)
        header = parsed(v1.EvaluateRequest, parts[1])
        assert (asked is None) == (header is None)
        if asked is not None and header is not None:
            header.MergeFrom(v1.EvaluateRequest(request_id=parts[0].decode(), data=bytes(parts[2])))
            assert asked == v1.EvaluateManyRequest(evaluation=header)
    parts = read_many_result(message)
    if parts is not None:
        answered = parsed(v1.EvaluateManyResponse, message)
        result = parsed(v1.EvaluateResponse, parts[1])
        assert (answered is None) == (result is None)
        if answered is not None and result is not None:
            name = parts[0].decode()
            result.MergeFrom(v1.EvaluateResponse(request_id=name, data=bytes(parts[2])))
            assert answered == v1.EvaluateManyResponse(request_id=name, result=result)


def parsed(kind: type[M], data: bytes) -> M | None:
    try:
        return kind.FromString(data)
    except DecodeError:
        return None


def test_other_messages_are_none() -> None:
    evaluation = published_request()
    nameless = v1.EvaluateRequest.FromString(evaluation.SerializeToString())
    nameless.ClearField("request_id")
    foreign = v1.EvaluateRequest(request_id="ä", data=b"\x05")
    for message in (
        v1.EvaluateManyRequest(),
        v1.EvaluateManyRequest(evaluation=nameless),
        v1.EvaluateManyRequest(evaluation=foreign),
        v1.EvaluateManyRequest(evaluation=v1.EvaluateRequest(request_id="a")),
    ):
        assert read_many_request(message.SerializeToString()) is None
    result = v1.EvaluateResponse(request_id="b", data=b"\x05")
    for response in (
        v1.EvaluateManyResponse(),
        v1.EvaluateManyResponse(request_id="a"),
        v1.EvaluateManyResponse(request_id="a", error=v1.Error(message="no")),
        v1.EvaluateManyResponse(request_id="a", result=result),
        v1.EvaluateManyResponse(result=result),
    ):
        assert read_many_result(response.SerializeToString()) is None
