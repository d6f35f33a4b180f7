"""Messages of EvaluateMany framed by hand are the bytes that protobuf writes and reads.

tests/contract has the other messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import example, given
from hypothesis import strategies as st

from gradwire import v1
from gradwire._wire import framing
from support.raw_calls import float32, published_request

NAMELESS = published_request()
NAMELESS.ClearField("request_id")
DATA = st.binary(min_size=1, max_size=300)
NAMES = st.text(st.characters(codec="ascii"), min_size=1, max_size=200)
M = TypeVar("M", bound=Message)


Made = tuple[Message, bytes, tuple[bytes, bytes, memoryview]]


def made(name: str, data: bytes) -> tuple[Made, Made]:
    """Return a request and a result: message, frame made by hand, and what is read of that."""
    request = v1.EvaluateRequest.FromString(NAMELESS.SerializeToString())
    request.ClearField("data")
    result = v1.EvaluateResponse(output=float32(2, 300, strides=(0, 1)))
    asks, answers = (
        (name.encode(), message.SerializeToString(), memoryview(data))
        for message in (request, result)
    )
    request.MergeFrom(v1.EvaluateRequest(request_id=name, data=data))
    result.MergeFrom(v1.EvaluateResponse(request_id=name, data=data))
    asked = v1.EvaluateManyRequest(evaluation=request)
    answered = v1.EvaluateManyResponse(request_id=name, result=result)
    return (
        (asked, framing.many_request_frame(*asks)[0], asks),
        (answered, framing.many_result_frame(*answers), answers),
    )


def read_result(message: bytes) -> framing.CheckedParts | None:
    """Read the answer to a request without a checksum."""
    return framing.read_many_result(message, lambda _: None)


READERS: list[Callable[[bytes], Any]] = [framing.read_many_request, read_result]
FORMS = ["EvaluateMany's request", "EvaluateMany's response"]


@pytest.mark.parametrize("form", [0, 1], ids=FORMS)
@given(name=NAMES, data=DATA, draw=st.data())
def test_a_frame_is_what_protobuf_writes_and_is_read_back_only_whole(
    form: int, name: str, data: bytes, draw: st.DataObject
) -> None:
    message, frame, parts = made(name, data)[form]
    read = READERS[form]
    assert frame == message.SerializeToString()
    found, _ = read(frame)
    assert found == parts
    # By reference.
    assert found[2].obj is frame
    assert read(frame[: draw.draw(st.integers(0, len(frame) - 1))]) is None


def test_other_messages_are_none() -> None:
    asked, named = v1.EvaluateRequest, v1.EvaluateResponse(request_id="b", data=b"\x05")
    no_name, foreign = asked(data=b"\x05"), asked(request_id="ä", data=b"\x05")
    evaluations = (None, no_name, foreign, asked(request_id="a"), NAMELESS)
    requests: list[Message] = [v1.EvaluateManyRequest(evaluation=each) for each in evaluations]
    answers: list[Message] = [
        v1.EvaluateManyResponse(),
        v1.EvaluateManyResponse(request_id="a"),
        v1.EvaluateManyResponse(request_id="a", error=v1.Error(message="no")),
        v1.EvaluateManyResponse(result=v1.EvaluateResponse(data=b"\x05")),
        *(v1.EvaluateManyResponse(request_id=name, result=named) for name in ("a", "")),
    ]
    for read, messages in zip(READERS, (requests, answers), strict=True):
        for message in messages:
            assert read(message.SerializeToString()) is None


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Bytes near to a message: some of them changed, left out or doubled."""
    frame = bytearray(draw(st.sampled_from(made(draw(NAMES), draw(DATA))))[1])
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(frame)))
        stop = draw(st.integers(start, min(len(frame), start + 2)))
        frame[start:stop] = draw(st.binary(max_size=2) | st.just(bytes(frame[:stop])))
    return bytes(frame)


def parsed(kind: type[M], data: bytes) -> M | None:
    try:
        return kind.FromString(data)
    except DecodeError:
        return None


@given(st.binary(max_size=40) | damaged())
# A name that is not UTF-8, lengths in more bytes than needed, a header that is no message.
@example(b"\x0a\x07\x0a\x01\xff\x7a\x01\x05")
@example(b"\x0a\x87\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00\x0a\x01a\x7a\x01\x05")
@example(b"\x0a\x87\x00\x0a\x81\x00a\x7a\x81\x00\x05")
@example(b"\x0a\x09\x0a\x01a\x12\x01\xff\x7a\x01\x05")
def test_what_is_read_by_hand_protobuf_reads_alike(message: bytes) -> None:
    if (found := framing.read_many_request(message)) is not None:
        parts, _ = found
        header = parsed(v1.EvaluateRequest, parts[1])
        if header is not None:
            header.MergeFrom(v1.EvaluateRequest(request_id=parts[0].decode(), data=bytes(parts[2])))
        asked = parsed(v1.EvaluateManyRequest, message)
        assert asked == (header and v1.EvaluateManyRequest(evaluation=header))
    if (found := read_result(message)) is not None:
        parts, _ = found
        result, name = parsed(v1.EvaluateResponse, parts[1]), parts[0].decode()
        if result is not None:
            result.MergeFrom(v1.EvaluateResponse(request_id=name, data=bytes(parts[2])))
        answered = parsed(v1.EvaluateManyResponse, message)
        assert answered == (result and v1.EvaluateManyResponse(request_id=name, result=result))
