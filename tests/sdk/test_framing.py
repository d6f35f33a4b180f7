"""Messages framed by hand are the bytes that protobuf writes and reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire import v1
from gradwire._wire.framing import chunk_frame, evaluation_frame, read_chunk, read_evaluation

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


def test_other_messages_are_no_chunks() -> None:
    for message in (
        v1.EvaluateStreamResponse(),
        v1.EvaluateStreamResponse(opened=v1.Opened(read_from_byte=1)),
        v1.EvaluateStreamResponse(error=v1.Error(message="no")),
        v1.EvaluateStreamResponse(chunk=v1.Chunk(offset=5)),
    ):
        assert read(message.SerializeToString()) is None


IDS = st.text(st.characters(codec="ascii"), max_size=200)
TENSORS = st.builds(
    v1.TensorDescriptor,
    data_type=st.just(v1.DataType.DATA_TYPE_FLOAT32),
    sizes=st.lists(st.integers(1, 2**63 - 1), max_size=8),
)


@given(IDS, TENSORS, st.none() | TENSORS, DATA)
def test_a_request_framed_by_hand_is_what_protobuf_writes_and_is_read_back(
    request_id: str, source: v1.TensorDescriptor, result: v1.TensorDescriptor | None, data: bytes
) -> None:
    operator = v1.Operator(interpolate_backward=v1.Interpolate(sizes=(1, 2**40)))
    header = v1.EvaluateRequest(operator=operator, input=source, output=result)
    whole = v1.EvaluateRequest(request_id=request_id, data=data)
    whole.MergeFrom(header)
    frame = evaluation_frame(request_id.encode(), header.SerializeToString(), memoryview(data))
    assert frame == whole.SerializeToString()
    assert read_evaluation(frame) == (
        request_id.encode(),
        header.SerializeToString(),
        memoryview(data),
    )


@pytest.mark.parametrize("bits", [7, 14, 21])
def test_data_of_every_length_is_read_back_and_not_a_byte_more_or_less(bits: int) -> None:
    header = v1.EvaluateRequest(
        operator=v1.Operator(interpolate_backward=v1.Interpolate())
    ).SerializeToString()
    for length in range(2**bits - 6, 2**bits + 7):
        frame = evaluation_frame(b"name", header, bytes(length))
        assert read_evaluation(frame) == (b"name", header, memoryview(bytes(length)))
        for other in (frame[:-2], frame[:-1], frame + b"\0", frame + b"\0\0"):
            assert read_evaluation(other) is None


@given(IDS, TENSORS, DATA)
def test_a_response_framed_by_hand_is_what_protobuf_writes_and_is_read_back(
    request_id: str, output: v1.TensorDescriptor, data: bytes
) -> None:
    header = v1.EvaluateResponse(output=output).SerializeToString()
    frame = evaluation_frame(request_id.encode(), header, data)
    whole = v1.EvaluateResponse(request_id=request_id, output=output, data=data)
    assert frame == whole.SerializeToString()
    assert read_evaluation(frame) == (request_id.encode(), header, memoryview(data))


@given(IDS, TENSORS, DATA, st.data())
def test_a_truncated_evaluation_is_none(
    request_id: str, output: v1.TensorDescriptor, data: bytes, draw: st.DataObject
) -> None:
    frame = v1.EvaluateResponse(request_id=request_id, output=output, data=data).SerializeToString()
    assert read_evaluation(frame[: draw.draw(st.integers(0, len(frame) - 1))]) is None


def test_bulk_bytes_are_read_by_reference() -> None:
    frame = evaluation_frame(b"a", b"", bytes(9))
    parts, chunk = read_evaluation(frame), read_chunk(chunk_frame(3, bytes(9)))
    assert parts is not None
    assert parts[2].obj is frame
    assert chunk is not None
    assert isinstance(chunk[1].obj, bytes)
