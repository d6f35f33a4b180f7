"""Arguments of evaluations, checked; their requests, encoded, and their results, decoded."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from google.protobuf.message import DecodeError

from gradwire import ops, tensors, v1
from gradwire._wire.framing import Parts, evaluation_frame, parsed, read_evaluation
from gradwire.errors import DataLossError, InvalidRequestError, ServerError
from gradwire.tensors import Array, Descriptor, DType, Shape, Sizes

# A year. grpc's clocks overflow some way beyond, and such calls end at once.
MAX_TIMEOUT_S = 365 * 24 * 3600
# The server refuses smaller chunks: each chunk of a result costs it a message.
LEAST_CHUNK_BYTES = 4096
# Seconds between two calls of on_progress.
PROGRESS_INTERVAL_S = 0.1


class Item(NamedTuple):
    """One evaluation among many; `Client.evaluate` describes the fields.

    A plain tuple of two to four of them is accepted too.
    """

    op: ops.Operator
    array: object
    output_shape: Sizes | None = None
    out: Array | None = None


ItemLike: TypeAlias = Item | tuple[Any, ...]


def as_item(given: Any) -> Item:
    """Return an Item; raise TypeError unless given one or its fields."""
    if isinstance(given, Item):
        return given
    came = f"a {type(given).__name__}"
    if tuple in type(given).__mro__:
        with contextlib.suppress(TypeError):
            return Item(*given)
        came += f" of {len(given)}"
    raise TypeError(f"an item is {came}; give gradwire.Item(op, array), or a tuple of its fields")


def check_operator(operator: object) -> ops.Operator:
    """Return operator if it is one; raise TypeError otherwise."""
    if not isinstance(operator, ops.Operator) or type(operator) is ops.Operator:
        raise TypeError(f"op is a {type(operator).__name__}; give an operator of gradwire.ops")
    return operator


def check_max_in_flight(count: object) -> int:
    """Return max_in_flight; raise InvalidRequestError unless it is a positive integer."""
    if type(count) is not int or count < 1:
        raise InvalidRequestError.of("max_in_flight", f"is {count!r}; give an integer, at least 1")
    return count


def check_timeout(
    timeout_s: float | None,
    name: str = "timeout_s",
    *,
    or_none: bool = True,
) -> float | None:
    """Return a timeout; raise InvalidRequestError unless it is positive or None.

    or_none  whether None is allowed
    """
    if timeout_s is None and or_none:
        return None
    if not (isinstance(timeout_s, int | float) and 0 < timeout_s <= MAX_TIMEOUT_S):
        hint = ", or None for the default" if or_none else ""
        raise InvalidRequestError.of(
            name, f"is {timeout_s!r}; give seconds above 0, at most {MAX_TIMEOUT_S}{hint}"
        )
    return timeout_s


class Progress:
    """Calls on_progress(sent_bytes, received_bytes), at most 10 times a second, never decreasing.

    is_wanted  whether there is a callback

    on_progress  the callback; None for none
    """

    def __init__(
        self,
        on_progress: Callable[[int, int], object] | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_wanted = on_progress is not None
        self._on_progress = on_progress
        self._clock = clock
        self._reported = (0, 0)
        self._next_at = clock()

    def report(self, sent_bytes: int, received_bytes: int) -> None:
        """Report the progress, unless it is unchanged or just reported."""
        if not self.is_wanted or self._clock() < self._next_at:
            return
        before = self._reported
        self._reported = max(sent_bytes, before[0]), max(received_bytes, before[1])
        if self._reported != before:
            self.finish(*self._reported)
            self._next_at = self._clock() + PROGRESS_INTERVAL_S

    def finish(self, sent_bytes: int, received_bytes: int) -> None:
        """Report the end."""
        if self._on_progress is not None:
            self._on_progress(sent_bytes, received_bytes)


@dataclass(frozen=True, slots=True)
class ArrayRequest:
    """One evaluation of an array.

    template    operator and layout of both tensors
    source      the input, any strides
    out         array for the result; None to allocate one
    request_id  name in the server's log, the same for every try; ASCII
    """

    template: RequestTemplate
    source: Array
    out: Array | None
    request_id: str

    def reordered(self) -> ArrayRequest | None:
        """Return the request with axes nesting as in the result.

        None of the input's axes is broadcast then. Returns None if that holds already. Bytes are
        gathered while they are sent, without a copy of the whole input.
        """
        # An inferred output is row-major.
        given = self.template.input
        nesting = self.template.output or Descriptor(data_type=given.data_type, sizes=given.sizes)
        reordered = tensors.result_descriptor(nesting, given.sizes)
        if reordered == given:
            return None
        return replace(self, template=replace(self.template, input=reordered))

    def unary_request(self, *, checked: bool = False) -> tuple[bytes, int | None]:
        """Return the request as one message, and its checksum if any."""
        name, data = self.request_id.encode("ascii"), self.template.data(self.source)
        return evaluation_frame(name, self.template.header, data, 0 if checked else None)

    def unary_result(self, response: bytes, *, after: int | None = None) -> Array:
        """Decode the response.

        after  checksum of the request; None if it has none
        """
        try:
            _, header, data = _read_response(response, after)
            return self.template.result(header, data, out=self.out)
        except (ServerError, DataLossError) as error:
            error.request_id = self.request_id
            raise

    def result_as(self, output: Descriptor) -> Array:
        """Return the array for a result with this descriptor."""
        self.template.check_result(output)
        return self.out if self.out is not None else tensors.empty_result(output)


def prepare(
    operator: object,
    array: object,
    *,
    output_shape: Sizes | None,
    out: Array | None,
) -> ArrayRequest:
    """Check the arguments of evaluate() and choose the layout of both tensors.

    Without out the result's axes nest as the input's, which can be streamed at any size.
    """
    template, source = find_template(operator, array, output_shape=output_shape, out=out)
    # No secret, so it may be guessed.
    return ArrayRequest(template, source, out, f"{random.getrandbits(128):032x}")


# Templates of evaluations seen before, since equal ones are common; safe for threads.
_TEMPLATES: dict[Hashable, RequestTemplate] = {}
_MOST_TEMPLATES = 256


def find_template(
    operator: object,
    array: object,
    *,
    output_shape: Sizes | None,
    out: Array | None,
) -> tuple[RequestTemplate, Array]:
    """Check the arguments of evaluate(); return their template, and the array."""
    checked = check_operator(operator)
    key = _key_of(checked, array, output_shape) if out is None else None
    template = _TEMPLATES.get(key)
    # 0.0 and -0.0 are equal, but encode differently.
    if template is not None and (template.op is checked or repr(template.op) == repr(checked)):
        return template, np.asarray(array)
    source = tensors.to_array(array)
    described = tensors.describe(source)
    output = None
    if out is not None:
        shape = np.shape(out) if output_shape is None else output_shape
        shape = tensors.check_sizes("output", shape)
        dtype = tensors.DTYPES[described.data_type]
        output = tensors.describe(tensors.check_out(out, dtype=dtype, shape=shape, source=source))
    elif output_shape is not None:
        output = tensors.result_descriptor(described, output_shape)
    template = RequestTemplate(checked, ops.to_message(checked), described, output)
    if key is not None:
        if len(_TEMPLATES) >= _MOST_TEMPLATES:
            _TEMPLATES.clear()
        _TEMPLATES[key] = template
    return template, source


def _read_response(response: bytes, after: int | None) -> Parts:
    found = read_evaluation(response, after)
    if found is None:
        # Protobuf would encode it differently.
        message = parsed(v1.EvaluateResponse, response)
        data = memoryview(message.data)
        message.ClearField("data")
        found = (b"", message.SerializeToString(), data), None
    parts, checksum = found
    if after is not None and checksum is None:
        raise DataLossError("a response came without its checksum")
    return parts


@dataclass(frozen=True, eq=False)
class RequestTemplate:
    """An evaluation without its arrays; safe for threads.

    op      operator as the caller gave it
    input   layout of the input on the wire
    output  layout of the result; None if the server infers it from the attributes
    """

    op: ops.Operator
    operator: v1.Operator
    input: Descriptor
    output: Descriptor | None

    @cached_property
    def header(self) -> bytes:
        """The request's bytes without request_id and data."""
        request = v1.EvaluateRequest(operator=self.operator, input=self.input, output=self.output)
        return request.SerializeToString()

    @cached_property
    def input_bytes(self) -> int:
        """Bytes of the input on the wire."""
        return tensors.wire_bytes(self.input)

    @cached_property
    def output_bytes(self) -> int | None:
        """Bytes of the result on the wire; None for an inferred shape."""
        return None if self.output is None else tensors.wire_bytes(self.output)

    @cached_property
    def bulk_bytes(self) -> int:
        """Bytes on the wire of the larger of input and result."""
        return max(self.input_bytes, self.output_bytes or 0)

    @cached_property
    def _on_wire(self) -> DType:
        """Type of both tensors, in the byte order of the wire."""
        return tensors.DTYPES[self.input.data_type].newbyteorder("<")

    def data(self, source: Array) -> memoryview:
        """Return an input's bytes, by reference if in wire order."""
        row_major = not self.input.strides and source.flags.c_contiguous
        if row_major and source.dtype == self._on_wire:
            return source.reshape(-1).view(np.uint8).data
        return tensors.WireView(source, self.input).read(0, self.input_bytes)

    def array(self, data: memoryview) -> Array:
        """View an input's bytes on the wire as an array."""
        sizes, strides = tuple(self.input.sizes), tensors.byte_strides(self.input)
        return np.ndarray(sizes, self._on_wire, data, strides=strides)

    def result(self, header: bytes, data: memoryview, *, out: Array | None) -> Array:
        """Return the result of a response, stored in out if given.

        Raises ServerError for another result than requested.
        """
        output, shape, nbytes = _announced(self, header)
        if len(data) != nbytes:
            raise ServerError(f"the server sent {len(data)} result bytes and announced {nbytes}")
        if out is None and shape is not None:
            # The type itself, not an equal one: some libraries compare by identity.
            kind = tensors.DTYPES[self.input.data_type]
            return np.ndarray(shape, self._on_wire, data).astype(kind)
        result = tensors.empty_result(output) if out is None else out
        tensors.WireView(result, output).write(0, data)
        return result

    def check_result(self, output: Descriptor) -> None:
        """Raise ServerError if the server announces another result than requested."""
        wanted = self.output or output
        sound = len(output.strides) in {0, len(output.sizes)} and min(output.sizes, default=-1) >= 0
        if (
            not sound
            or output.data_type != self.input.data_type
            or output.sizes != wanted.sizes
            or tensors.wire_axes(output) != tensors.wire_axes(wanted)
        ):
            raise ServerError(
                f"the server announced the result as {_words(output)}; "
                f"{_words(self.output or self.input)} was asked for"
            )


