"""ModelInfer's messages: split without protobuf where known, decoded into our own requests."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Never

import numpy as np

from gradwire import ops, v1
from gradwire._wire.framing import read_varint, varint
from gradwire.errors import InvalidRequestError
from gradwire.tensors import data_type_of
from gradwire_server.config.settings import MAX_HEADER_BYTES
from gradwire_server.engine import NUMERICS_VERSION, EvaluationRequest, TensorSpec
from gradwire_server.errors import InvalidDataError, InvalidFieldError
from gradwire_server.rpc import codec
from gradwire_server.rpc.open_inference.descriptors import message
from gradwire_server.rpc.open_inference.models import (
    DATA_TYPES,
    INPUT,
    OUTPUT,
    OUTPUT_SHAPE,
    Model,
    Models,
)

ModelInferRequest, ModelInferResponse = message("ModelInferRequest"), message("ModelInferResponse")

# Fields before the contents, the id's, and that of raw contents; all are length-delimited.
_HEADER, _ID, _RAW = frozenset({0x0A, 0x12, 0x22, 0x2A, 0x32}), 0x1A, 0x3A
_MOST_FIELDS, _MOST_TENSORS, _MOST_KNOWN = 64, 2, 256
# Fields with elements, by the fields around them: raw contents, and typed ones that are packed.
_CONTENTS: Mapping[int, Any] = {7: None, 5: {5: {6: None, 7: None}}}
_TYPED = {"FP32": ("fp32_contents", "<f4"), "FP64": ("fp64_contents", "<f8")}
# Parameters of Triton that change no result here; each other one is an attribute.
_RESERVED = {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout"}
_RESERVED_PREFIX = "triton_"
_REGION = ("shared_memory_region", "shared_memory_offset", "shared_memory_byte_size")

# The name of a region, and the range in it.
Range = tuple[str, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class InferHeader:
    """A request without id and contents; the same object for equal requests.

    source, sink  shared memory of the input and of the result; None for contents in the message
    head, tail    the response before and after its id, without contents
    """

    model: Model
    request: EvaluationRequest
    output: TensorSpec
    source: Range | None
    sink: Range | None
    head: bytes
    tail: bytes

    def response(self, request_id: str, result: memoryview) -> bytes:
        """Return the message that carries a result."""
        name = request_id.encode()
        identity = b"\x1a%b%b" % (varint(len(name)), name) if name else b""
        if self.sink is not None:
            result = result[:0]  # empty, and not absent: clients read the contents of each output
        return b"".join((self.head, identity, self.tail, b"\x32", varint(len(result)), result))


class InferReader:
    """Reads requests; a header that was read before is not decoded again."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._known: dict[Hashable, InferHeader] = {}

    def read(self, data: bytes) -> tuple[str, InferHeader, memoryview]:
        """Return id, header and contents; raise EvaluationError for an invalid request."""
        parts = _split(data)
        key: Hashable = None
        if parts is not None:
            request_id, header, raw = parts
            key = (header, len(raw), *map(bytes, raw[1:]))
            known = self._known.get(key)
            if known is not None and request_id.isascii():
                return request_id.decode(), known, raw[0] if raw else memoryview(b"")
        request = codec.parse(ModelInferRequest, data, header_bytes=_beside(data))
        found, contents, is_known = self._decode(request)
        if key is not None and is_known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = found
        return request.id, found, contents

    def _decode(self, request: Any) -> tuple[InferHeader, memoryview, bool]:
        """Return header and contents, and whether the header can be kept.

        It can if it holds no contents.
        """
        codec.refuse_unknown_fields(request, "")
        for tensor in (*request.inputs, *request.outputs):
            codec.refuse_unknown_fields(tensor, tensor.name)
        model = self._models.get(request.model_name, request.model_version)
        x, raw_x, shape = _inputs(request)
        attributes = dict(model.named.attributes)
        output_shape: Any = model.named.output_shape
        for name, value in _parameters(request.parameters):
            if name == OUTPUT_SHAPE:
                output_shape = value
            elif not (name in _RESERVED or name.startswith(_RESERVED_PREFIX)):
                attributes[name] = value
        output_shape = output_shape if shape is None else shape
        decoded = _evaluation(model, x, attributes, output_shape)
        typed = x.HasField("contents")
        contents = _typed_contents(x) if typed else memoryview(raw_x or b"")
        source = _range("inputs.x", x.parameters)
        return _header(model, decoded, source, _sink(request)), contents, not typed


