"""Messages have the bytes written out in golden_bytes.py, from protobuf and framed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from contract.schema import MESSAGES
from gradwire import v1
from gradwire._wire.framing import (
    chunk_frame,
    evaluation_frame,
    many_request_frame,
    many_result_frame,
    read_chunk,
    read_evaluation,
    read_many_request,
    read_many_result,
)
from gradwire_server.rpc import codec
from support.oracles.golden_bytes import GOLDEN, OPERATOR, OPERATOR_HEX, TENSOR, TENSOR_HEX, of_hex


@pytest.mark.parametrize(("message", "text"), GOLDEN.values(), ids=list(GOLDEN))
def test_a_message_has_the_bytes_that_its_schema_gives_it(message: Message, text: str) -> None:
    assert message.SerializeToString(deterministic=True) == of_hex(text)
    assert type(message).FromString(of_hex(text)) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: each.name)
def test_every_field_of_every_message_is_in_the_table(message: Descriptor) -> None:
    name = message.full_name.removeprefix("gradwire.v1.")
    examples = [each for key, (each, _) in GOLDEN.items() if key.split()[0] == name]
    assert examples
    shown = {field.number for each in examples for field, _ in each.ListFields()}
    assert shown == {field.number for field in message.fields}


FRAMES = {
    (0, 1): "12 03 7a 01 05",
    (1, 1): "12 05 08 01 7a 01 05",
    (300, 1): "12 06 08 ac 02 7a 01 05",
    (2**63 - 1, 1): "12 0d 08 ff ff ff ff ff ff ff ff 7f 7a 01 05",
    (0, 125): f"12 7f 7a 7d {'05' * 125}",
    (0, 126): f"12 80 01 7a 7e {'05' * 126}",
    (0, 128): f"12 83 01 7a 80 01 {'05' * 128}",
    (2**20, 300): f"12 b3 02 08 80 80 40 7a ac 02 {'05' * 300}",
}


@pytest.mark.parametrize(("place", "text"), FRAMES.items(), ids=str)
def test_chunks_framed_by_hand_have_the_bytes_of_messages(
    place: tuple[int, int], text: str
) -> None:
    offset, length = place
    data = b"\x05" * length
    framed = of_hex(text)
    message = v1.EvaluateStreamRequest(chunk=v1.Chunk(offset=offset, data=data))
    assert message.SerializeToString() == framed
    assert chunk_frame(offset, data) == framed
    assert read_chunk(framed) == (offset, memoryview(data))
    chunk = codec.Chunk(offset, np.frombuffer(data, np.uint8))
    assert codec.chunk_response(chunk) == framed


NAMES = {b"a": "0a 01 61", b"b" * 128: f"0a 80 01 {'62' * 128}"}
LENGTHS = {1: "7a 01", 127: "7a 7f", 128: "7a 80 01", 16384: "7a 80 80 01"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", LENGTHS)
def test_many_requests_and_results_framed_by_hand_have_the_bytes_of_messages(
    name: bytes, length: int
) -> None:
    data = b"\x05" * length
    request = v1.EvaluateRequest(
        request_id=name.decode(), operator=OPERATOR, input=TENSOR, options=v1.Options(), data=data
    )
    header = f"12 04 {OPERATOR_HEX} | 1a 0b {TENSOR_HEX} | 2a 00"
    body = of_hex(f"{NAMES[name]} | {header} | {LENGTHS[length]}") + data
    framed = b"\x0a" + _length(len(body)) + body
    assert v1.EvaluateManyRequest(evaluation=request).SerializeToString() == framed
    assert many_request_frame(name, of_hex(header), data) == framed
    assert read_many_request(framed) == (name, of_hex(header), memoryview(data))

    result = v1.EvaluateResponse(request_id=name.decode(), output=TENSOR, data=data)
    header = f"12 0b {TENSOR_HEX}"
    body = of_hex(f"{NAMES[name]} | {header} | {LENGTHS[length]}") + data
    framed = of_hex(NAMES[name]) + b"\x12" + _length(len(body)) + body
    answer = v1.EvaluateManyResponse(request_id=name.decode(), result=result)
    assert answer.SerializeToString() == framed
    assert many_result_frame(name, of_hex(header), data) == framed
    assert read_many_result(framed) == (name, of_hex(header), memoryview(data))


def _length(number: int) -> bytes:
    low, high, more = number & 0x7F, number >> 7 & 0x7F, number >> 14
    if more:
        return bytes((low | 0x80, high | 0x80, more))
    return bytes((low | 0x80, high)) if high else bytes((low,))


EVALUATIONS = ["EvaluateRequest", "EvaluateRequest published", "EvaluateResponse"]


@pytest.mark.parametrize("name", EVALUATIONS)
def test_evaluations_framed_by_hand_have_the_bytes_of_messages(name: str) -> None:
    framed = of_hex(GOLDEN[name][1])
    parts = read_evaluation(framed)
    assert parts is not None
    request_id, header, data = parts
    assert header == framed[2 + len(request_id) : framed.index(header) + len(header)]
    message = GOLDEN[name][0]
    assert isinstance(message, v1.EvaluateRequest | v1.EvaluateResponse)
    assert (message.request_id, message.data) == (request_id.decode(), data.tobytes())
    assert evaluation_frame(request_id, header, data) == framed


def test_a_response_framed_by_hand_has_the_bytes_of_its_message() -> None:
    header = codec.response_header(TENSOR)
    assert header == of_hex(f"12 0b {TENSOR_HEX}")
    framed = codec.response("a", header, memoryview(bytes(200)))
    assert framed == of_hex(GOLDEN["EvaluateResponse"][1])
