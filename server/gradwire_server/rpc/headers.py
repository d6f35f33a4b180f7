"""How many bytes of a message may be something else than the tensor's: known before it is parsed.

Parsing holds the event loop. 16 MB of fields that hold nothing took protobuf 0.12 s, as many that
it does not know 4 s until the first of them could be told; of 16 KiB the worst take 13 ms. Real
headers have some hundred bytes.
"""

from __future__ import annotations

from gradwire import v1
from gradwire._framing import read_varint
from gradwire_server.config.settings import MAX_HEADER_BYTES
from gradwire_server.errors import InvalidDataError

_DATA = v1.EvaluateRequest.DATA_FIELD_NUMBER
_VARINT, _EIGHT_BYTES, _LENGTH_DELIMITED, _GROUP, _GROUP_END, _FOUR_BYTES = range(6)
_VARINT_BYTES = 10


def check(header_bytes: int) -> None:
    """Raise InvalidDataError where a header of so many bytes, or more, is too long."""
    if header_bytes > MAX_HEADER_BYTES:
        raise InvalidDataError(
            "message",
            f"at least {header_bytes} bytes beside the tensor's came; at most {MAX_HEADER_BYTES} "
            "(max_header_bytes) are read",
            limit="max_header_bytes",
            allowed=MAX_HEADER_BYTES,
        )


def beside_data(message: bytes, *, inside: int = 0) -> int:
    """Count the bytes of a message but those of field 15, up to the first too many.

    inside  number of the field whose field 15 it is; 0 for the message's own

    What is no message is counted up to where that shows, which is where protobuf stops too.
    """
    at = beside = 0
    data_until = 0 if inside else len(message)
    try:
        while at < len(message) and beside <= MAX_HEADER_BYTES:
            start = at
            number, kind, at = _read_tag(message, at)
            apart = 0
            if kind == _VARINT:
                _, at = read_varint(message, at, _VARINT_BYTES)
            elif kind == _LENGTH_DELIMITED:
                length, at = read_varint(message, at, _VARINT_BYTES)
                if number == inside and start >= data_until:
                    # Its fields are next, since it is not stepped over.
                    data_until, length = at + length, 0
                elif number == _DATA and start < data_until:
                    apart = length
                at += length
            elif kind in {_GROUP, _GROUP_END}:
                # Of an older protobuf, and in no message of ours: nothing behind one is data.
                inside = data_until = 0
            else:
                at += {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}[kind]
            if at > len(message):
                break
            beside += at - start - apart
    except (IndexError, KeyError):
        pass
    return beside


def _read_tag(message: bytes, at: int) -> tuple[int, int, int]:
    """Return the number and the kind of the field that starts here, and where its value does."""
    tag, at = read_varint(message, at, _VARINT_BYTES)
    return tag >> 3, tag & 7, at