def _header(
    model: Model, request: EvaluationRequest, source: Range | None, sink: Range | None
) -> InferHeader:
    output = request.resolved()[1]
    told = ModelInferResponse()
    datatype = next(
        each for each, known in DATA_TYPES.items() if known == data_type_of(output.dtype)
    )
    tensor = told.outputs.add(name=OUTPUT, datatype=datatype, shape=output.sizes)
    if sink is not None:
        tensor.parameters[_REGION[0]].string_param = sink[0]
        for name, value in zip(_REGION[1:], sink[1:], strict=True):
            tensor.parameters[name].int64_param = value
    head = ModelInferResponse(model_name=model.named.name, model_version=NUMERICS_VERSION)
    return InferHeader(
        model, request, output, source, sink, head.SerializeToString(), told.SerializeToString()
    )


def _split(data: bytes) -> tuple[bytes, bytes, list[memoryview]] | None:
    """Return id, header and raw contents of a request.

    None for an unusual encoding.
    """
    at, left, id_at, id_end = 0, _MOST_FIELDS, 0, 0
    request_id = b""
    raw: list[memoryview] = []
    try:
        while at < len(data) and data[at] != _RAW:
            tag, start = data[at], at
            length, at = read_varint(data, at + 1, 4)
            at += length
            left -= 1
            if tag == _ID and not id_end:
                id_at, id_end, request_id = start, at, data[at - length : at]
            elif tag not in _HEADER or not left:
                return None
        end = at
        while at < len(data):
            length, start = read_varint(data, at + 1, 4)
            if data[at] != _RAW or len(raw) == _MOST_TENSORS:
                return None
            at = start + length
            raw.append(memoryview(data)[start:at])
    except IndexError:
        return None
    if at != len(data) or end > MAX_HEADER_BYTES or (raw[1:] and len(raw[1]) > MAX_HEADER_BYTES):
        return None
    return request_id, data[:id_at] + data[id_end:end], raw


def _beside(data: bytes, contents: Mapping[int, Any] = _CONTENTS) -> int:
    """Count the bytes of a message outside contents; stop above MAX_HEADER_BYTES."""
    beside, at, ends = 0, 0, [(len(data), contents)]
    try:
        while beside <= MAX_HEADER_BYTES:
            while ends and at >= ends[-1][0]:
                ends.pop()
            if not ends:
                break
            start, within = at, ends[-1][1]
            tag, at = read_varint(data, at, 10)
            number, kind = tag >> 3, tag & 7
            if kind != 2:  # noqa: PLR2004 - no field of ours but the elements of shapes
                at = read_varint(data, at, 10)[1] if not kind else at + (8 if kind == 1 else 4)
                beside += at - start
                continue
            length, at = read_varint(data, at, 10)
            inner = within.get(number, {})
            if inner:
                ends.append((at + length, inner))
                length = 0
            beside += at - start + (0 if inner is None else length)
            at += length
    except IndexError:
        pass
    return beside


def _inputs(request: Any) -> tuple[Any, bytes | None, list[int] | None]:
    """Return the input, its raw contents, and the contents of output_shape."""
    names, raw = [tensor.name for tensor in request.inputs], list(request.raw_input_contents)
    if sorted(names) not in ([INPUT], [OUTPUT_SHAPE, INPUT]):
        came = ", ".join(names) or "none"
        raise InvalidFieldError("inputs", f"{came}; {INPUT} is needed, {OUTPUT_SHAPE} is taken")
    awaited: list[str] = []
    for tensor in request.inputs:
        elsewhere = _REGION[0] in tensor.parameters
        if tensor.HasField("contents") and (elsewhere or raw):
            raise InvalidDataError(f"inputs.{tensor.name}", "has typed contents and others")
        if not (elsewhere or tensor.HasField("contents")):
            awaited.append(tensor.name)
    if len(raw) != len(awaited):
        raise InvalidDataError(
            "raw_input_contents",
            f"{len(raw)} given; {len(awaited)} are needed, of {', '.join(awaited) or 'no inputs'}",
        )
    tensors, given = (
        dict(zip(names, request.inputs, strict=True)),
        dict(zip(awaited, raw, strict=True)),
    )
    shape = tensors.get(OUTPUT_SHAPE)
    sizes = None if shape is None else _shape(shape, given.get(OUTPUT_SHAPE))
    return tensors[INPUT], given.get(INPUT), sizes


