"""Models, and the requests of ModelInfer, read as those of Evaluate."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gradwire import ops, v1
from gradwire._wire.framing import LENGTH_BYTES, read_varint, varint
from gradwire.tensors import MAX_RANK
from gradwire_server.config.models import NamedModel, unnamed
from gradwire_server.engine import NUMERICS_VERSION
from gradwire_server.errors import InvalidDataError, InvalidFieldError, UnknownModelError
from gradwire_server.observability.recording import Phases
from gradwire_server.rpc import codec
from gradwire_server.rpc.open_inference.descriptors import message

INPUT, OUTPUT, OUTPUT_SHAPE = "x", "y", "output_shape"
PLATFORM = "gradwire"
# Names of a call's duration, and of its phases in the order of Phases.seconds.
_DURATIONS = ("success", "compute_input", "queue", "compute_infer", "compute_output")
ModelInferRequest, ModelInferResponse = message("ModelInferRequest"), message("ModelInferResponse")

# Tags of id, of raw contents and of all other fields; fields that a message has, at most.
_ID, _RAW, _OTHERS, _MOST_FIELDS = 0x1A, 0x3A, frozenset((0x0A, 0x12, 0x22, 0x2A, 0x32)), 64
# Raw contents, and typed ones within an input.
_FIELDS: Final[codec.DataFields] = {7: None, 5: {5: {6: None, 7: None}}}
_TYPED = {
    "FP32": ("fp32_contents", "<f4"),
    "FP64": ("fp64_contents", "<f8"),
    "INT64": ("int64_contents", "<i8"),
}
# Parameters of Triton that change no result here; each other one is an attribute.
_RESERVED = {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout"}
_RESERVED_PREFIX = "triton_"
# Parameters of tensors that name a range of shared memory, as fields of v1.SharedRange.
_REGION = "shared_memory_region"
_RANGE = {
    _REGION: "handle",
    "shared_memory_offset": "offset",
    "shared_memory_byte_size": "length",
}
# Fields of EvaluateRequest, by other names than theirs.
_NAMES = {
    "data": "inputs.x",
    "input.data_type": "inputs.x.datatype",
    "input.sizes": "inputs.x.shape",
    "output": OUTPUT_SHAPE,
    "output.sizes": OUTPUT_SHAPE,
}
_MOST_KNOWN = 256
_NOTHING = memoryview(b"")


class Model:
    """A model, and the statistics of its calls.

    named  datatype, dims and attributes that requests leave out
    """

    def __init__(self, named: NamedModel) -> None:
        self.named = named
        self._calls, self._seconds = Counter[str](), Counter[str]()
        self._last_ms = 0

    def note(self, phases: Phases, duration_s: float, *, succeeded: bool) -> None:
        """Count a call; phases of calls that failed are not counted."""
        spent = [duration_s, *phases.seconds.values()] if succeeded else [duration_s]
        names = _DURATIONS if succeeded else ("fail",)
        for name, seconds in zip(names, spent, strict=True):
            self._calls[name] += 1
            self._seconds[name] += seconds  # type: ignore[assignment]
        if succeeded:
            self._last_ms = time.time_ns() // 1_000_000

    def statistics(self) -> dict[str, Any]:
        """Return the fields of ModelStatistics."""
        count, durations = self._calls["success"], ("fail", *_DURATIONS)
        return {
            "name": self.named.name,
            "version": NUMERICS_VERSION,
            "last_inference": self._last_ms,
            "inference_count": count,
            "execution_count": count,
            "inference_stats": {
                name: {"count": self._calls[name], "ns": int(1e9 * self._seconds[name])}
                for name in durations
            },
        }

    def metadata(self) -> dict[str, Any]:
        """Return the fields of ModelMetadataResponse."""
        x, y = (
            {"name": n, "datatype": self.named.datatype, "shape": s} for n, s in self._tensors()
        )
        told = {"name": self.named.name, "versions": [NUMERICS_VERSION], "platform": PLATFORM}
        return {**told, "inputs": [x], "outputs": [y]}

    def config(self) -> dict[str, Any]:
        """Return the fields of ModelConfig."""
        data_type = f"TYPE_{self.named.datatype}"
        x, y = ({"name": n, "data_type": data_type, "dims": s} for n, s in self._tensors())
        told = {"name": self.named.name, "platform": PLATFORM, "backend": PLATFORM}
        return {**told, "input": [x], "output": [y]}

    def _tensors(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return names and sizes of input and output, -1 for any size."""
        dims = self.named.dims
        return [(INPUT, dims), (OUTPUT, self.named.output_shape or (-1,) * len(dims))]


