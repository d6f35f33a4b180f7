"""The seam between messages and bytes: grpc gets its serializers from here, and nowhere else.

Messages with bulk bytes are framed by hand, so that these are never copied through protobuf; what
is read that is not in that form is left to protobuf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from gradwire import v1
from gradwire._framing import (
    Parts,
    chunk_frame,
    evaluation_frame,
    read_chunk,
    read_evaluation,
)
from gradwire_server.errors import EvaluationError, InvalidDataError
from gradwire_server.rpc import headers

Bytes = NDArray[np.uint8]

M = TypeVar("M", bound=Message)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Malformed:
    """Bytes that are no message of the type that was due, or none that is read, or did not come.

    error  says why
    """

    error: EvaluationError | MemoryError


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes from an offset on.

    frame  the message they came in, which is as good for a response; None where there is none
    """

    offset: int
    data: Bytes
    frame: bytes | None = None

    def parts(self, size: int) -> Iterator[Chunk]:
        """Cut it into chunks of at most so many bytes."""
        if len(self.data) <= size:
            yield self
            return
        for first in range(0, len(self.data), size):
            yield Chunk(self.offset + first, self.data[first : first + size])


StreamRequest = Chunk | v1.EvaluateStreamRequest


class NoMessageError(InvalidDataError):
    """Bytes came that are no message of the type that was due."""

    def __init__(self, message: bytes, kind: type[Message]) -> None:
        super().__init__(
            "message", f"{len(message)} bytes came that are no {kind.DESCRIPTOR.full_name}"
        )


def parse(kind: type[M], message: bytes, *, inside: int = 0) -> M:
    """Leave a message to protobuf, unless it has too much beside its data.

    inside  number of the field that the data are in; 0 for the message itself

    Raises InvalidDataError, and NoMessageError where it is none.
    """
    headers.check(headers.beside_data(message, inside=inside))
    try:
        return kind.FromString(message)
    except DecodeError as error:
        raise NoMessageError(message, kind) from error


def _reader(kind: type[M], *, inside: int = 0) -> Callable[[bytes], M | Malformed]:
    """Make a deserializer that leaves the error to the handler: grpc itself would say INTERNAL."""

    def read(message: bytes) -> M | Malformed:
        try:
            return parse(kind, message, inside=inside)
        except InvalidDataError as error:
            return Malformed(error)

    return read


_parse_stream_request = _reader(
    v1.EvaluateStreamRequest, inside=v1.EvaluateStreamRequest.CHUNK_FIELD_NUMBER
)


def _read_stream_request(message: bytes) -> StreamRequest | Malformed:
    chunk = read_chunk(message)
    if chunk is None:
        return _parse_stream_request(message)
    offset, data = chunk
    return Chunk(offset, np.frombuffer(data, np.uint8), message)


def _write_stream_response(response: bytes | v1.EvaluateStreamResponse) -> bytes:
    return response if isinstance(response, bytes) else response.SerializeToString()


def sound(message: T | Malformed) -> T:
    """Return the message, or raise the error that says why there is none."""
    if isinstance(message, Malformed):
        raise message.error
    return message


# Headers that a RequestReader knows, the longest, and a request_id with its tag and length.
_MOST_KNOWN = 256
_LONGEST_HEADER = 1 << 10
_LONGEST_NAME = 2 + 0x80

# RequestReader and response() do it.
EVALUATE = (None, None)
EVALUATE_STREAM = (_read_stream_request, _write_stream_response)
# many_items.py reads and many.py writes them, by hand.
EVALUATE_MANY = (None, None)
LIST_OPERATORS = (_reader(v1.ListOperatorsRequest), v1.ListOperatorsResponse.SerializeToString)
GET_SERVER_INFO = (_reader(v1.GetServerInfoRequest), v1.GetServerInfoResponse.SerializeToString)


class RequestReader:
    """Takes EvaluateRequests apart; one with the header and the length of another is not parsed."""

    def __init__(self) -> None:
        # Of messages by their length without request_id: the header, and all before the data.
        self._known: dict[int, tuple[bytes, bytes]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def read(self, message: bytes) -> Parts:
        """Return the request_id, the header and the data of an EvaluateRequest.

        Raises InvalidDataError where it is none.
        """
        # The request_id comes first, and has a length of one byte.
        start = 2 + message[1] if message[:1] == b"\x0a" and len(message) > 1 else 0
        known = self._known.get(len(message) - start)
        if known is not None and start < _LONGEST_NAME and message.startswith(known[1], start):
            request_id = message[2:start]
            if request_id.isascii():
                header, before = known
                return request_id, header, memoryview(message)[start + len(before) :]
        parts = read_evaluation(message)
        if parts is None:
            return parts_of(parse(v1.EvaluateRequest, message))
        request_id, header, data = parts
        if len(header) <= _LONGEST_HEADER and len(request_id) < _LONGEST_NAME - 2:
            start = 2 + len(request_id) if request_id else 0
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[len(message) - start] = header, message[start : len(message) - len(data)]
        return parts


def parts_of(request: v1.EvaluateRequest) -> Parts:
    """Take a request apart that protobuf has read."""
    request_id, data = request.request_id.encode(), memoryview(request.data)
    request.ClearField("request_id")
    request.ClearField("data")
    return request_id, request.SerializeToString(), data


def request_header(header: bytes) -> v1.EvaluateRequest:
    """Decode the header of a request.

    Raises InvalidDataError where it is too long, and NoMessageError where it is none.
    """
    return parse(v1.EvaluateRequest, header)


def response_header(output: v1.TensorDescriptor) -> bytes:
    """Encode the header of a response."""
    return v1.EvaluateResponse(output=output).SerializeToString()


def response(request_id: str, header: bytes, data: memoryview) -> bytes:
    """Make the message that carries a result; request_id is ASCII."""
    return evaluation_frame(request_id.encode("ascii"), header, data)


def chunk_response(chunk: Chunk) -> bytes:
    """Make the message that carries a part of a result."""
    return chunk_frame(chunk.offset, chunk.data.data) if chunk.frame is None else chunk.frame
