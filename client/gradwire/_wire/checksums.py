"""CRC32C checksums of messages.

A checksum covers all bytes of its message but those of its own field.

The checksums of TCP and Ethernet miss some of the changes that faulty memory in routers and network
cards makes; TLS finds all of them. The field stands directly before the data, or ends a message
without data:

    evaluation  [0a <length> <request_id>] <header> 75 <checksum> 7a <length> <bytes>
    open        0a <length> <other fields> 75 <checksum>
    opened      0a <length> <other fields> 75 <checksum>
    chunk       12 <length> [08 <offset>] 75 <checksum> 7a <length> <bytes>

Lengths and tags outside an evaluation, open, opened or chunk are not covered; they are checked
against the size of the message. A checksum continues that of an earlier message: a response that of
its request, opened that of open, chunks that of the open or opened of their direction. So a message
of another call does not match, even where it is whole. Chunks contain their offsets, which have no
gaps, so that none is lost, repeated or moved unseen.

google-crc32c computes them, if its compiled code is there; its Python code would take longer than
the evaluation.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from gradwire import v1
from gradwire._wire.framing import (
    Buffer,
    Parts,
    enclosed,
    named,
    skip_header,
    skip_name,
    skip_offset,
    varint,
)
from gradwire.errors import DataLossError

FIELD = v1.EvaluateRequest.CHECKSUM_FIELD_NUMBER
_TAG, _BULK, _ENCLOSED, _SECOND = 0x75, 0x7A, 0x0A, 0x12
_FIELD_BYTES = 5


def _compiled() -> Callable[[int, Any], int] | None:
    try:
        library: Any = import_module("google_crc32c")
    except ImportError:
        return None
    extend: Callable[[int, Any], int] = library.extend
    return extend if library.implementation == "c" else None


_EXTEND = _compiled()
AVAILABLE = _EXTEND is not None


def crc32c(data: Buffer, after: int = 0) -> int:
    """Return the CRC32C of bytes that follow those with the CRC32C `after`."""
    assert _EXTEND is not None  # noqa: S101 - callers look at AVAILABLE
    # It takes no memoryview, but arrays, without a copy.
    return _EXTEND(after, data if type(data) is bytes else np.frombuffer(data, np.uint8))


def _sealed(before: bytes, data: Buffer, after: int) -> tuple[list[Buffer], int]:
    """Return the parts of a message with data, and its checksum."""
    behind = b"\x7a%b" % varint(len(data))
    checksum = crc32c(data, crc32c(before + behind, after))
    return [b"%b\x75%b%b" % (before, checksum.to_bytes(4, "little"), behind), data], checksum


def _enclosing(tag: bytes, parts: list[Buffer]) -> bytes:
    """Encode a field that encloses these parts."""
    return b"".join((tag, varint(sum(map(len, parts))), *parts))


def evaluation_frame(
    request_id: bytes, header: bytes, data: Buffer, *, after: int = 0
) -> tuple[bytes, int]:
    """Encode an evaluation; return its checksum too."""
    parts, checksum = _sealed(named(request_id) + header, data, after)
    return b"".join(parts), checksum


def many_request_frame(request_id: bytes, header: bytes, data: Buffer) -> tuple[bytes, int]:
    """Encode a request among many; return its checksum too."""
    parts, checksum = _sealed(named(request_id) + header, data, 0)
    return _enclosing(b"\x0a", parts), checksum


def many_result_frame(request_id: bytes, header: bytes, data: Buffer, *, after: int) -> bytes:
    """Encode a result among many."""
    name = named(request_id)
    parts, _ = _sealed(name + header, data, after)
    return _enclosing(name + b"\x12", parts)


def chunk_frame(offset: int, data: Buffer, *, after: int) -> bytes:
    """Encode a stream's message that carries these bytes from this offset on."""
    parts, _ = _sealed(b"\x08%b" % varint(offset) if offset else b"", data, after)
    return _enclosing(b"\x12", parts)


def seal(message: v1.Open | v1.Opened, *, after: int = 0) -> int:
    """Set the checksum of a message without data; return it."""
    message.ClearField("checksum")
    message.checksum = crc32c(message.SerializeToString(), after)
    return message.checksum


