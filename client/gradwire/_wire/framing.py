"""Messages to and from bytes, without copying their bulk bytes through protobuf.

Bulk bytes are the last field of their message and its number is 15, so that they end the message. A
checksum stands directly before them:

    evaluation              [0a <length> <request_id>] <header> [75 <checksum>] 7a <length> <bytes>
    request among many      0a <length> <evaluation>
    result among many       0a <length> <request_id> 12 <length> <evaluation>
    a stream's chunk        12 <length> [08 <offset>] [75 <checksum>] 7a <length> <bytes>
    open, opened            0a <length> <other fields> 75 <checksum>

An evaluation is an EvaluateRequest or an EvaluateResponse. Among many, in EvaluateManyRequest and
EvaluateManyResponse, it has a request_id; a result has it twice.

The header is the part between: fields 2 to 5 of a request, or the descriptor of a response, field
2. EvaluateStreamRequest and EvaluateStreamResponse hold their chunk in the same field, so one frame
serves both ways.

This module writes the same bytes as protobuf. It leaves legal messages in other encodings to
protobuf, and reads the others as protobuf does, provided that protobuf reads the header.

Lengths and tags outside an evaluation, open, opened or chunk are not covered by its checksum; they
are checked against the size of the message. A checksum continues that of an earlier message: a
response that of its request, opened that of open, chunks that of the open or opened of their
direction. So a message of another call does not match, even where it is whole. Chunks contain their
offsets, which have no gaps, so that none is lost, repeated or moved unseen.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from gradwire._wire.checksums import Buffer, crc32c
from gradwire.errors import DataLossError, ServerError

M = TypeVar("M", bound=Message)

# request_id, header and bulk bytes; the last by reference
Parts = tuple[bytes, bytes, memoryview]
# Parts of an evaluation, and its checksum if it has one.
CheckedParts = tuple[Parts, int | None]

# Tags: the number of a field << 3, and 2 for bytes and messages, 5 for four bytes.
_REQUEST_ID, _CHECKSUM, _BULK = 0x0A, 0x75, 0x7A
_HEADER = frozenset((0x12, 0x1A, 0x22, 0x2A))
_CHUNK, _OFFSET = 0x12, 0x08
_AMONG_MANY, _RESULT, _OPEN = 0x0A, 0x12, 0x0A

_CHECKSUM_BYTES = 5
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


def evaluation_frame(
    request_id: bytes, header: bytes, data: Buffer, after: int | None = None
) -> tuple[bytes, int | None]:
    """Encode an evaluation; return its checksum too.

    Its data has at least one byte, and its request_id is ASCII.

    after  checksum that its own continues, 0 for a request; None for no checksum
    """
    head, checksum = _head(named(request_id) + header, data, after)
    return b"".join((head, data)), checksum


def many_request_frame(
    request_id: bytes, header: bytes, data: Buffer, after: int | None = None
) -> tuple[bytes, int | None]:
    """Encode a request among many, as an evaluation; it has a request_id."""
    head, checksum = _head(named(request_id) + header, data, after)
    return _enclosing(b"\x0a", head, data), checksum


def many_result_frame(
    request_id: bytes, header: bytes, data: Buffer, after: int | None = None
) -> bytes:
    """Encode a result among many, as an evaluation; it has a request_id."""
    name = named(request_id)
    head, _ = _head(name + header, data, after)
    return _enclosing(name + b"\x12", head, data)


def chunk_frame(offset: int, data: Buffer, after: int | None = None) -> bytes:
    """Encode a stream's message that carries these bytes from this offset on.

    after  checksum that its own continues; None for no checksum
    """
    head, _ = _head(b"\x08%b" % varint(offset) if offset else b"", data, after)
    return _enclosing(b"\x12", head, data)


def _head(before: bytes, data: Buffer, after: int | None) -> tuple[bytes, int | None]:
    """Encode what stands before a message's data; return its checksum too."""
    behind = b"\x7a%b" % varint(len(data))
    if after is None:
        return before + behind, None
    checksum = crc32c(data, crc32c(before + behind, after))
    return b"%b\x75%b%b" % (before, checksum.to_bytes(4, "little"), behind), checksum


