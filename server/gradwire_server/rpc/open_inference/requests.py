"""Models, and the requests of ModelInfer, read as those of Evaluate."""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gradwire import v1
from gradwire._wire.framing import LENGTH_BYTES, read_varint, varint
from gradwire.tensors import MAX_RANK
from gradwire_server.config.models import NamedModel
from gradwire_server.engine import NUMERICS_VERSION
from gradwire_server.errors import InvalidDataError, InvalidFieldError, UnknownModelError
from gradwire_server.observability.recording import Phases
from gradwire_server.rpc import codec
from gradwire_server.rpc.open_inference.descriptors import message

INPUT, OUTPUT, OUTPUT_SHAPE, PLATFORM = "x", "y", "output_shape", "gradwire"
ModelInferRequest, ModelInferResponse = message("ModelInferRequest"), message("ModelInferResponse")

# Names of a call's duration, and of its phases in the order of Phases.seconds.
_DURATIONS = ("success", "compute_input", "queue", "compute_infer", "compute_output")
# Tags of id, of raw contents and of all other fields; fields that a message has, at most.
_ID, _RAW, _OTHERS, _MOST_FIELDS = 0x1A, 0x3A, frozenset((0x0A, 0x12, 0x22, 0x2A, 0x32)), 64
# Raw contents, and typed ones within an input.
_DATA_FIELDS: Final[codec.DataFields] = {7: None, 5: {5: {6: None, 7: None}}}
_TYPED = {"FP32": "<f4", "FP64": "<f8", "INT64": "<i8"}
# Parameters of Triton that change no result here; each other one is an attribute.
_RESERVED = re.compile("sequence_id|sequence_start|sequence_end|priority|timeout|triton_.*")
# Parameters of tensors that name a range of shared memory, as fields of v1.SharedRange.
_REGION = "shared_memory_region"
_RANGE = {_REGION: "handle", "shared_memory_offset": "offset", "shared_memory_byte_size": "length"}
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
    """A model, descriptions of it, and the statistics of its calls.

    named             datatype, dims and attributes that requests leave out
    metadata, config  fields of ModelMetadataResponse and of ModelConfig
    """

    def __init__(self, named: NamedModel) -> None:
        self.named = named
        # By outcome of a call, and by name of a duration.
        self._calls, self._seconds = {True: 0, False: 0}, defaultdict[str, float](float)
        self._last_ms = 0
        told = {"name": named.name, "platform": PLATFORM}
        any_size = (-1,) * len(named.dims)
        sizes = {INPUT: named.dims, OUTPUT: named.output_shape or any_size}.items()
        x, y = ({"name": n, "datatype": named.datatype, "shape": s} for n, s in sizes)
        self.metadata = {**told, "versions": [NUMERICS_VERSION], "inputs": [x], "outputs": [y]}
        x, y = ({"name": n, "data_type": f"TYPE_{named.datatype}", "dims": s} for n, s in sizes)
        self.config = {**told, "backend": PLATFORM, "input": [x], "output": [y]}

    def note(self, phases: Phases, duration_s: float, *, succeeded: bool) -> None:
        """Count a call; phases of calls that failed are not counted."""
        self._calls[succeeded] += 1
        spent_s = (duration_s, *phases.seconds.values())
        for name, seconds in zip(_DURATIONS if succeeded else ("fail",), spent_s, strict=False):
            self._seconds[name] += seconds
        if succeeded:
            self._last_ms = time.time_ns() // 1_000_000

    def statistics(self) -> dict[str, Any]:
        """Return the fields of ModelStatistics."""
        count = self._calls[True]
        counts = {"fail": self._calls[False], **dict.fromkeys(_DURATIONS, count)}
        return {
            "name": self.named.name,
            "version": NUMERICS_VERSION,
            "last_inference": self._last_ms,
            "inference_count": count,
            "execution_count": count,
            "inference_stats": {
                name: {"count": calls, "ns": int(1e9 * self._seconds[name])}
                for name, calls in counts.items()
            },
        }


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
        if self.sink is not None:
            result = _NOTHING  # empty, and not absent: clients read the contents of each output
        identity = ModelInferResponse(id=request_id).SerializeToString()
        return b"".join((self.response, identity, b"\x32", varint(len(result)), result))


