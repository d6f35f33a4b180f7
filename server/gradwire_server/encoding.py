"""The seam between messages and bytes: grpc gets its serializers from here, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from gradwire import v1
from gradwire_server.errors import InvalidDataError

Bytes = NDArray[np.uint8]

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Malformed:
    """Bytes that are no message of the type that was due."""

    length: int
    message_type: str


def _reader(kind: type[M]) -> Callable[[bytes], M | Malformed]:
    """Make a deserializer that leaves the error to the handler: grpc itself would say INTERNAL."""

    def read(data: bytes) -> M | Malformed:
        try:
            return kind.FromString(data)
        except DecodeError:
            return Malformed(len(data), kind.DESCRIPTOR.full_name)

    return read


def sound(message: M | Malformed) -> M:
    """Return the message, or raise InvalidDataError where the bytes were none."""
    if isinstance(message, Malformed):
        raise InvalidDataError(
            "message", f"{message.length} bytes came that are no {message.message_type}"
        )
    return message


EVALUATE = (_reader(v1.EvaluateRequest), v1.EvaluateResponse.SerializeToString)
EVALUATE_STREAM = (
    _reader(v1.EvaluateStreamRequest),
    v1.EvaluateStreamResponse.SerializeToString,
)
# many_items.py reads and many.py writes them, by hand.
EVALUATE_MANY = (None, None)
LIST_OPERATORS = (_reader(v1.ListOperatorsRequest), v1.ListOperatorsResponse.SerializeToString)
GET_SERVER_INFO = (_reader(v1.GetServerInfoRequest), v1.GetServerInfoResponse.SerializeToString)


def chunk_bytes(chunk: v1.Chunk) -> Bytes:
    """View the bytes of a chunk."""
    return np.frombuffer(chunk.data, np.uint8)


def chunk_response(offset: int, data: Bytes) -> v1.EvaluateStreamResponse:
    """Make the message that carries result bytes from offset on."""
    return v1.EvaluateStreamResponse(chunk=v1.Chunk(offset=offset, data=data.tobytes()))