def _enclosing(tag: bytes, head: bytes, data: Buffer) -> bytes:
    """Encode a last field around head and data."""
    return b"".join((tag, varint(len(head) + len(data)), head, data))


def named(request_id: bytes) -> bytes:
    """Encode a request_id as the first field; nothing where it is empty."""
    return b"\x0a%b%b" % (varint(len(request_id)), request_id) if request_id else b""


def read_evaluation(message: bytes, after: int | None = None) -> CheckedParts | None:
    """Return an evaluation's parts, and its checksum if it has one.

    None for messages left to protobuf: not in this form, or with a request_id that is not ASCII.

    after  checksum that its own continues; None leaves messages with checksums to protobuf

    Raises DataLossError if the checksum is another one.
    """
    try:
        return _read_evaluation(message, 0, after)
    except IndexError:
        return None


def read_many_request(message: bytes, after: int | None = None) -> CheckedParts | None:
    """Return the parts of a request among many, as of an evaluation."""
    try:
        found = _read_evaluation(message, enclosed(message, 0, _AMONG_MANY), after)
    except IndexError:
        return None
    return found if found[0][0] else None


def read_many_result(message: bytes, after: Callable[[bytes], int | None]) -> CheckedParts | None:
    """Return the parts of a result among many, as of an evaluation.

    after  returns the checksum of the request with a name; None if it had none
    """
    try:
        name, at = skip_name(message, 0)
        found = _read_evaluation(message, enclosed(message, at, _RESULT), after(name))
    except IndexError:
        return None
    return found if found[0][0] == name != b"" else None


def read_chunk(message: bytes, after: int | None = None) -> tuple[int, memoryview] | None:
    """Return offset and bytes of a stream's message, the bytes by reference.

    None for a message that is no chunk, or a chunk that protobuf would encode differently.

    after  checksum that its own continues; None leaves chunks with checksums to protobuf

    Raises DataLossError if its checksum is missing or another one.
    """
    try:
        start = enclosed(message, 0, _CHUNK)
        offset, at = 0, start
        if message[start] == _OFFSET:
            offset, at = read_varint(message, start + 1, OFFSET_BYTES)
        data, checksum = _read_data(message, start, at, after)
    except IndexError:
        return None
    if checksum is None and after is not None:
        raise DataLossError("a chunk came without its checksum")
    return offset, data


def verify_sealed(message: bytes, checksum: int, *, after: int = 0) -> None:
    """Check the checksum of an open or opened.

    The message of the stream holds nothing else.

    Raises DataLossError.
    """
    last = b"\x75%b" % checksum.to_bytes(4, "little")
    try:
        covered = memoryview(message)[enclosed(message, 0, _OPEN) : -_CHECKSUM_BYTES]
    except IndexError:
        raise _mismatch() from None
    if not message.endswith(last) or crc32c(covered, after) != checksum:
        raise _mismatch()


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


def _read_evaluation(message: bytes, start: int, after: int | None) -> CheckedParts:
    """Read an evaluation from this offset to the message's end."""
    request_id, begin = skip_name(message, start)
    stop = skip_header(message, begin)
    data, checksum = _read_data(message, start, stop, after)
    if not request_id.isascii():
        raise IndexError(start)
    return (request_id, message[begin:stop], data), checksum


def _read_data(
    message: bytes, start: int, at: int, after: int | None
) -> tuple[memoryview, int | None]:
    """Return data from an offset on, and the checksum before it.

    start  begin of what the checksum covers

    Raises IndexError if anything else is there, DataLossError if the checksum is another one.
    """
    view = memoryview(message)
    if after is None or message[at] != _CHECKSUM:
        return view[enclosed(message, at, _BULK) :], None
    behind = at + _CHECKSUM_BYTES
    checksum = int.from_bytes(message[at + 1 : behind], "little")
    if crc32c(view[behind:], crc32c(message[start:at], after)) != checksum:
        raise _mismatch()
    # Without data it ends the message.
    first = behind if behind == len(message) else enclosed(message, behind, _BULK)
    return view[first:], checksum


def _mismatch() -> DataLossError:
    return DataLossError("a message changed on its way: its checksum is another one")


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