class Models(dict[str, Model]):
    """All models, by name, which read their requests.

    Requests that differ only in id and raw contents are decoded once.
    """

    def __init__(self, named: Mapping[str, NamedModel]) -> None:
        super().__init__({name: Model(each) for name, each in named.items()})
        self._known: dict[tuple[bytes, int], Inference] = {}

    def find(self, name: str, version: str) -> Model:
        """Return a model; raise UnknownModelError if there is none."""
        if name not in self:
            raise UnknownModelError(f"model_name: {name!r} is not a model; give {', '.join(self)}")
        if version not in {"", NUMERICS_VERSION}:
            came = f"model_version: {name} has no version {version!r}"
            raise UnknownModelError(f"{came}; give {NUMERICS_VERSION} or none")
        return self[name]

    def read(self, data: bytes) -> tuple[str, Inference, memoryview]:
        """Return id, request and contents of x; raise EvaluationError."""
        request_id, fields, raw = _split(data)
        key = fields, len(raw)
        if known := self._known.get(key):
            return request_id, known, raw[0] if raw else _NOTHING
        request = codec.parse(ModelInferRequest, fields, _DATA_FIELDS)
        for part in (request, *request.inputs, *request.outputs):
            codec.refuse_unknown_fields(part)
        model = self.find(request.model_name, request.model_version)
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


def _split(data: bytes) -> tuple[str, bytes, list[memoryview]]:
    """Return id, the other fields encoded, and raw contents, not copied.

    Protobuf would copy them. It reads messages with many fields, or in another encoding.
    """
    request_id, fields, raw, at = b"", list[bytes](), list[memoryview](), 0
    with suppress(IndexError):
        for _ in range(_MOST_FIELDS):
            tag, length, start = data[at], data[at + 1], at + 2
            if length & 0x80:  # it has more bytes
                length, start = read_varint(data, at + 1, LENGTH_BYTES)
            stop = start + length
            if tag == _RAW:
                raw.append(memoryview(data)[start:stop])
            elif tag == _ID:
                request_id = data[start:stop]
            elif tag in _OTHERS:
                fields.append(data[at:stop])
            else:
                break
            at = stop
    if at != len(data):
        request = codec.parse(ModelInferRequest, data, _DATA_FIELDS)
        request_id = request.id.encode()
        raw = [memoryview(each) for each in request.raw_input_contents]
        request.ClearField("id")
        request.ClearField("raw_input_contents")
        fields = [request.SerializeToString()]
    return request_id.decode(errors="replace"), b"".join(fields), raw


def _contents(request: Any, raw: Sequence[memoryview]) -> dict[str, memoryview]:
    """Return the contents of each input, by name; empty for shared memory."""
    names = [tensor.name for tensor in request.inputs]
    if sorted(names) not in ([INPUT], [OUTPUT_SHAPE, INPUT]):
        came = ", ".join(names) or "none"
        raise InvalidFieldError("inputs", f"{came}; {INPUT} is needed, {OUTPUT_SHAPE} is taken")
    found, left = dict[str, memoryview](), list(raw)
    for tensor in request.inputs:
        elsewhere = _REGION in tensor.parameters
        if tensor.HasField("contents"):
            if elsewhere or raw:
                raise InvalidDataError(f"inputs.{tensor.name}", "has typed contents and others")
            found[tensor.name] = _typed(tensor)
        elif elsewhere:
            found[tensor.name] = _NOTHING
        elif left:
            found[tensor.name] = left.pop(0)
    if left or len(found) < len(names):
        missing = f"{len(raw)} given; one is needed for each input that has no other contents"
        raise InvalidDataError("raw_input_contents", missing)
    return found


