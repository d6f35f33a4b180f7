"""Messages to the engine's values and back; the only reader of request headers."""

from __future__ import annotations

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from gradwire import ops, v1
from gradwire.errors import InvalidRequestError
from gradwire.tensors import DTYPES, MAX_RANK, data_type_of
from gradwire_server.engine import FILLED, EvaluationRequest, TensorSpec
from gradwire_server.errors import InvalidFieldError, UnknownFieldError, UnknownOperatorError
from gradwire_server.text import counted

MAX_BYTES = 2**63 - 1
MAX_REQUEST_ID = 128

Header = v1.EvaluateRequest | v1.Open


def read_request(header: Header) -> EvaluationRequest:
    """Decode the header of an evaluation, refusing what this server does not know."""
    refuse_unknown_fields(header, "")
    refuse_unknown_fields(header.options, "options")
    operator = _read_operator(header.operator)
    source = read_descriptor(header.input, "input")
    result = None
    if header.HasField("output"):
        result = read_descriptor(header.output, "output")
        _refuse_overlap(result)
        if len(result.sizes) != len(source.sizes):
            raise InvalidFieldError(
                "output.sizes",
                f"{counted(len(result.sizes), 'axis')}; as many as the input has are needed, "
                f"{len(source.sizes)}",
            )
    return EvaluationRequest(type(operator).name, operator, source, result)


def refuse_unknown_fields(message: Message, path: str) -> None:
    """Refuse a message that carries fields this server does not know."""
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
        raise InvalidFieldError("operator", f"not set; one of {', '.join(ops.OPERATORS)} is needed")
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
    """Check a request's name; it goes into logs and metadata as it is."""
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
    sizes = _read_sizes(tuple(message.sizes), path)
    packed = TensorSpec.packed(dtype, sizes)
    if packed.filled.elements * dtype.itemsize > MAX_BYTES:
        zero = "" if packed.elements else f", its axes of 0 taken for {FILLED}"
        raise InvalidFieldError(
            f"{path}.sizes", f"{sizes} is 2**63 bytes or more{zero}; give shorter axes"
        )
    strides = tuple(message.strides)
    if strides and not packed.elements:
        # No element has an address: they only have to be strides.
        _read_strides(strides, (1,) * len(sizes), path)
        return packed
    return TensorSpec(dtype, sizes, _read_strides(strides, sizes, path)) if strides else packed


def _read_sizes(sizes: tuple[int, ...], path: str) -> tuple[int, ...]:
    if not 1 <= len(sizes) <= MAX_RANK:
        raise InvalidFieldError(
            f"{path}.sizes", f"{counted(len(sizes), 'axis')}; 1 to {MAX_RANK} are taken"
        )
    for axis, size in enumerate(sizes):
        if size < 0:
            raise InvalidFieldError(f"{path}.sizes[{axis}]", f"{size}; at least 0 is needed")
    return sizes


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
    # Axes from the fastest on: each one must step over everything the faster ones reach.
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


def _refuse_overlap(result: TensorSpec) -> None:
    for axis in result.broadcast:
        raise InvalidFieldError(
            f"output.strides[{axis}]", "0; a result must not overlap itself: at least 1 is needed"
        )


def write_descriptor(spec: TensorSpec) -> v1.TensorDescriptor:
    """Encode a descriptor; packed row-major strides are left out."""
    packed = spec.strides == TensorSpec.packed(spec.dtype, spec.sizes).strides
    return v1.TensorDescriptor(
        data_type=data_type_of(spec.dtype), sizes=spec.sizes, strides=() if packed else spec.strides
    )
