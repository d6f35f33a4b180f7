"""Bytes that are read by hand mean what they mean to protobuf, and are refused where it refuses.

Messages with checksums have the bytes of the schema's law, and are taken only as they are.
Messages are made of fields as sloppy writers and attackers write them: in any order, repeated, with
numbers longer than need be, of other types, cut off; and of sound messages with bytes changed.
"""

from contextlib import suppress
from copy import deepcopy

import grpc
import pytest
from google_crc32c.python import value as crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from gradwire import Client, DataLossError, v1
from gradwire._wire import checksums, framing
from gradwire._wire.framing import read_chunk, read_evaluation
from gradwire_server.errors import ChecksumError, InvalidDataError, UnknownFieldError
from gradwire_server.rpc import codec
from gradwire_server.rpc.status_map import failure
from support.examples import examples
from support.raw_calls import chunk, named, opening, parsed, published_request
from support.servers import serving

REQUEST = published_request()
RESPONSE = v1.EvaluateResponse(request_id="a", output=v1.TensorDescriptor(sizes=(2, 3)), data=b"12")
NAMES = ("", "a", "b", "ä")
MANY = [
    v1.EvaluateManyRequest(),
    *(named(REQUEST, name) for name in NAMES),
    *(v1.EvaluateManyRequest(evaluation=v1.EvaluateRequest(request_id=name)) for name in NAMES),
    v1.EvaluateManyResponse(request_id="a"),
    v1.EvaluateManyResponse(request_id="a", error=v1.Error(message="no")),
    *(v1.EvaluateManyResponse(request_id=name, result=RESPONSE) for name in NAMES),
]
REQUESTS = [REQUEST, opening(REQUEST), chunk(300, bytes(9))]
SOUND = [message.SerializeToString() for message in (*REQUESTS, RESPONSE, *MANY)]
# The shared code raises the first, the server's own code the second.
CHANGED = DataLossError, ChecksumError
# Values that are listed several times are drawn more often.
LENGTHS = st.sampled_from([1] * 40 + [2, 3, 5, 10, 11])
KINDS = st.sampled_from([2] * 40 + [0, 1, 3, 4, 5, 6, 7])


