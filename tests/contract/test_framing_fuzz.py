"""Bytes that are read by hand mean what they mean to protobuf, and are refused where it refuses.

Messages are what sloppy writers and attackers write, sound ones with bytes changed, and noise.
"""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gradwire import DataLossError, v1
from gradwire_server.errors import ChecksumError, InvalidDataError, UnknownFieldError
from gradwire_server.rpc import codec
from gradwire_server.rpc.status_map import failure
from support.raw_calls import chunk, opening, published_request

RESPONSE = v1.EvaluateResponse(request_id="a", output=v1.TensorDescriptor(sizes=(2, 3)), data=b"12")
REQUESTS = [published_request(), opening(published_request()), chunk(300, bytes(9))]
SOUND = [message.SerializeToString() for message in (*REQUESTS, RESPONSE)]
# The shared code raises the first, the server's own code the second.
CHANGED = DataLossError, ChecksumError


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Change, lose or double some bytes of a sound message."""
    message = bytearray(draw(st.sampled_from(SOUND)))
    for _ in range(draw(st.integers(0, 2))):
        start = draw(st.integers(0, len(message)))
        stop = draw(st.integers(start, min(len(message), start + 2)))
        message[start:stop] = draw(st.binary(max_size=2) | st.just(bytes(message[:stop])))
    return bytes(message)


ANYTHING = damaged() | st.binary(max_size=40)

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
    b"\x12\x07\x08\x81\x82\x02\x7a\x01\x00",
    b"\x12\x03\x7a\x01\x00\x12\x03\x7a\x01\x01",
]


def parsed(kind: type[Any], data: bytes) -> Any:
    """Return what protobuf makes of bytes; None where it refuses them."""
    try:
        return kind.FromString(data)
    except DecodeError:
        return None


def check_changed(error: Exception, message: bytes) -> None:
    """Check that a caller learns of a wrong checksum, where a message may have one."""
    assert b"\x75" in message
    told = failure(error)
    assert (told.code, told.reason_name) == (grpc.StatusCode.DATA_LOSS, "CHECKSUM_MISMATCH")


def any_message(test: Any) -> Any:
    """Run a test on messages that are drawn and on all of HANDMADE."""
    test = given(message=ANYTHING)(test)
    for message in HANDMADE:
        test = example(message=message)(test)
    return pytest.mark.slow(settings(max_examples=400)(test))


@any_message
def test_a_request_is_refused_exactly_where_protobuf_refuses_it(message: bytes) -> None:
    try:
        parts, _ = codec.read_evaluate(message)
        codec.parse(v1.EvaluateRequest, parts[1])
    except CHANGED as error:
        check_changed(error, message)
    except InvalidDataError:
        assert parsed(v1.EvaluateRequest, message) is None
    else:
        request_id, header, data = parts
        whole, head = parsed(v1.EvaluateRequest, message), parsed(v1.EvaluateRequest, header)
        assert whole is not None
        assert (whole.request_id.encode(), whole.data) == (request_id, data)
        whole.ClearField("request_id")
        whole.ClearField("data")
        assert whole == head


@any_message
def test_a_message_of_a_stream_is_refused_exactly_where_protobuf_refuses_it(message: bytes) -> None:
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
