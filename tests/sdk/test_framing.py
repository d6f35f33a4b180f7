"""Messages framed by hand are the bytes that protobuf writes and reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import example, given
from hypothesis import strategies as st

from gradwire import v1
from gradwire._wire import framing
from support.raw_calls import float32, published_request

OFFSETS = st.integers(0, 2**63 - 1) | st.sampled_from([0, 127, 128, 2**31, 2**32, 2**63 - 1])
DATA = st.binary(min_size=1, max_size=300)
NAMES = st.text(st.characters(codec="ascii"), max_size=200)
NO_ERROR = v1.Error(message="no")
M = TypeVar("M", bound=Message)


class Framed(NamedTuple):
    """A message, its frame made by hand, and what is read of it."""

    message: Any
    frame: bytes
    parts: tuple[Any, ...]


@st.composite
def streamed_chunk(draw: st.DrawFn, kind: Callable[..., Message]) -> Framed:
    offset, data = draw(OFFSETS), draw(DATA)
    message = kind(chunk=v1.Chunk(offset=offset, data=data))
    return Framed(message, framing.chunk_frame(offset, memoryview(data)), (offset, data))


@st.composite
def one_of_many(draw: st.DrawFn) -> Framed:
    header = nameless_request()
    header.ClearField("data")
    made = framed(header, draw(NAMES.filter(bool)), draw(DATA), framing.many_request_frame)
    return made._replace(message=v1.EvaluateManyRequest(evaluation=made.message))


@st.composite
def result_of_many(draw: st.DrawFn) -> Framed:
    header = v1.EvaluateResponse(output=float32(2, 300, strides=(0, 1)))
    made = framed(header, draw(NAMES.filter(bool)), draw(DATA), framing.many_result_frame)
    name = made.parts[0].decode()
    return made._replace(message=v1.EvaluateManyResponse(request_id=name, result=made.message))


def framed(header: Any, name: str, data: bytes, frame: Callable[..., bytes]) -> Framed:
    """Put name and data into a header's message, and all three into a frame."""
    whole = type(header)(request_id=name, data=data)
    whole.MergeFrom(header)
    parts = (name.encode(), header.SerializeToString(), data)
    return Framed(whole, frame(parts[0], parts[1], memoryview(data)), parts)


FORMS: dict[str, tuple[st.SearchStrategy[Framed], Callable[[bytes], Any]]] = {
    "chunk sent": (streamed_chunk(v1.EvaluateStreamRequest), framing.read_chunk),
    "chunk received": (streamed_chunk(v1.EvaluateStreamResponse), framing.read_chunk),
    "EvaluateMany's request": (one_of_many(), framing.read_many_request),
    "EvaluateMany's response": (result_of_many(), framing.read_many_result),
}


@pytest.mark.parametrize(("form", "read"), FORMS.values(), ids=FORMS)
@given(draw=st.data())
def test_a_frame_is_what_protobuf_writes_and_is_read_back_only_whole(
    form: st.SearchStrategy[Framed], read: Callable[[bytes], Any], draw: st.DataObject
) -> None:
    one = draw.draw(form)
    assert one.frame == one.message.SerializeToString()
    parts = read(one.frame)
    assert (*parts[:-1], bytes(parts[-1])) == one.parts
    # By reference.
    assert isinstance(parts[-1].obj, bytes)
    assert len(parts[-1].obj) >= len(one.frame)
    assert read(one.frame[: draw.draw(st.integers(0, len(one.frame) - 1))]) is None


def nameless_request() -> v1.EvaluateRequest:
    request = published_request()
    request.ClearField("request_id")
    return request


OTHERS: dict[str, list[Message]] = {
    "chunk received": [
        v1.EvaluateStreamResponse(),
        v1.EvaluateStreamResponse(opened=v1.Opened(read_from_byte=1)),
        v1.EvaluateStreamResponse(error=NO_ERROR),
        v1.EvaluateStreamResponse(chunk=v1.Chunk(offset=5)),
    ],
    "EvaluateMany's request": [
        v1.EvaluateManyRequest(),
        v1.EvaluateManyRequest(evaluation=v1.EvaluateRequest(data=b"\x05")),
        v1.EvaluateManyRequest(evaluation=v1.EvaluateRequest(request_id="ä", data=b"\x05")),
        v1.EvaluateManyRequest(evaluation=v1.EvaluateRequest(request_id="a")),
        v1.EvaluateManyRequest(evaluation=nameless_request()),
    ],
    "EvaluateMany's response": [
        v1.EvaluateManyResponse(),
        v1.EvaluateManyResponse(request_id="a"),
        v1.EvaluateManyResponse(request_id="a", error=NO_ERROR),
        v1.EvaluateManyResponse(result=v1.EvaluateResponse(data=b"\x05")),
        *(
            v1.EvaluateManyResponse(
                request_id=name, result=v1.EvaluateResponse(request_id="b", data=b"\x05")
            )
            for name in ("a", "")
        ),
    ],
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_messages_are_none(name: str) -> None:
    _, read = FORMS[name]
    for message in OTHERS[name]:
        assert read(message.SerializeToString()) is None


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Bytes near to a message: some of them changed, left out or doubled."""
    frame = bytearray(draw(one_of_many() | result_of_many()).frame)
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
    if (parts := framing.read_many_request(message)) is not None:
        header = parsed(v1.EvaluateRequest, parts[1])
        if header is not None:
            header.MergeFrom(v1.EvaluateRequest(request_id=parts[0].decode(), data=bytes(parts[2])))
        asked = parsed(v1.EvaluateManyRequest, message)
        assert asked == (header and v1.EvaluateManyRequest(evaluation=header))
    if (parts := framing.read_many_result(message)) is not None:
        result, name = parsed(v1.EvaluateResponse, parts[1]), parts[0].decode()
        if result is not None:
            result.MergeFrom(v1.EvaluateResponse(request_id=name, data=bytes(parts[2])))
        answered = parsed(v1.EvaluateManyResponse, message)
        assert answered == (result and v1.EvaluateManyResponse(request_id=name, result=result))
