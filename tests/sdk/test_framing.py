"""Chunks framed by hand are the bytes that protobuf writes and reads."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gradwire import v1
from gradwire._framing import chunk_frame, read_chunk

OFFSETS = st.integers(0, 2**63 - 1) | st.sampled_from([0, 127, 128, 2**31, 2**32, 2**63 - 1])
DATA = st.binary(min_size=1, max_size=300)


def read(message: bytes) -> tuple[int, bytes] | None:
    chunk = read_chunk(message)
    return None if chunk is None else (chunk[0], bytes(chunk[1]))


@given(OFFSETS, DATA)
def test_a_frame_is_what_protobuf_writes_in_both_directions(offset: int, data: bytes) -> None:
    chunk = v1.Chunk(offset=offset, data=data)
    frame = chunk_frame(offset, memoryview(data))
    assert frame == v1.EvaluateStreamRequest(chunk=chunk).SerializeToString()
    assert frame == v1.EvaluateStreamResponse(chunk=chunk).SerializeToString()


@given(OFFSETS, DATA)
def test_a_chunk_of_protobuf_is_read_back(offset: int, data: bytes) -> None:
    message = v1.EvaluateStreamResponse(chunk=v1.Chunk(offset=offset, data=data))
    assert read(message.SerializeToString()) == (offset, data)


@given(OFFSETS, DATA, st.data())
def test_a_truncated_frame_is_no_chunk(offset: int, data: bytes, draw: st.DataObject) -> None:
    frame = chunk_frame(offset, data)
    assert read(frame[: draw.draw(st.integers(0, len(frame) - 1))]) is None


@given(st.binary(max_size=40))
def test_what_is_read_by_hand_protobuf_reads_alike(message: bytes) -> None:
    by_hand = read(message)
    if by_hand is not None:
        chunk = v1.EvaluateStreamResponse.FromString(message).chunk
        assert by_hand == (chunk.offset, chunk.data)


def test_other_messages_are_no_chunks() -> None:
    for message in (
        v1.EvaluateStreamResponse(),
        v1.EvaluateStreamResponse(opened=v1.Opened(read_from_byte=1)),
        v1.EvaluateStreamResponse(error=v1.Error(message="no")),
        v1.EvaluateStreamResponse(chunk=v1.Chunk(offset=5)),
    ):
        assert read(message.SerializeToString()) is None
