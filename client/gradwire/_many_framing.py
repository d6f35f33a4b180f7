"""EvaluateMany's messages to and from bytes, without copying their tensors through protobuf.

    request     0a <length> <request_id> <header> 7a <length> <data>
    response    <request_id> 12 <length> <request_id> <header> 7a <length> <data>
    request_id  0a <length> <ASCII>
    header      what stands between: of a request fields 2 to 5, of a result its descriptor, field 2

These are the very bytes that protobuf writes. Equal evaluations have equal headers, so both sides
know again what they have seen. A message written in another way is left to protobuf: what is read
here protobuf reads alike, provided that it reads the header.
"""

from __future__ import annotations

from functools import lru_cache

from gradwire import v1

Buffer = bytes | bytearray | memoryview
# request_id, header and data
Parts = tuple[bytes, bytes, memoryview]

_LENGTH_DELIMITED = 2


def _tag(number: int) -> int:
    return number << 3 | _LENGTH_DELIMITED


_EVALUATION = _tag(v1.EvaluateManyRequest.EVALUATION_FIELD_NUMBER)
_RESULT = _tag(v1.EvaluateManyResponse.RESULT_FIELD_NUMBER)
# The same in EvaluateRequest, EvaluateResponse and EvaluateManyResponse, and in the first two.
_NAME = _tag(v1.EvaluateRequest.REQUEST_ID_FIELD_NUMBER)
_DATA = _tag(v1.EvaluateRequest.DATA_FIELD_NUMBER)
_HEADER = frozenset(
    _tag(number)
    for number in (
        v1.EvaluateRequest.OPERATOR_FIELD_NUMBER,
        v1.EvaluateRequest.INPUT_FIELD_NUMBER,
        v1.EvaluateRequest.OUTPUT_FIELD_NUMBER,
        v1.EvaluateRequest.OPTIONS_FIELD_NUMBER,
    )
)
_RESULT_HEADER = frozenset({_tag(v1.EvaluateResponse.OUTPUT_FIELD_NUMBER)})

# Lengths of up to 28 bits; a channel takes no longer message by far.
_LONGEST_VARINT = 4


def request_frame(request_id: bytes, header: bytes, data: Buffer) -> bytes:
    """Encode a request; its request_id is ASCII, and its data has at least one byte."""
    body = b"%b%b\x7a%b" % (_named(request_id), header, varint(len(data)))
    return b"".join((b"\x0a", varint(len(body) + len(data)), body, data))


def result_frame(request_id: bytes, header: bytes, data: Buffer) -> bytes:
    """Encode the answer that carries a result; as for a request."""
    named = _named(request_id)
    body = b"%b%b\x7a%b" % (named, header, varint(len(data)))
    return b"".join((named, b"\x12", varint(len(body) + len(data)), body, data))


def read_request(message: bytes) -> Parts | None:
    """Return the parts of a request, data by reference; None where it is for protobuf to read."""
    try:
        if message[0] != _EVALUATION:
            return None
        length, at = _read_varint(message, 1)
        return _read_body(message, at, _HEADER) if at + length == len(message) else None
    except (IndexError, ValueError):
        return None


def read_result(message: bytes) -> Parts | None:
    """Return the parts of an answer that carries a result; as for a request."""
    try:
        name, at = _read_name(message, 0)
        if message[at] != _RESULT:
            return None
        length, at = _read_varint(message, at + 1)
        parts = _read_body(message, at, _RESULT_HEADER) if at + length == len(message) else None
    except (IndexError, ValueError):
        return None
    return parts if parts is not None and parts[0] == name else None


def _read_body(message: bytes, at: int, header: frozenset[int]) -> Parts | None:
    """Read what starts here and ends with the message: request_id, header and data."""
    name, start = _read_name(message, at)
    at = start
    while (tag := message[at]) in header:
        length, at = _read_varint(message, at + 1)
        at += length
    stop = at
    length, at = _read_varint(message, at + 1)
    if tag != _DATA or at + length != len(message) or not name.isascii():
        return None
    return name, message[start:stop], memoryview(message)[at:]


def _read_name(message: bytes, at: int) -> tuple[bytes, int]:
    if message[at] != _NAME:
        raise ValueError
    length, at = _read_varint(message, at + 1)
    return message[at : at + length], at + length


def _named(request_id: bytes) -> bytes:
    return b"\x0a%b%b" % (varint(len(request_id)), request_id)


@lru_cache
def varint(number: int) -> bytes:
    """Encode a number, at least 0; of lengths few are different."""
    encoded = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits to a byte
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number that starts at this byte, and where the next thing starts."""
    number = message[at]
    if number < 0x80:  # noqa: PLR2004 - a byte without the bit that says that more follow
        return number, at + 1
    number &= 0x7F
    for index in range(1, _LONGEST_VARINT):
        byte = message[at + index]
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:  # noqa: PLR2004
            return number, at + index + 1
    raise ValueError
