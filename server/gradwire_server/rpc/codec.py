"""Conversion between bytes, messages and engine values; serializers for grpc.

Messages with bulk data are framed by hand, so that protobuf never copies the data; protobuf parses
messages in any other form.

A header is a message without the tensor's bytes. Its size is checked before it is parsed, since
parsing blocks the event loop: 16 MB of empty fields took protobuf 0.12 s, as many unknown fields
4 s until the first could be reported. 16 KiB take at most 13 ms; real headers have some hundred
bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet
from numpy.typing import NDArray

from gradwire import ops, v1
from gradwire._wire import checksums, framing
from gradwire._wire.framing import CheckedParts, Parts, read_varint
from gradwire.errors import InvalidRequestError
from gradwire.tensors import DTYPES, MAX_RANK, data_type_of
from gradwire_server.config.settings import MAX_HEADER_BYTES
from gradwire_server.engine import FILLED, EvaluationRequest, TensorSpec
from gradwire_server.errors import (
    ChecksumError,
    InvalidDataError,
    InvalidFieldError,
    UnknownFieldError,
    UnknownOperatorError,
    counted,
)

MAX_BYTES = 2**63 - 1
MAX_REQUEST_ID = 128

Header = v1.EvaluateRequest | v1.Open


def read_request(header: Header) -> EvaluationRequest:
    """Decode the header of an evaluation.

    Raises EvaluationError for unknown or invalid fields.
    """
    refuse_unknown_fields(header)
    refuse_unknown_fields(header.options, "options")
    operator = _read_operator(header.operator)
    source = read_descriptor(header.input, "input")
    result = None
    if header.HasField("output"):
        result = read_descriptor(header.output, "output")
        for axis in result.broadcast:
            raise InvalidFieldError(
                f"output.strides[{axis}]",
                "0; a result must not overlap itself: at least 1 is needed",
            )
        if len(result.sizes) != len(source.sizes):
            raise InvalidFieldError(
                "output.sizes",
                f"has {counted(len(result.sizes), 'axis')}, but the input has "
                f"{len(source.sizes)}; give the same number",
                came=len(result.sizes),
                expected=len(source.sizes),
            )
    return EvaluationRequest(type(operator).name, operator, source, result)


def refuse_unknown_fields(message: Message, path: str = "") -> None:
    """Raise UnknownFieldError if a message carries fields this server does not know."""
    unknown = UnknownFieldSet(message)
    if len(unknown):
        name, number = message.DESCRIPTOR.full_name, unknown[0].field_number
        where = f" at {path}" if path else ""
        raise UnknownFieldError(
            f"field {number} of {name}{where} is not known to this server; ignoring it could give "
            "other bits than meant",
            message_type=name,
            field_number=number,
        )


def _read_operator(message: v1.Operator) -> ops.Operator:
    member = message.WhichOneof("operator")
    unknown = UnknownFieldSet(message)
    if member is None and len(unknown):
        number = unknown[0].field_number
        raise UnknownOperatorError(
            f"operator number {number} is not known to this server", operator=number
        )
    refuse_unknown_fields(message, "operator")
    if member is None:
        raise InvalidFieldError("operator", f"is missing; give one of {', '.join(ops.OPERATORS)}")
    if member not in ops.OPERATORS:
        raise UnknownOperatorError(
            f"operator {member} is not known to this server", operator=member
        )
    refuse_unknown_fields(getattr(message, member), f"operator.{member}")
    try:
        return ops.from_message(message)
    except InvalidRequestError as error:
        raise InvalidFieldError(error.field or "operator", error.description) from error


def read_request_id(text: str) -> str:
    """Check a request_id; it is written to logs and metadata unchanged."""
    if len(text) > MAX_REQUEST_ID or not (text.isascii() and (text.isprintable() or not text)):
        raise InvalidFieldError(
            "request_id",
            f"{text[:MAX_REQUEST_ID]!r}, {counted(len(text), 'character')}; at most "
            f"{MAX_REQUEST_ID} printable ASCII ones are taken",
        )
    return text


def read_descriptor(message: v1.TensorDescriptor, path: str) -> TensorSpec:
    """Check a descriptor and decode it; path names it in errors."""
    refuse_unknown_fields(message, path)
    dtype = DTYPES.get(message.data_type)
    if dtype is None:
        known = ", ".join(v1.DataType.Name(number) for number in DTYPES)
        raise InvalidFieldError(
            f"{path}.data_type", f"{message.data_type}; one of {known} is needed"
        )
    sizes = tuple(message.sizes)
    if not 1 <= len(sizes) <= MAX_RANK:
        raise InvalidFieldError(
            f"{path}.sizes", f"{counted(len(sizes), 'axis')}; 1 to {MAX_RANK} are taken"
        )
    for axis, size in enumerate(sizes):
        if size < 0:
            raise InvalidFieldError(f"{path}.sizes[{axis}]", f"{size}; at least 0 is needed")
    packed = TensorSpec.packed(dtype, sizes)
    if packed.filled.elements * dtype.itemsize > MAX_BYTES:
        zero = "" if packed.elements else f", its axes of 0 taken for {FILLED}"
        raise InvalidFieldError(
            f"{path}.sizes", f"{sizes} is 2**63 bytes or more{zero}; give shorter axes"
        )
    strides = tuple(message.strides)
    if strides and not packed.elements:
        # No element has an address: the strides only have to be valid numbers.
        _read_strides(strides, (1,) * len(sizes), path)
        return packed
    return TensorSpec(dtype, sizes, _read_strides(strides, sizes, path)) if strides else packed


def _read_strides(strides: tuple[int, ...], sizes: tuple[int, ...], path: str) -> tuple[int, ...]:
    if len(strides) != len(sizes):
        raise InvalidFieldError(
            f"{path}.strides",
            f"{counted(len(strides), 'stride')} for {counted(len(sizes), 'axis')}; one for each is "
            "needed, or none",
        )
    for axis, stride in enumerate(strides):
        if stride < 0:
            raise InvalidFieldError(f"{path}.strides[{axis}]", f"{stride}; at least 0 is needed")
    # From the fastest axis on, each must step over all elements that faster axes reach.
    reach = 0
    spans = sorted(
        (stride, size, axis) for axis, (stride, size) in enumerate(zip(strides, sizes, strict=True))
    )
    for stride, size, axis in spans:
        if size == 1 or stride == 0:
            continue
        if stride <= reach:
            raise InvalidFieldError(
                f"{path}.strides[{axis}]",
                f"{stride}; faster axes reach {reach} elements far, so elements would share "
                f"addresses or interleave: at least {reach + 1} is needed",
            )
        reach += (size - 1) * stride
    if (reach + 1) * 8 > MAX_BYTES:
        raise InvalidFieldError(
            f"{path}.strides", f"{strides} reach 2**63 bytes or more; give smaller ones"
        )
    return strides


def write_descriptor(spec: TensorSpec) -> v1.TensorDescriptor:
    """Encode a descriptor; packed row-major strides are left out."""
    packed = spec.strides == TensorSpec.packed(spec.dtype, spec.sizes).strides
    return v1.TensorDescriptor(
        data_type=data_type_of(spec.dtype), sizes=spec.sizes, strides=() if packed else spec.strides
    )


# Fields with data, by number: None, or the table of a message that contains such fields.
DataFields: TypeAlias = "Mapping[int, DataFields | None]"
DATA: DataFields = {v1.EvaluateRequest.DATA_FIELD_NUMBER: None}

_VARINT, _EIGHT_BYTES, _LENGTH_DELIMITED, _GROUP, _GROUP_END, _FOUR_BYTES = range(6)
_VARINT_BYTES = 10


def beside_data(message: bytes, fields: DataFields = DATA) -> int:
    """Count the bytes of a message outside its data; stop above MAX_HEADER_BYTES.

    Malformed bytes are counted up to the error, where protobuf stops too.
    """
    at = beside = 0
    # Ends and fields with data, of the message and of the nested ones being read.
    opened = [(len(message), fields)]
    try:
        while at < len(message) and beside <= MAX_HEADER_BYTES:
            while at >= opened[-1][0]:
                opened.pop()
            start, apart = at, 0
            tag, at = read_varint(message, at, _VARINT_BYTES)
            kind = tag & 7
            if kind == _VARINT:
                _, at = read_varint(message, at, _VARINT_BYTES)
            elif kind == _LENGTH_DELIMITED:
                length, at = read_varint(message, at, _VARINT_BYTES)
                inner = opened[-1][1].get(tag >> 3, {})
                if inner:
                    # Do not skip the field: its own fields are read next.
                    opened.append((at + length, inner))
                    length = 0
                elif inner is None:
                    apart = length
                at += length
            elif kind in {_GROUP, _GROUP_END}:
                # Groups are deprecated, and no message here has any.
                return len(message)
            else:
                at += {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}[kind]
            if at > len(message):
                break
            beside += at - start - apart
    except (IndexError, KeyError):
        pass
    return beside


Bytes = NDArray[np.uint8]

M = TypeVar("M", bound=Message)


class NoMessageError(InvalidDataError):
    """The bytes are not a message of the expected type."""

    def __init__(self, message: bytes, kind: type[Message]) -> None:
        super().__init__(
            "message", f"has {len(message)} bytes that are no {kind.DESCRIPTOR.full_name}"
        )


def parse(kind: type[M], message: bytes, fields: DataFields = DATA) -> M:
    """Parse a message with protobuf, unless its header is too long.

    fields  its fields with data, which do not belong to the header

    Raises InvalidDataError, and NoMessageError if the bytes are not a message of that kind.
    """
    header_bytes = beside_data(message, fields) if len(message) > MAX_HEADER_BYTES else 0
    if header_bytes > MAX_HEADER_BYTES:
        raise InvalidDataError(
            "message",
            f"at least {header_bytes} bytes beside the tensor's came; at most {MAX_HEADER_BYTES} "
            "(max_header_bytes) are read",
            limit="max_header_bytes",
            allowed=MAX_HEADER_BYTES,
        )
    try:
        return kind.FromString(message)
    except DecodeError as error:
        raise NoMessageError(message, kind) from error


def read_open(message: bytes) -> v1.Open:
    """Decode the first message of a stream, and verify its checksum.

    Raises InvalidDataError, UnknownFieldError or DataLossError.
    """
    request, came = _read_stream_request(message)
    if came != "open":
        raise InvalidDataError("open", f"{came} came first; a stream starts with open")
    if request.open.HasField("checksum"):
        _refuse_unavailable(request.open)
        framing.verify_sealed(message, request.open.checksum)
    return request.open


def read_chunk(message: bytes, after: int | None) -> tuple[int, Bytes]:
    """Return offset and bytes of a later message of a stream.

    Verifies its checksum.

    after  checksum of open, if it has one; each chunk has one then, and only then
    """
    offset, data = framing.read_chunk(message, after) or _parse_chunk(message, after)
    return offset, np.frombuffer(data, np.uint8)


def _parse_chunk(message: bytes, after: int | None) -> tuple[int, memoryview]:
    """Parse a chunk whose encoding differs from the usual one."""
    request, came = _read_stream_request(message)
    if came != "chunk":
        raise InvalidDataError("chunk", f"{came} came; only chunks follow open")
    refuse_unknown_fields(request.chunk, "chunk")
    if request.chunk.HasField("checksum") or after is not None:
        raise ChecksumError(
            "chunk.checksum: each chunk has one, directly before its data, if open has one, and "
            "only then"
        )
    return request.chunk.offset, memoryview(request.chunk.data)


def _read_stream_request(message: bytes) -> tuple[v1.EvaluateStreamRequest, str]:
    """Parse a message of a stream; return its field's name too."""
    fields = {v1.EvaluateStreamRequest.CHUNK_FIELD_NUMBER: DATA}
    request = parse(v1.EvaluateStreamRequest, message, fields)
    refuse_unknown_fields(request)
    return request, request.WhichOneof("message") or "an empty message"