def _shape(tensor: Any, raw: bytes | None) -> list[int]:
    """Return the elements of the input output_shape."""
    sizes = list(tensor.contents.int64_contents) if raw is None else []
    if raw is not None and len(raw) % 8 == 0:
        sizes = np.frombuffer(raw, "<i8").tolist()
    if tensor.datatype != "INT64" or list(tensor.shape) != [len(sizes)] or not sizes:
        raise InvalidFieldError(
            f"inputs.{OUTPUT_SHAPE}",
            f"{tensor.datatype} of shape {list(tensor.shape)} with {len(sizes)} elements; INT64 of "
            "shape [axes] is needed, in the message",
        )
    return sizes


def _typed_contents(x: Any) -> memoryview:
    if x.datatype not in _TYPED:
        raise InvalidDataError(
            "inputs.x.contents", f"given for {x.datatype}; send raw_input_contents"
        )
    name, dtype = _TYPED[x.datatype]
    if others := [each.name for each, _ in x.contents.ListFields() if each.name != name]:
        raise InvalidDataError(f"inputs.x.contents.{others[0]}", f"{x.datatype} has {name}")
    return memoryview(np.array(getattr(x.contents, name), dtype).tobytes())


def _parameters(parameters: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values; texts are JSON, or stand for themselves."""
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice is None:
            raise InvalidFieldError(f"parameters.{name}", "has no value, or one of an unknown type")
        value = getattr(parameter, choice)
        if choice == "string_param":
            with suppress(ValueError, RecursionError):
                value = json.loads(value, parse_constant=_no_number)
        yield name, value


def _no_number(text: str) -> Never:
    raise ValueError(text)


def _evaluation(
    model: Model, x: Any, attributes: dict[str, Any], output_shape: Any
) -> EvaluationRequest:
    """Return our own request for a model's.

    Errors name the protocol's fields.
    """
    named, kind = model.named, model.kind
    if x.datatype not in DATA_TYPES or (model.strict and x.datatype != named.datatype):
        taken = named.datatype if model.strict else ", ".join(DATA_TYPES)
        raise InvalidFieldError("inputs.x.datatype", f"{x.datatype!r}; {named.name} takes {taken}")
    pairs = zip(named.dims, x.shape, strict=False)
    if model.strict and (
        len(x.shape) != len(named.dims) or any(dim not in {-1, size} for dim, size in pairs)
    ):
        raise InvalidFieldError(
            "inputs.x.shape", f"{list(x.shape)}; {named.name} takes {list(named.dims)}"
        )
    data_type = DATA_TYPES[x.datatype]
    ours = v1.EvaluateRequest(input=v1.TensorDescriptor(data_type=data_type, sizes=x.shape))
    if output_shape is not None:
        try:
            ours.output.CopyFrom(v1.TensorDescriptor(data_type=data_type, sizes=output_shape))
        except (TypeError, ValueError):
            raise InvalidFieldError(
                OUTPUT_SHAPE, f"{str(output_shape)[:80]!r}; a list of sizes is needed"
            ) from None
    elif kind.output_required:
        raise InvalidFieldError(
            OUTPUT_SHAPE,
            f"absent; attributes of {kind.name} do not determine it: give it as a parameter such "
            "as [1, 3, 32, 32], or as an INT64 input of this name",
        )
    try:
        ours.operator.CopyFrom(ops.to_message(kind(**attributes)))
        return codec.read_request(ours)
    except InvalidRequestError as error:
        field = (error.field or "").replace(f"operator.{kind.name}", "parameters")
        raise InvalidFieldError(field, error.description) from None
    except InvalidFieldError as error:
        field = error.field.replace("input.sizes", "inputs.x.shape")
        raise InvalidFieldError(
            field.replace("output.sizes", OUTPUT_SHAPE), error.description
        ) from None


def _sink(request: Any) -> Range | None:
    """Return the shared memory of the result, if it is there."""
    if [tensor.name for tensor in request.outputs] not in ([], [OUTPUT]):
        names = ", ".join(tensor.name for tensor in request.outputs)
        raise InvalidFieldError("outputs", f"{names}; {OUTPUT} is the only one")
    return _range("outputs.y", request.outputs[0].parameters) if request.outputs else None


def _range(field: str, parameters: Any) -> Range | None:
    """Return the range of shared memory that a tensor's parameters name."""
    if unknown := sorted(parameters.keys() - {*_REGION, "binary_data"}):
        raise InvalidFieldError(f"{field}.parameters.{unknown[0]}", "is not known here")
    if _REGION[0] not in parameters:
        return None
    offset, size = (
        parameters[name].int64_param if name in parameters else 0 for name in _REGION[1:]
    )
    return parameters[_REGION[0]].string_param, offset, size