@st.composite
def varints(draw, numbers):
    """Numbers in up to eleven bytes: protobuf takes ten, of a length five."""
    number = draw(numbers)
    length = max((number.bit_length() + 6) // 7, draw(LENGTHS))
    digits = [number >> 7 * index & 0x7F for index in range(length)]
    return bytes([*(digit | 0x80 for digit in digits[:-1]), digits[-1]])


NUMBERS = st.integers(0, 300) | st.integers(0, 2**64 - 1)
TEXTS = st.sampled_from([b"", b"a", b"\xc3\xa4", b"\xc3\x28", b"\xed\xa0\x80"])


@st.composite
def fields(draw, numbers, inside):
    """One field with a payload that may or may not be right for it."""
    kind = draw(KINDS)
    tag = draw(varints(numbers.map(lambda number: number << 3 | kind)))
    if kind == 0:
        return tag + draw(varints(NUMBERS))
    if kind != 2:
        return tag + draw(st.binary(max_size=9))
    payload = draw(inside)
    length = st.one_of(*[st.just(len(payload))] * 15, st.integers(0, 300))
    return tag + draw(varints(length)) + payload


def joined(part, most):
    return st.lists(part, max_size=most).map(b"".join)


DATA = st.binary(max_size=9) | TEXTS
ATTRIBUTES = joined(fields(st.integers(1, 6), DATA), 2)
HEADER = fields(st.sampled_from([1, 2, 3, 4, 5]), ATTRIBUTES | TEXTS)
BULK = fields(st.sampled_from([15] * 15 + [14]), DATA)
OFFSET = varints(NUMBERS).map(lambda number: b"\x08" + number)
NOTHING = st.just(b"")
TAIL = st.one_of(*[NOTHING] * 5, BULK, HEADER)
EVALUATIONS = st.tuples(joined(HEADER, 3), BULK, TAIL).map(b"".join)
CHUNKS = st.tuples(NOTHING | OFFSET, BULK, st.one_of(*[NOTHING] * 5, OFFSET, BULK)).map(b"".join)
STREAM = fields(st.sampled_from([2] * 15 + [1]), CHUNKS)
STREAMS = st.one_of(*[STREAM] * 5, joined(STREAM, 3))


@st.composite
def damaged(draw):
    """Change, lose or double some bytes of a sound message."""
    message = bytearray(draw(st.sampled_from(SOUND)))
    for _ in range(draw(st.integers(0, 2))):
        start = draw(st.integers(0, len(message)))
        stop = draw(st.integers(start, min(len(message), start + 2)))
        message[start:stop] = draw(st.binary(max_size=2) | st.just(bytes(message[:stop])))
    return bytes(message)


ANYTHING = EVALUATIONS | STREAMS | damaged() | st.binary(max_size=40)

HANDMADE = [
    b"",
    b"\x7a",
    b"\x7a\x00",
    b"\x7a\x01\x00",
    b"\x7a\x81\x00\x00",  # a length in more bytes than it needs
    b"\x7a\x81\x80\x80\x80\x00\x00",
    b"\x7a\x81\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00\x00",
    b"\x7a\x81\x80\x80\x80\x80\x80\x80\x80\x80\x00\x00",
    b"\x7a\x01\x00\x7a\x01\x01",  # the last one counts
    b"\x7a\x01\x00\x0a\x01a",
    b"\x0a\x01a\x0a\x01b\x7a\x01\x00",
    b"\x0a\x01a\x0a\x00\x7a\x01\x00",
    b"\x0a\x01\xff\x7a\x01\x00",  # no UTF-8
    b"\x12\x02\x0a\x00\x12\x02\x0a\x00\x7a\x01\x00",  # merged
    b"\x12\x01\x0a\x7a\x01\x00",  # an operator that is cut off
    b"\x12\x03\x7a\x01\x00\x7a\x01\x00",  # the tag inside of another field
    b"\x02\x00\x7a\x01\x00",  # field 0
    b"\x13\x14\x7a\x01\x00",  # a group
    b"\x12\x02\x7a\x00",
    b"\x12\x03\x7a\x01\x00",
    b"\x12\x05\x08\x00\x7a\x01\x00",  # an offset of 0, written out
    b"\x12\x0d\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7a\x01\x00",
    b"\x12\x0e\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x7a\x01\x00",  # offset -1
    b"\x12\x05\x08\x80\x00\x7a\x01\x00",
    b"\x12\x03\x7a\x01\x00\x12\x03\x7a\x01\x01",
    # Of EvaluateMany: a name that is no UTF-8, long lengths, a header that is no message.
    b"\x0a\x07\x0a\x01\xff\x7a\x01\x05",
    b"\x0a\x87\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00\x0a\x01a\x7a\x01\x05",
    b"\x0a\x87\x00\x0a\x81\x00a\x7a\x81\x00\x05",
    b"\x0a\x09\x0a\x01a\x12\x01\xff\x7a\x01\x05",
]


def check_evaluation(kind, message, parts):
    """Compare parts with what protobuf says of a message."""
    request_id, header, data = parts
    whole, head = parsed(kind, message), parsed(kind, header)
    assert (whole is None) == (head is None)
    if whole is not None:
        assert (whole.request_id.encode(), whole.data) == (request_id, data)
        whole.ClearField("request_id")
        whole.ClearField("data")
        assert whole == head


def check_changed(error, message):
    """Check that a caller learns of a wrong checksum, where a message may have one."""
    assert b"\x75" in message
    told = failure(error)
    assert (told.code, told.reason_name) == (grpc.StatusCode.DATA_LOSS, "CHECKSUM_MISMATCH")


def any_message(test):
    """Run a test on messages that are drawn and on all of HANDMADE."""
    test = given(message=ANYTHING)(test)
    for message in HANDMADE:
        test = example(message=message)(test)
    return pytest.mark.slow(examples(400)(test))


@pytest.mark.parametrize("kind", [v1.EvaluateRequest, v1.EvaluateResponse])
@any_message
def test_parts_that_are_read_by_hand_are_those_that_protobuf_reads(kind, message):
    found = read_evaluation(message)
    if found is not None:
        check_evaluation(kind, message, found[0])


@any_message
def test_a_request_is_refused_exactly_where_protobuf_refuses_it(message):
    try:
        parts, _ = codec.read_evaluate(message)
        codec.parse(v1.EvaluateRequest, parts[1])
    except CHANGED as error:
        check_changed(error, message)
    except InvalidDataError:
        assert parsed(v1.EvaluateRequest, message) is None
    else:
        assert parsed(v1.EvaluateRequest, message) is not None
        check_evaluation(v1.EvaluateRequest, message, parts)


@any_message
def test_a_message_of_a_stream_is_refused_exactly_where_protobuf_refuses_it(message):
    whole = parsed(v1.EvaluateStreamRequest, message)
    kind = None if whole is None else whole.WhichOneof("message")
    for name in ("open", "chunk"):
        try:
            if name == "open":
                came = v1.EvaluateStreamRequest(open=codec.read_open(message))
            else:
                offset, data = codec.read_chunk(message, None)
                came = chunk(offset, data.tobytes())
        except CHANGED as error:
            check_changed(error, message)
        except codec.NoMessageError:
            assert whole is None
        except UnknownFieldError:
            assert whole is not None
        except InvalidDataError:
            assert whole is None or kind != name
        else:
            assert came == whole


@any_message
def test_a_chunk_that_is_read_by_hand_is_the_one_that_protobuf_reads(message):
    read = read_chunk(message)
    if read is not None:
        told = v1.Chunk(offset=read[0], data=read[1].tobytes())
        assert parsed(v1.EvaluateStreamResponse, message) == v1.EvaluateStreamResponse(chunk=told)


def merged(kind, parts):
    """Return the message whose header, name and data were read by hand; None if that is none."""
    name, header, data = parts
    message = parsed(kind, header)
    if message is not None:
        message.MergeFrom(kind(request_id=name.decode(), data=bytes(data)))
    return message


def read_result(message):
    """Read the answer to a request without a checksum."""
    return framing.read_many_result(message, lambda _: None)


@any_message
def test_what_is_read_by_hand_of_many_protobuf_reads_alike(message):
    if (request := framing.read_many_request(message)) is not None:
        header = merged(v1.EvaluateRequest, request[0])
        whole = parsed(v1.EvaluateManyRequest, message)
        assert whole == (header and v1.EvaluateManyRequest(evaluation=header))
    if (answer := read_result(message)) is not None:
        result, name = merged(v1.EvaluateResponse, answer[0]), answer[0][0].decode()
        whole = parsed(v1.EvaluateManyResponse, message)
        assert whole == (result and v1.EvaluateManyResponse(request_id=name, result=result))


@given(
    name=st.text(st.characters(codec="ascii"), min_size=1, max_size=200),
    data=st.binary(min_size=1, max_size=300),
    draw=st.data(),
)
def test_a_frame_of_many_is_what_protobuf_writes_and_is_read_back_only_whole(name, data, draw):
    header = v1.EvaluateRequest(operator=REQUEST.operator, input=REQUEST.input)
    asks = (name.encode(), header.SerializeToString(), memoryview(data))
    asked = v1.EvaluateManyRequest(evaluation=merged(v1.EvaluateRequest, asks))
    output = v1.EvaluateResponse(output=RESPONSE.output)
    answers = (name.encode(), output.SerializeToString(), memoryview(data))
    result = merged(v1.EvaluateResponse, answers)
    answered = v1.EvaluateManyResponse(request_id=name, result=result)
    forms = [
        (asked, framing.many_request_frame(*asks)[0], asks, framing.read_many_request),
        (answered, framing.many_result_frame(*answers), answers, read_result),
    ]
    for whole, frame, parts, read in forms:
        assert frame == whole.SerializeToString()
        found, _ = read(frame)
        assert found == parts
        # By reference.
        assert found[2].obj is frame
        assert read(frame[: draw.draw(st.integers(0, len(frame) - 1))]) is None


THREE = b"\x01\x02\x03"
NO_OPERATOR = b"\x12\x00"
# CRC32C of the 9 digits, from RFC 3720's polynomial: the value that every catalogue gives.
CHECK = 0xE3069283


def test_the_function_is_crc32c():
    assert checksums.crc32c(b"123456789") == CHECK == crc32c(b"123456789")
    assert checksums.crc32c(memoryview(b"56789"), checksums.crc32c(b"1234")) == CHECK
    assert checksums.crc32c(b"") == checksums.crc32c(memoryview(b"")) == 0


def bare(message):
    """Write a message without its checksum."""
    unsealed = deepcopy(message)
    unsealed.ClearField("checksum")
    return unsealed.SerializeToString()


def test_an_evaluation_is_the_message_of_the_schema_and_its_response_continues_it():
    frame, checksum = framing.evaluation_frame(b"a", NO_OPERATOR, THREE, 0)
    message = v1.EvaluateRequest.FromString(frame)
    assert message.checksum == checksum == crc32c(bare(message))
    written = checksum.to_bytes(4, "little").hex()
    expected = bytes.fromhex(f"0a 01 61 12 00 75 {written} 7a 03 01 02 03")
    assert frame == message.SerializeToString() == expected
    assert framing.read_evaluation(frame, 0) == ((b"a", NO_OPERATOR, memoryview(THREE)), checksum)
    answer, _ = framing.evaluation_frame(b"a", NO_OPERATOR, THREE, checksum)
    response = v1.EvaluateResponse.FromString(answer)
    assert response.checksum == crc32c(bare(message) + bare(response))
    with pytest.raises(DataLossError):
        framing.read_evaluation(answer, 0)
    # Without data it may end with its checksum.
    empty = v1.EvaluateRequest(request_id="a")
    empty.checksum = crc32c(bare(empty))
    found = framing.read_evaluation(empty.SerializeToString(), 0)
    assert found == ((b"a", b"", memoryview(b"")), empty.checksum)


def test_open_and_chunks_are_messages_of_the_schema():
    request = v1.EvaluateStreamRequest(open=v1.Open(request_id="a", resume_from=5))
    checksum = checksums.seal(request.open)
    assert checksum == crc32c(bare(request.open))
    framing.verify_sealed(request.SerializeToString(), checksum)
    frame = framing.chunk_frame(300, THREE, checksum)
    message = v1.EvaluateStreamRequest.FromString(frame)
    assert message.SerializeToString() == frame
    assert message.chunk.checksum == crc32c(bare(request.open) + bare(message.chunk))
    assert framing.read_chunk(frame, checksum) == (300, memoryview(THREE))
    for wrong, after in ((frame, checksum + 1), (framing.chunk_frame(300, THREE), checksum)):
        with pytest.raises(DataLossError):
            read_chunk(wrong, after)


def test_requests_and_results_among_many_are_messages_of_the_schema():
    frame, checksum = framing.many_request_frame(b"a", NO_OPERATOR, THREE, 0)
    request = v1.EvaluateManyRequest.FromString(frame)
    answer = framing.many_result_frame(b"a", NO_OPERATOR, THREE, checksum)
    result = v1.EvaluateManyResponse.FromString(answer)
    assert (request.SerializeToString(), result.SerializeToString()) == (frame, answer)
    assert checksum == crc32c(bare(request.evaluation))
    parts = b"a", NO_OPERATOR, memoryview(THREE)
    assert framing.read_many_request(frame, 0) == (parts, checksum)
    assert framing.read_many_result(answer, {b"a": checksum}.get)[0] == parts


FRAMES = {
    "evaluation": (
        framing.evaluation_frame(b"a", NO_OPERATOR, THREE, 7)[0],
        lambda message: read_evaluation(message, 7),
    ),
    "result among many": (
        framing.many_result_frame(b"a", NO_OPERATOR, THREE, 7),
        lambda message: framing.read_many_result(message, {b"a": 7}.get),
    ),
    "chunk": (framing.chunk_frame(300, THREE, 7), lambda message: read_chunk(message, 7)),
}


@pytest.mark.parametrize(("frame", "read"), FRAMES.values(), ids=list(FRAMES))
def test_no_message_is_taken_with_a_changed_byte(frame, read):
    assert read(frame)[1] is not None
    for at in range(len(frame)):
        for value in {*range(256)} - {frame[at]}:
            with suppress(DataLossError):
                found = read(frame[:at] + bytes((value,)) + frame[at + 1 :])
                # Without a checksum it is refused later; a chunk has data there.
                assert found is None or found[1] is None


@pytest.mark.parametrize("available", [True, False])
def test_a_server_tells_whether_it_computes_checksums(monkeypatch, available):
    monkeypatch.setattr(checksums, "AVAILABLE", available)
    with serving() as server, Client(server.address) as client:
        assert client.server_info().checksums is available