def _refuse_unavailable(message: Message) -> None:
    """Raise UnknownFieldError for a checksum where none can be computed."""
    if not checksums.AVAILABLE:
        name = message.DESCRIPTOR.full_name
        raise UnknownFieldError(
            f"field {checksums.FIELD} of {name}: this server computes no checksums",
            message_type=name,
            field_number=checksums.FIELD,
        )


def well_formed(message: bytes | Exception) -> bytes:
    """Return the message, or raise the error in its place."""
    if isinstance(message, Exception):
        raise message
    return message


def read_evaluate(message: bytes) -> CheckedParts:
    """Return request_id, header, data and checksum of an EvaluateRequest.

    Raises InvalidDataError if the message is not an EvaluateRequest, DataLossError if its checksum
    does not match.
    """
    framed = read_framed(framing.read_evaluation, message)
    return framed or (parts_of(parse(v1.EvaluateRequest, message)), None)


def read_framed(
    read: Callable[[bytes, int | None], CheckedParts | None], message: bytes
) -> CheckedParts | None:
    """Read a request that may have a checksum.

    None if it is left to protobuf.

    Raises DataLossError if its checksum does not match.
    """
    return read(message, 0 if checksums.AVAILABLE else None)


def parts_of(request: v1.EvaluateRequest) -> Parts:
    """Split a parsed request into request_id, header and data.

    It has no checksum.

    Raises ChecksumError if it has, since it stands in another place than that of a checksum.
    """
    if request.HasField("checksum"):
        _refuse_unavailable(request)
        raise ChecksumError("checksum: not directly before data, where it is looked for")
    request_id, data = request.request_id.encode(), memoryview(request.data)
    request.ClearField("request_id")
    request.ClearField("data")
    return request_id, request.SerializeToString(), data


def read_header(header: bytes) -> EvaluationRequest:
    """Decode an EvaluateRequest without its request_id and data.

    Raises EvaluationError if it is not valid here, NoMessageError if it is not an EvaluateRequest.
    """
    return read_request(parse(v1.EvaluateRequest, header))


def response_header(output: TensorSpec) -> bytes:
    """Encode the header of a response."""
    return v1.EvaluateResponse(output=write_descriptor(output)).SerializeToString()


def check_data_length(length: int, request: EvaluationRequest) -> None:
    """Raise InvalidDataError unless the length is that of the input."""
    needed = request.input.wire_bytes
    if length != needed:
        raise InvalidDataError("data", f"{length} bytes; input's descriptor takes {needed}")