class Models(dict[str, Model]):
    """All models, by name."""

    def __init__(self, named: Mapping[str, NamedModel]) -> None:
        every = (*map(unnamed, ops.OPERATORS), *named.values())
        super().__init__({each.name: Model(each) for each in every})

    def find(self, name: str, version: str) -> Model:
        """Return a model; raise UnknownModelError if there is none."""
        model = self.get(name)
        if model is None:
            raise UnknownModelError(
                f"model_name: {name!r} is not a model of this server; there are {', '.join(self)}"
            )
        if version not in {"", NUMERICS_VERSION}:
            raise UnknownModelError(
                f"model_version: {name} has no version {version!r}; give {NUMERICS_VERSION}, the "
                "version of its numerics, or none"
            )
        return model

    def some(self, name: str, version: str) -> list[Model]:
        """Return a model, or all for an empty name."""
        return [self.find(name, version)] if name else list(self.values())


@dataclass(frozen=True, slots=True, eq=False)
class Inference:
    """A request without id and contents.

    header        the equal EvaluateRequest, encoded without data
    source, sink  shared memory of the input and of the result; None for contents in the message
    response      its response, encoded without id and contents
    """

    model: Model
    header: bytes
    source: v1.SharedRange | None
    sink: v1.SharedRange | None
    response: bytes

    def reply(self, request_id: str, result: memoryview) -> bytes:
        """Return the message that carries a result."""
        name = request_id.encode()
        identity = b"\x1a%b%b" % (varint(len(name)), name) if name else b""
        if self.sink is not None:
            result = _NOTHING  # empty, and not absent: clients read the contents of each output
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
        request_id, fields, raw = _split(data)
        key = fields, len(raw)
        if known := self._known.get(key):
            return request_id, known, raw[0] if raw else _NOTHING
        request = codec.parse(ModelInferRequest, fields, _FIELDS)
        codec.refuse_unknown_fields(request, "")
        model = self._models.find(request.model_name, request.model_version)
        contents = _contents(request, raw)
        inference = _decode(model, request, contents)
        # Typed contents, and sizes of the output in a tensor, are of one request only.
        if len(contents) == 1 and not request.inputs[0].HasField("contents"):
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = inference
        return request_id, inference, contents[INPUT]


def renamed(error: Exception) -> Exception:
    """Return an error of Evaluate with the protocol's name of its field."""
    if not isinstance(error, InvalidFieldError):
        return error
    field = re.sub(r"^operator\.\w+", "parameters", error.field)
    field = re.sub(r"^[\w.]+", lambda name: _NAMES.get(name[0], name[0]), field)
    return error if field == error.field else type(error)(field, error.description)


def _split(data: bytes) -> tuple[str, bytes, Sequence[memoryview]]:
    """Return id, the other fields encoded, and raw contents.

    Protobuf would copy the contents. It reads messages with many fields, or another id than ASCII.
    """
    request_id, fields, raw, view = b"", list[bytes](), list[memoryview](), memoryview(data)
    at, end, left = 0, len(data), _MOST_FIELDS
    with suppress(IndexError):
        while at < end and left:
            tag, length, start = data[at], data[at + 1], at + 2
            if length & 0x80:  # it has more bytes
                length, start = read_varint(data, at + 1, LENGTH_BYTES)
            stop = start + length
            if tag == _RAW:
                raw.append(view[start:stop])
            elif tag == _ID:
                request_id = data[start:stop]
            elif tag in _OTHERS:
                fields.append(data[at:stop])
            else:
                break
            at, left = stop, left - 1
    if at == end and request_id.isascii():
        return request_id.decode(), b"".join(fields), raw
    request = codec.parse(ModelInferRequest, data, _FIELDS)
    name, raw = request.id, [memoryview(each) for each in request.raw_input_contents]
    request.ClearField("id")
    request.ClearField("raw_input_contents")
    return name, request.SerializeToString(), raw


def _contents(request: Any, raw: Sequence[memoryview]) -> dict[str, memoryview]:
    """Return the contents of each input, by name; empty for shared memory."""
    names = [tensor.name for tensor in request.inputs]
    if sorted(names) not in ([INPUT], [OUTPUT_SHAPE, INPUT]):
        came = ", ".join(names) or "none"
        raise InvalidFieldError("inputs", f"{came}; {INPUT} is needed, {OUTPUT_SHAPE} is taken")
    found: dict[str, memoryview] = {}
    for tensor in request.inputs:
        codec.refuse_unknown_fields(tensor, tensor.name)
        elsewhere = _REGION in tensor.parameters
        if tensor.HasField("contents"):
            if elsewhere or raw:
                raise InvalidDataError(f"inputs.{tensor.name}", "has typed contents and others")
            found[tensor.name] = _typed(tensor)
        elif elsewhere:
            found[tensor.name] = _NOTHING
    awaited = [name for name in names if name not in found]
    if len(raw) != len(awaited):
        raise InvalidDataError(
            "raw_input_contents", f"{len(raw)} given; {len(awaited)} are needed, of {awaited}"
        )
    return found | dict(zip(awaited, raw, strict=True))