def verify_sealed(message: bytes, checksum: int, *, after: int = 0) -> None:
    """Check the checksum of an open or opened.

    The message of the stream holds nothing else.

    Raises DataLossError.
    """
    start, last = _enclosed(message, 0, _ENCLOSED), b"\x75%b" % checksum.to_bytes(4, "little")
    covered = memoryview(message)[start:-_FIELD_BYTES]
    if start is None or not message.endswith(last) or crc32c(covered, after) != checksum:
        raise _mismatch()


def read_evaluation(message: bytes, *, after: int = 0) -> tuple[Parts, int] | None:
    """Return parts and checksum of an evaluation.

    None if none stands before the data.

    Raises DataLossError unless it is the CRC32C of the bytes, which follow those of `after`.
    """
    return _read_evaluation(message, 0, after)


def read_many_request(message: bytes) -> tuple[Parts, int] | None:
    """Return parts and checksum of a request of EvaluateMany."""
    start = _enclosed(message, 0, _ENCLOSED)
    return None if start is None else _read_evaluation(message, start, 0)


def read_many_result(message: bytes, after: Callable[[bytes], int | None]) -> Parts | None:
    """Return the parts of a result among many, as of an evaluation.

    after  returns the checksum of the request with a name; None if it had none
    """
    try:
        name, at = skip_name(message, 0)
    except IndexError:
        return None
    start, checksum = _enclosed(message, at, _SECOND), after(name)
    if start is None or checksum is None:
        return None
    found = _read_evaluation(message, start, checksum)
    if found is None:
        return None
    if found[0][0] != name:
        raise _mismatch()
    return found[0]


def _read_evaluation(message: bytes, start: int, after: int) -> tuple[Parts, int] | None:
    try:
        name, begin = skip_name(message, start)
        at = skip_header(message, begin)
        if message[at] != _TAG:
            return None
    except IndexError:
        return None
    checksum = _verified(message, start, at, after)
    if not name.isascii():
        raise _mismatch()
    return (name, message[begin:at], _data(message, at + _FIELD_BYTES)), checksum


def is_chunk(message: bytes) -> bool:
    """Whether a stream's message is a chunk with a checksum."""
    return _chunk(message) is not None


def read_chunk(message: bytes, *, after: int) -> tuple[int, memoryview]:
    """Return offset and bytes of a chunk with a checksum.

    Raise DataLossError for others.
    """
    found = _chunk(message)
    if found is None:
        raise DataLossError("a chunk came without its checksum")
    start, offset, at = found
    _verified(message, start, at, after)
    return offset, _data(message, at + _FIELD_BYTES)


def _chunk(message: bytes) -> tuple[int, int, int] | None:
    """Return the places of the chunk, its offset and its checksum."""
    try:
        start = enclosed(message, 0, _SECOND)
        offset, at = skip_offset(message, start)
        return (start, offset, at) if message[at] == _TAG else None
    except IndexError:
        return None


def _enclosed(message: bytes, at: int, tag: int) -> int | None:
    """Return the start of the last field, which has this tag."""
    try:
        return enclosed(message, at, tag)
    except IndexError:
        return None


def _verified(message: bytes, start: int, at: int, after: int) -> int:
    """Return the checksum at a position; raise DataLossError if other bytes came."""
    behind = at + _FIELD_BYTES
    checksum = int.from_bytes(message[at + 1 : behind], "little")
    if len(message) < behind:
        raise _mismatch()
    found = crc32c(message[start:at], after)
    if len(message) > behind:
        found = crc32c(memoryview(message)[behind:], found)
    if found != checksum:
        raise _mismatch()
    return checksum


def _data(message: bytes, at: int) -> memoryview:
    """Return the data, which stands here or is empty."""
    if at == len(message):
        return memoryview(b"")
    start = _enclosed(message, at, _BULK)
    if start is None:
        raise DataLossError("a message has something else than data behind its checksum")
    return memoryview(message)[start:]


def _mismatch() -> DataLossError:
    return DataLossError("a message changed on its way: its checksum is another one")
