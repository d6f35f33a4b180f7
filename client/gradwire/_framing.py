"""Chunks to and from the bytes of their message, without copying them through protobuf.

EvaluateStreamRequest and EvaluateStreamResponse hold their chunk in the same field, and a chunk its
bytes in the last one, so one frame serves both ways:

    12 <length> [08 <offset>] 7a <length> <bytes>

These are the very bytes that protobuf writes.
"""

from __future__ import annotations

from gradwire import v1

_VARINT, _LENGTH_DELIMITED = 0, 2


def _tag(number: int, wire_type: int) -> int:
    return number << 3 | wire_type


_CHUNK = _tag(v1.EvaluateStreamResponse.CHUNK_FIELD_NUMBER, _LENGTH_DELIMITED)
_OFFSET = _tag(v1.Chunk.OFFSET_FIELD_NUMBER, _VARINT)
_DATA = _tag(v1.Chunk.DATA_FIELD_NUMBER, _LENGTH_DELIMITED)


def chunk_frame(offset: int, data: bytes | memoryview) -> bytes:
    """Encode a stream's message that carries these bytes from this offset on."""
    header = bytearray()
    if offset:
        header.append(_OFFSET)
        header += _varint(offset)
    header.append(_DATA)
    header += _varint(len(data))
    return b"".join((bytes((_CHUNK,)), _varint(len(header) + len(data)), header, data))


def read_chunk(message: bytes) -> tuple[int, memoryview] | None:
    """Return offset and bytes of a stream's message, the bytes by reference.

    None where it is something else than a chunk, or a chunk written in another way than protobuf's.
    """
    try:
        return _read_chunk(message)
    except IndexError:
        return None


def _read_chunk(message: bytes) -> tuple[int, memoryview] | None:
    if message[0] != _CHUNK:
        return None
    length, at = _read_varint(message, 1)
    if at + length != len(message):
        return None
    offset = 0
    if message[at] == _OFFSET:
        offset, at = _read_varint(message, at + 1)
    if message[at] != _DATA:
        return None
    length, at = _read_varint(message, at + 1)
    if at + length != len(message) or offset >= 1 << 63:
        return None
    return offset, memoryview(message)[at:]


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits to a byte
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number that starts at this byte, and where the next thing starts."""
    number = shift = 0
    while message[at] & 0x80:
        number |= (message[at] & 0x7F) << shift
        shift += 7
        at += 1
    return number | message[at] << shift, at + 1
