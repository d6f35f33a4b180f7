"""Messages to and from bytes, without copying their bulk bytes through protobuf.

Bulk bytes are the last field of their message and its number is 15, so that they end the message:

    evaluation              [0a <length> <request_id>] <header> 7a <length> <bytes>
    request among many      0a <length> <evaluation>
    result among many       0a <length> <request_id> 12 <length> <evaluation>
    a stream's chunk        12 <length> [08 <offset>] 7a <length> <bytes>

An evaluation is an EvaluateRequest or an EvaluateResponse. Among many, in EvaluateManyRequest and
EvaluateManyResponse, it has a request_id; a result has it twice.

The header is the part between: fields 2 to 5 of a request, or the descriptor of a response, field
2. EvaluateStreamRequest and EvaluateStreamResponse hold their chunk in the same field, so one frame
serves both ways.

This module writes the same bytes as protobuf. It leaves legal messages in other encodings to
protobuf, and reads the others as protobuf does, provided that protobuf reads the header. Messages
with checksums are those of `checksums`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from gradwire.errors import ServerError

M = TypeVar("M", bound=Message)

Buffer = bytes | bytearray | memoryview
# request_id, header and bulk bytes; the last by reference
Parts = tuple[bytes, bytes, memoryview]

# Tags: the number of a field << 3, and 2 for bytes and messages.
_REQUEST_ID, _BULK = 0x0A, 0x7A
_HEADER = frozenset((0x12, 0x1A, 0x22, 0x2A))
_CHUNK, _OFFSET = 0x12, 0x08
_AMONG_MANY, _RESULT = 0x0A, 0x12

_MOST_FIELDS = 8
# Bytes that a length may take, below protobuf's 2 GiB, and an offset, below 2**63.
LENGTH_BYTES, OFFSET_BYTES = 4, 9


def parsed(kind: type[M], message: bytes) -> M:
    """Decode a server's message; raise ServerError for malformed bytes."""
    try:
        return kind.FromString(message)
    except DecodeError as error:
        raise ServerError(
            f"the server sent {len(message)} bytes that are not a valid message"
        ) from error


def evaluation_frame(request_id: bytes, header: bytes, data: Buffer) -> bytes:
    """Encode an evaluation.

    Its data has at least one byte, and its request_id is ASCII.
    """
    return b"".join((_head(request_id, header, data), data))


def many_request_frame(request_id: bytes, header: bytes, data: Buffer) -> bytes:
    """Encode a request among many; it has a request_id."""
    head = _head(request_id, header, data)
    return b"".join((b"\x0a", varint(len(head) + len(data)), head, data))


def many_result_frame(request_id: bytes, header: bytes, data: Buffer) -> bytes:
    """Encode a result among many; it has a request_id."""
    head = _head(request_id, header, data)
    length = varint(len(head) + len(data))
    return b"".join((named(request_id), b"\x12", length, head, data))


def _head(request_id: bytes, header: bytes, data: Buffer) -> bytes:
    """Encode what stands before the data of an evaluation."""
    return b"%b%b\x7a%b" % (named(request_id), header, varint(len(data)))


def named(request_id: bytes) -> bytes:
    """Encode a request_id as the first field; nothing where it is empty."""
    return b"\x0a%b%b" % (varint(len(request_id)), request_id) if request_id else b""


def read_evaluation(message: bytes) -> Parts | None:
    """Return the parts of an evaluation.

    None for messages left to protobuf: not in this form, or with a request_id that is not ASCII.
    """
    try:
        return _read_evaluation(message, 0)
    except IndexError:
        return None


def read_many_request(message: bytes) -> Parts | None:
    """Return the parts of a request among many, as of an evaluation."""
    try:
        parts = _read_evaluation(message, enclosed(message, 0, _AMONG_MANY))
    except IndexError:
        return None
    return parts if parts[0] else None


def read_many_result(message: bytes) -> Parts | None:
    """Return the parts of a result among many, as of an evaluation."""
    try:
        request_id, at = skip_name(message, 0)
        parts = _read_evaluation(message, enclosed(message, at, _RESULT))
    except IndexError:
        return None
    return parts if parts[0] == request_id != b"" else None


def enclosed(message: bytes, at: int, tag: int) -> int:
    """Return the start of the content of the last field.

    Its tag is at this offset.

    Raises IndexError if another tag is there, or another field behind it.
    """
    if message[at] == tag:
        length, at = read_varint(message, at + 1, LENGTH_BYTES)
        if at + length == len(message):
            return at
    raise IndexError(at)


def _read_evaluation(message: bytes, at: int) -> Parts:
    """Read an evaluation from this offset to the message's end."""
    request_id, start = skip_name(message, at)
    stop = skip_header(message, start)
    at = enclosed(message, stop, _BULK)
    if not request_id.isascii():
        raise IndexError(start)
    return request_id, message[start:stop], memoryview(message)[at:]


def skip_name(message: bytes, at: int) -> tuple[bytes, int]:
    """Return the request_id, or b"", and the place after it."""
    if message[at] != _REQUEST_ID:
        return b"", at
    length, at = read_varint(message, at + 1, LENGTH_BYTES)
    return message[at : at + length], at + length


def skip_header(message: bytes, at: int) -> int:
    """Return the end of the header that starts here.

    Raise IndexError if the message ends before.
    """
    # Each further field would extend an earlier one: that takes long here, and is left to protobuf.
    left = _MOST_FIELDS
    while message[at] in _HEADER and left:
        length, at = read_varint(message, at + 1, LENGTH_BYTES)
        at += length
        left -= 1
    return at


def chunk_frame(offset: int, data: Buffer) -> bytes:
    """Encode a stream's message that carries these bytes from this offset on."""
    place = b"\x08%b" % varint(offset) if offset else b""
    header = b"%b\x7a%b" % (place, varint(len(data)))
    return b"".join((b"\x12", varint(len(header) + len(data)), header, data))


def read_chunk(message: bytes) -> tuple[int, memoryview] | None:
    """Return offset and bytes of a stream's message, the bytes by reference.

    None for a message that is no chunk, or a chunk that protobuf would encode differently.
    """
    try:
        offset, at = skip_offset(message, enclosed(message, 0, _CHUNK))
        return offset, memoryview(message)[enclosed(message, at, _BULK) :]
    except IndexError:
        return None


def skip_offset(message: bytes, at: int) -> tuple[int, int]:
    """Return a chunk's offset, or 0, and the place after it."""
    return read_varint(message, at + 1, OFFSET_BYTES) if message[at] == _OFFSET else (0, at)


@lru_cache
def varint(number: int) -> bytes:
    """Encode a number, at least 0, in seven bits per byte.

    Few lengths are different, so results are cached.
    """
    encoded = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def read_varint(message: bytes, at: int, most: int) -> tuple[int, int]:
    """Return the number at this offset, and the offset behind it.

    Raises IndexError if it takes more than `most` bytes, or if the message ends within it.
    """
    number = message[at]
    if number < 0x80:  # noqa: PLR2004 - a byte without the bit that says that more follow
        return number, at + 1
    number &= 0x7F
    for index in range(1, most):
        byte = message[at + index]
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:  # noqa: PLR2004
            return number, at + index + 1
    raise IndexError(at)