def _typed(tensor: Any) -> memoryview:
    """Return typed contents as raw ones."""
    dtype = _TYPED.get(tensor.datatype)
    wanted = f"{tensor.datatype.lower()}_contents" if dtype else "raw_input_contents"
    for field, _ in tensor.contents.ListFields():
        if field.name != wanted:
            path = f"inputs.{tensor.name}.contents.{field.name}"
            raise InvalidDataError(path, f"{tensor.datatype} has {wanted}")
    return memoryview(np.array(getattr(tensor.contents, wanted, ()), dtype).tobytes())


def _decode(model: Model, request: Any, contents: Mapping[str, memoryview]) -> Inference:
    """Return the request for a model.

    Errors of the equal EvaluateRequest name its own fields.
    """
    named, tensors = model.named, {tensor.name: tensor for tensor in request.inputs}
    attributes: dict[str, Any] = {**named.attributes, OUTPUT_SHAPE: named.output_shape}
    for name, value in _values("parameters", request.parameters):
        if not _RESERVED.fullmatch(name):
            attributes[name] = value
            if isinstance(value, str):  # JSON; other texts stand for themselves
                with suppress(ValueError, RecursionError):
                    attributes[name] = json.loads(value)
    if OUTPUT_SHAPE in tensors:
        if OUTPUT_SHAPE in request.parameters:
            raise InvalidFieldError("parameters.output_shape", "is an input too; give one of them")
        attributes[OUTPUT_SHAPE] = _sizes(tensors[OUTPUT_SHAPE], contents[OUTPUT_SHAPE])
    x, outputs = tensors[INPUT], [tensor.name for tensor in request.outputs]
    ours = named.request(x.datatype, x.shape, attributes.pop(OUTPUT_SHAPE), attributes)
    if outputs not in ([], [OUTPUT]):
        raise InvalidFieldError("outputs", f"{', '.join(outputs)}; {OUTPUT} is the only one")
    result = codec.read_request(ours).resolved()
    wanted = request.outputs[0] if outputs else request.outputs.add()
    sink, needed = _range("outputs.y.parameters", wanted.parameters), result.wire_bytes
    if sink is not None:
        if sink.length < needed:
            raise InvalidDataError("outputs.y", f"{sink.length} bytes; the result takes {needed}")
        sink.length = needed
    response = ModelInferResponse(model_name=named.name, model_version=NUMERICS_VERSION)
    y = response.outputs.add(name=OUTPUT, datatype=x.datatype, shape=result.sizes)
    y.parameters.MergeFrom(wanted.parameters)
    header = ours.SerializeToString(deterministic=True)
    source = _range("inputs.x.parameters", x.parameters)
    return Inference(model, header, source, sink, response.SerializeToString())


def _sizes(tensor: Any, contents: memoryview) -> list[int]:
    """Return the elements of the input output_shape."""
    count, shape = len(contents) / 8, list(tensor.shape)
    if tensor.datatype != "INT64" or shape != [count] or not 1 <= count <= MAX_RANK:
        raise InvalidFieldError(
            f"inputs.{OUTPUT_SHAPE}",
            f"{tensor.datatype} of shape {shape} in {len(contents)} bytes; INT64 of shape [axes], "
            f"at most {MAX_RANK}, is needed, in the message",
        )
    sizes: list[int] = np.frombuffer(contents, "<i8").tolist()
    return sizes


def _values(path: str, parameters: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values of parameters; raise InvalidFieldError for no value."""
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice is None:
            raise InvalidFieldError(f"{path}.{name}", "has no value, or one of an unknown type")
        yield name, getattr(parameter, choice)


def _range(path: str, parameters: Any) -> v1.SharedRange | None:
    """Return the range of shared memory that a tensor's parameters name."""
    found = v1.SharedRange()
    for name, value in _values(path, parameters):
        try:
            if name != "binary_data":
                setattr(found, _RANGE[name], value)
        except KeyError:
            raise InvalidFieldError(f"{path}.{name}", "is not known here") from None
        except (TypeError, ValueError) as error:
            raise InvalidFieldError(f"{path}.{name}", f"{value!r}; {error}") from None
    return found if _REGION in parameters else None
