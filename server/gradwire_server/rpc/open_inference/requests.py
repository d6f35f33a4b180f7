"""ModelInfer's messages, read as requests of Evaluate and written as its responses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Never

import numpy as np

from gradwire import ops, v1
from gradwire._wire.framing import read_varint, varint
from gradwire.errors import InvalidRequestError
from gradwire.tensors import MAX_RANK
from gradwire_server.config.models import DATATYPES
from gradwire_server.config.settings import MAX_HEADER_BYTES
from gradwire_server.engine import NUMERICS_VERSION, TensorSpec
from gradwire_server.errors import InvalidDataError, InvalidFieldError
from gradwire_server.rpc import codec
from gradwire_server.rpc.open_inference.descriptors import message
from gradwire_server.rpc.open_inference.models import INPUT, OUTPUT, OUTPUT_SHAPE, Model, Models

ModelInferRequest, ModelInferResponse = message("ModelInferRequest"), message("ModelInferResponse")

# Tag of raw contents, which protobuf writes last, and most of them that a request has.
_RAW, _MOST_RAW = 0x3A, 2
# Raw contents, and typed ones within an input.
_FIELDS: Final[codec.DataFields] = {7: None, 5: {5: {6: None, 7: None}}}
_TYPED = {"FP32": ("fp32_contents", "<f4"), "FP64": ("fp64_contents", "<f8")}
# Parameters of Triton that change no result here; each other one is an attribute.
_RESERVED = {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout"}
_RESERVED_PREFIX = "triton_"
_REGION, *_WITHIN = "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"
_INTEGERS = ("int64_param", "uint64_param")
_MOST_INT64 = 2**63 - 1
_MOST_KNOWN = 256

# The name of a region, offset and length in it.
Range = tuple[str, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Inference:
    """A request without id and contents.

    header        the equal EvaluateRequest, encoded without data
    output_bytes  length of the result
    source, sink  shared memory of the input and of the result; None for contents in the message
    response      its response, encoded without id and contents
    """

    model: Model
    header: bytes
    output_bytes: int
    source: Range | None
    sink: Range | None
    response: bytes

    def reply(self, request_id: str, result: memoryview) -> bytes:
        """Return the message that carries a result."""
        name = request_id.encode()
        identity = b"\x1a%b%b" % (varint(len(name)), name) if name else b""
        if self.sink is not None:
            result = result[:0]  # empty, and not absent: clients read the contents of each output
        return b"".join((self.response, identity, b"\x32", varint(len(result)), result))


class InferReader:
    """Reads requests.

    Requests that differ only in id and raw contents are decoded once.
    """

    def __init__(self, models: Models) -> None:
        self._models = models
        self._known: dict[tuple[bytes, int], Inference] = {}

    def read(self, data: bytes) -> tuple[str, Inference, memoryview]:
        """Return id, request and contents of x.

        Raises EvaluationError for an invalid request.
        """
        header, raw = _split(data)
        request = codec.parse(ModelInferRequest, header, _FIELDS)
        request_id = request.id
        raw = [*(memoryview(each) for each in request.raw_input_contents), *raw]
        request.ClearField("id")
        request.ClearField("raw_input_contents")
        key = request.SerializeToString(deterministic=True), len(raw)
        if known := self._known.get(key):
            return request_id, known, raw[0] if raw else memoryview(b"")
        codec.refuse_unknown_fields(request, "")
        for tensor in (*request.inputs, *request.outputs):
            codec.refuse_unknown_fields(tensor, tensor.name)
        model = self._models.find(request.model_name, request.model_version)
        x, contents, sizes = _inputs(request, raw)
        inference = _decode(model, request, x, sizes)
        if x.HasField("contents"):
            return request_id, inference, _typed_contents(x)
        if len(request.inputs) == 1:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = inference
        return request_id, inference, contents


def _split(data: bytes) -> tuple[bytes, list[memoryview]]:
    """Split a message before its raw contents.

    Protobuf would copy them. Nothing is split off if other fields follow them.
    """
    at, raw = 0, list[memoryview]()
    try:
        while data[at] != _RAW and at < MAX_HEADER_BYTES:
            if data[at] & 0x87 != 2:  # noqa: PLR2004 - a length-delimited field up to 15
                return data, []
            length, at = read_varint(data, at + 1, 4)
            at += length
        header = data[:at]
        while at < len(data):
            if data[at] != _RAW or len(raw) == _MOST_RAW:
                return data, []
            length, start = read_varint(data, at + 1, 4)
            at = start + length
            raw.append(memoryview(data)[start:at])
    except IndexError:
        return data, []
    return (header, raw) if at == len(data) else (data, [])


def _inputs(
    request: Any, raw: Sequence[memoryview]
) -> tuple[Any, memoryview, Sequence[int] | None]:
    """Return the input x, its raw contents, and the contents of output_shape."""
    tensors = {tensor.name: tensor for tensor in request.inputs}
    if len(request.inputs) != len(tensors) or {INPUT} != tensors.keys() - {OUTPUT_SHAPE}:
        came = ", ".join(tensor.name for tensor in request.inputs) or "none"
        raise InvalidFieldError("inputs", f"{came}; {INPUT} is needed, {OUTPUT_SHAPE} is taken")
    awaited: list[str] = []
    for name, tensor in tensors.items():
        elsewhere, typed = _REGION in tensor.parameters, tensor.HasField("contents")
        if typed and (elsewhere or raw):
            raise InvalidDataError(f"inputs.{name}", "has typed contents and others")
        if not (elsewhere or typed):
            awaited.append(name)
    if len(raw) != len(awaited):
        raise InvalidDataError(
            "raw_input_contents",
            f"{len(raw)} given; {len(awaited)} are needed, of {', '.join(awaited) or 'no inputs'}",
        )
    given = dict(zip(awaited, raw, strict=True))
    shape = tensors.get(OUTPUT_SHAPE)
    sizes = None if shape is None else _sizes(shape, given.get(OUTPUT_SHAPE))
    return tensors[INPUT], given.get(INPUT, memoryview(b"")), sizes


def _sizes(tensor: Any, raw: memoryview | None) -> Sequence[int]:
    """Return the elements of the input output_shape."""
    sizes = list(tensor.contents.int64_contents)
    if raw is not None and len(raw) % 8 == 0 and len(raw) <= 8 * MAX_RANK:
        sizes = np.frombuffer(raw, "<i8").tolist()
    if tensor.datatype != "INT64" or list(tensor.shape) != [len(sizes)] or not sizes:
        raise InvalidFieldError(
            f"inputs.{OUTPUT_SHAPE}",
            f"{tensor.datatype} of shape {list(tensor.shape)} with {len(sizes)} elements; INT64 of "
            f"shape [axes], at most {MAX_RANK}, is needed, in the message",
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


def _decode(model: Model, request: Any, x: Any, sizes: Sequence[int] | None) -> Inference:
    """Return the request for input x.

    sizes  contents of the input output_shape; None without it
    """
    attributes = dict(model.named.attributes)
    output_shape: Any = model.named.output_shape
    for name, value in _parameters(request.parameters):
        if name == OUTPUT_SHAPE:
            output_shape = value
        elif not (name in _RESERVED or name.startswith(_RESERVED_PREFIX)):
            attributes[name] = value
    ours, output = _evaluation(model, x, attributes, output_shape if sizes is None else sizes)
    source = _range("inputs.x", x.parameters)
    names = [tensor.name for tensor in request.outputs]
    if names not in ([], [OUTPUT]):
        raise InvalidFieldError("outputs", f"{', '.join(names)}; {OUTPUT} is the only one")
    response = ModelInferResponse(model_name=model.named.name, model_version=NUMERICS_VERSION)
    y = response.outputs.add(name=OUTPUT, datatype=x.datatype, shape=output.sizes)
    sink = _range("outputs.y", request.outputs[0].parameters) if names else None
    if sink is not None:
        y.parameters[_REGION].string_param = sink[0]
        for name, value in zip(_WITHIN, sink[1:], strict=True):
            y.parameters[name].int64_param = value
    return Inference(
        model=model,
        header=ours.SerializeToString(deterministic=True),
        output_bytes=output.wire_bytes,
        source=source,
        sink=sink,
        response=response.SerializeToString(),
    )


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
) -> tuple[v1.EvaluateRequest, TensorSpec]:
    """Return our own request for a model's, and its output.

    Errors name the protocol's fields.
    """
    named = model.named
    kind = ops.OPERATORS[named.operator]
    taken = [named.datatype] if model.strict else list(DATATYPES)
    if x.datatype not in taken:
        raise InvalidFieldError(
            "inputs.x.datatype", f"{x.datatype!r}; {named.name} takes {', '.join(taken)}"
        )
    fits = len(x.shape) == len(named.dims) and all(
        dim in {-1, size} for dim, size in zip(named.dims, x.shape, strict=True)
    )
    if model.strict and not fits:
        raise InvalidFieldError(
            "inputs.x.shape", f"{list(x.shape)}; {named.name} takes {list(named.dims)}"
        )
    descriptor = v1.TensorDescriptor(data_type=DATATYPES[x.datatype], sizes=x.shape)
    ours = v1.EvaluateRequest(input=descriptor)
    if output_shape is not None:
        try:
            ours.output.data_type = descriptor.data_type
            ours.output.sizes.extend(output_shape)
        except (TypeError, ValueError):
            raise InvalidFieldError(
                OUTPUT_SHAPE, f"{str(output_shape)[:80]!r}; a list of sizes is needed"
            ) from None
    elif kind.output_required:
        raise InvalidFieldError(
            OUTPUT_SHAPE,
            f"is missing; the attributes of {kind.name} do not determine it: give it as a "
            "parameter such as [1, 3, 32, 32], or as an INT64 input of this name",
        )
    try:
        ours.operator.CopyFrom(ops.to_message(kind(**attributes)))
        return ours, codec.read_request(ours).resolved()[1]
    except (InvalidRequestError, InvalidFieldError) as error:
        field = (error.field or "").replace(f"operator.{kind.name}", "parameters")
        field = field.replace("input.sizes", "inputs.x.shape").replace("output.sizes", OUTPUT_SHAPE)
        raise InvalidFieldError(field, error.description) from None


def _range(field: str, parameters: Any) -> Range | None:
    """Return the range of shared memory that a tensor's parameters name."""
    if unknown := sorted(parameters.keys() - {_REGION, *_WITHIN, "binary_data"}):
        raise InvalidFieldError(f"{field}.parameters.{unknown[0]}", "is not known here")
    if _REGION not in parameters:
        return None
    offset, size = (_parameter(field, parameters, name, _INTEGERS, 0) for name in _WITHIN)
    if max(offset, size) > _MOST_INT64:
        raise InvalidFieldError(f"{field}.parameters", f"{offset} and {size} exceed int64")
    return _parameter(field, parameters, _REGION, ("string_param",), ""), offset, size


def _parameter(field: str, parameters: Any, name: str, kinds: Sequence[str], absent: Any) -> Any:
    """Return the value of a parameter.

    Raises InvalidFieldError if it has another type.
    """
    if name not in parameters:
        return absent
    choice = parameters[name].WhichOneof("parameter_choice")
    if choice not in kinds:
        came = choice or "no value"
        raise InvalidFieldError(
            f"{field}.parameters.{name}", f"{came}; {' or '.join(kinds)} is needed"
        )
    return getattr(parameters[name], choice)