def _typed(tensor: Any) -> memoryview:
    """Return typed contents as raw ones."""
    name, dtype = _TYPED.get(tensor.datatype, ("raw_input_contents", ""))
    for field, _ in tensor.contents.ListFields():
        if field.name != name:
            raise InvalidDataError(
                f"inputs.{tensor.name}.contents.{field.name}", f"{tensor.datatype} has {name}"
            )
    return memoryview(np.array(getattr(tensor.contents, name, ()), dtype or None).tobytes())


def _decode(model: Model, request: Any, contents: Mapping[str, memoryview]) -> Inference:
    """Return the request for a model.

    Errors of the equal EvaluateRequest name its own fields.
    """
    named, tensors = model.named, {tensor.name: tensor for tensor in request.inputs}
    attributes: dict[str, Any] = {**named.attributes, OUTPUT_SHAPE: named.output_shape}
    for name, value in _values("", request.parameters):
        if not (name in _RESERVED or name.startswith(_RESERVED_PREFIX)):
            attributes[name] = value
            if isinstance(value, str):  # JSON; other texts stand for themselves
                with suppress(ValueError, RecursionError):
                    attributes[name] = json.loads(value)
    if OUTPUT_SHAPE in tensors:
        attributes[OUTPUT_SHAPE] = _sizes(tensors[OUTPUT_SHAPE], contents[OUTPUT_SHAPE])
    x = tensors[INPUT]
    ours = named.request(x.datatype, x.shape, attributes.pop(OUTPUT_SHAPE), attributes)
    if [tensor.name for tensor in request.outputs] not in ([], [OUTPUT]):
        came = ", ".join(tensor.name for tensor in request.outputs)
        raise InvalidFieldError("outputs", f"{came}; {OUTPUT} is the only one")
    output = codec.read_request(ours).resolved()
    response = ModelInferResponse(model_name=named.name, model_version=NUMERICS_VERSION)
    y, sink = response.outputs.add(name=OUTPUT, datatype=x.datatype, shape=output.sizes), None
    for tensor in request.outputs:
        codec.refuse_unknown_fields(tensor, OUTPUT)
        sink = _range("outputs.y", tensor.parameters)
        if sink is not None and sink.length < output.wire_bytes:
            raise InvalidDataError(
                "outputs.y", f"{sink.length} bytes; the result takes {output.wire_bytes}"
            )
        y.parameters.MergeFrom(tensor.parameters)
    if sink is not None:
        sink.length = output.wire_bytes
    return Inference(
        model=model,
        header=ours.SerializeToString(deterministic=True),
        source=_range("inputs.x", x.parameters),
        sink=sink,
        response=response.SerializeToString(),
    )


def _sizes(tensor: Any, contents: memoryview) -> list[int]:
    """Return the elements of the input output_shape."""
    count = len(contents) / 8
    if tensor.datatype != "INT64" or list(tensor.shape) != [count] or not 1 <= count <= MAX_RANK:
        raise InvalidFieldError(
            f"inputs.{OUTPUT_SHAPE}",
            f"{tensor.datatype} of shape {list(tensor.shape)} in {len(contents)} bytes; INT64 of "
            f"shape [axes], at most {MAX_RANK}, is needed, in the message",
        )
    sizes: list[int] = np.frombuffer(contents, "<i8").tolist()
    return sizes


def _values(field: str, parameters: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values of parameters; field is the path before "parameters"."""
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice is None:
            raise InvalidFieldError(
                f"{field}parameters.{name}", "has no value, or one of an unknown type"
            )
        yield name, getattr(parameter, choice)


def _range(field: str, parameters: Any) -> v1.SharedRange | None:
    """Return the range of shared memory that a tensor's parameters name."""
    found = v1.SharedRange()
    for name, value in _values(f"{field}.", parameters):
        if name not in {*_RANGE, "binary_data"}:
            raise InvalidFieldError(f"{field}.parameters.{name}", "is not known here")
        try:
            if name in _RANGE:
                setattr(found, _RANGE[name], value)
        except (TypeError, ValueError) as error:
            raise InvalidFieldError(f"{field}.parameters.{name}", f"{value!r}; {error}") from None
    return found if _REGION in parameters else None