@lru_cache(4 * _MOST_TEMPLATES)
def _announced(template: RequestTemplate, header: bytes) -> tuple[Descriptor, Shape | None, int]:
    """Return the announced result, its shape and its bytes.

    The shape is None unless the result is row-major.
    """
    try:
        output = v1.EvaluateResponse.FromString(header).output
    except DecodeError as error:
        raise ServerError(
            f"the server sent a header of {len(header)} bytes that cannot be read"
        ) from error
    template.check_result(output)
    shape = None if output.strides else tuple(output.sizes)
    return output, shape, tensors.wire_bytes(output)


def _key_of(op: ops.Operator, array: object, output_shape: Sizes | None) -> Hashable | None:
    """Return the cache key of an evaluation without out.

    None if equal keys could mean different requests: True == 1, but True is no valid size.
    """
    if type(array) is not np.ndarray:
        return None
    shape: Shape | None = None
    if output_shape is not None:
        shape = tuple(output_shape) if isinstance(output_shape, (tuple, list)) else ()
        if not shape or not all(type(size) is int for size in shape):
            return None
    return op, array.dtype, array.shape, array.strides, shape


def _words(descriptor: Descriptor) -> str:
    sizes, strides = list(descriptor.sizes), list(descriptor.strides)
    return f"data type {descriptor.data_type}, sizes {sizes}, strides {strides}"
