"""What evaluations share that differ in the numbers of their tensors only; equal ones are kept."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from gradwire import ops, tensors, v1
from gradwire.errors import ServerError

# Templates that are kept, and headers of results that each of them knows.
_MOST_TEMPLATES = 256
_MOST_RESULTS = 4


@dataclass(frozen=True, slots=True, eq=False)
class _Result:
    """A result that the server may announce.

    shape   where its bytes are those of a row-major array, that array's; otherwise None
    nbytes  on the wire
    """

    output: v1.TensorDescriptor
    shape: tuple[int, ...] | None
    nbytes: int


@dataclass(frozen=True, eq=False)
class Template:
    """An evaluation without its arrays. Threads may share it.

    op      what the caller gave
    input   how the input's elements travel
    output  how those of the result do; None where the server infers it from the attributes
    """

    op: ops.Operator
    operator: v1.Operator
    input: v1.TensorDescriptor
    output: v1.TensorDescriptor | None

    @cached_property
    def header(self) -> bytes:
        """The request's bytes but for its request_id and data."""
        request = v1.EvaluateRequest(operator=self.operator, input=self.input, output=self.output)
        return request.SerializeToString()

    @cached_property
    def input_bytes(self) -> int:
        """Bytes of the input on the wire."""
        return tensors.wire_bytes(self.input)

    @cached_property
    def bulk_bytes(self) -> int:
        """Bytes on the wire of the input or of the result, whichever is larger."""
        output_bytes = 0 if self.output is None else tensors.wire_bytes(self.output)
        return max(self.input_bytes, output_bytes)

    @cached_property
    def _dtype(self) -> np.dtype[Any]:
        return tensors.DTYPES[self.input.data_type]

    @cached_property
    def _row_major(self) -> bool:
        return not self.input.strides and sys.byteorder == "little"

    def data(self, source: NDArray[Any]) -> memoryview:
        """Return the bytes of an input, by reference where they lie in wire order."""
        if self._row_major and source.flags.c_contiguous and source.dtype == self._dtype:
            return source.reshape(-1).view(np.uint8).data
        return tensors.WireView(source, self.input).read(0, self.input_bytes)

    def array(self, data: memoryview) -> NDArray[Any]:
        """Return the input that has these bytes on the wire."""
        described = self.input
        strides = tensors.strides_of(described)
        sizes = [
            size if stride else 1 for size, stride in zip(described.sizes, strides, strict=True)
        ]
        carried = v1.TensorDescriptor(data_type=described.data_type, sizes=sizes, strides=strides)
        array = tensors.empty_result(carried)
        tensors.WireView(array, carried).write(0, data)
        return np.broadcast_to(array, tuple(described.sizes))

    def result(self, header: bytes, data: memoryview, *, out: NDArray[Any] | None) -> NDArray[Any]:
        """Store a result from the header and the data of a response, in out where it is given.

        Raises ServerError where it is not the one that was asked for.
        """
        known = self._known(header)
        if len(data) != known.nbytes:
            raise ServerError(
                f"the server sent {len(data)} result bytes and announced {known.nbytes}"
            )
        if out is None and known.shape is not None:
            dtype = tensors.DTYPES[known.output.data_type]
            return np.ndarray(known.shape, dtype.newbyteorder("<"), data).astype(dtype)
        result = tensors.empty_result(known.output) if out is None else out
        tensors.WireView(result, known.output).write(0, data)
        return result

    @cached_property
    def _results(self) -> dict[bytes, _Result]:
        return {}

    def _known(self, header: bytes) -> _Result:
        known = self._results.get(header)
        if known is None:
            known = self._read(header)
            if len(self._results) < _MOST_RESULTS:
                self._results[header] = known
        return known

    def _read(self, header: bytes) -> _Result:
        try:
            output = v1.EvaluateResponse.FromString(header).output
        except DecodeError as error:
            raise ServerError(
                f"the server sent a header of {len(header)} bytes that is none"
            ) from error
        self.check_result(output)
        nbytes = tensors.wire_bytes(output)
        return _Result(output, None if output.strides else tuple(output.sizes), nbytes)

    def check_result(self, output: v1.TensorDescriptor) -> None:
        """Raise ServerError where the server announces another result than was asked for."""
        wanted = self.output or output
        sound = len(output.strides) in {0, len(output.sizes)} and min(output.sizes, default=-1) >= 0
        if not sound or output.data_type != self.input.data_type or not _alike(output, wanted):
            raise ServerError(
                f"the server announced the result as {_words(output)}; "
                f"{_words(self.output or self.input)} was asked for"
            )


class Templates:
    """Finds the template of an evaluation, since equal ones are common. Threads may share it."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, Template] = {}

    def get(self, key: Hashable, op: ops.Operator) -> Template | None:
        """Return the template that was kept under a key of `key_of` for this operator."""
        found = self._kept.get(key)
        # Equal numbers such as 0.0 and -0.0 are spelled in their own ways.
        if found is None or (found.op is not op and repr(found.op) != repr(op)):
            return None
        return found

    def keep(self, key: Hashable, template: Template) -> None:
        """Keep a template."""
        if len(self._kept) >= _MOST_TEMPLATES:
            self._kept.clear()
        self._kept[key] = template


def key_of(op: ops.Operator, array: object, output_shape: Sequence[int] | None) -> Hashable | None:
    """Return all that the template of an evaluation without out depends on.

    None where equality would not do: True and 1 are equal sizes, and only one of them is right.
    """
    if type(array) is not np.ndarray:
        return None
    shape: tuple[int, ...] | None = None
    if output_shape is not None:
        shape = tuple(output_shape) if isinstance(output_shape, (tuple, list)) else ()
        if not shape or not all(type(size) is int for size in shape):
            return None
    return op, array.dtype, array.shape, array.strides, shape


def _alike(one: v1.TensorDescriptor, other: v1.TensorDescriptor) -> bool:
    """Whether two sound descriptors mean the same bytes."""
    return one.sizes == other.sizes and tensors.wire_axes(one) == tensors.wire_axes(other)


def _words(descriptor: v1.TensorDescriptor) -> str:
    sizes, strides = list(descriptor.sizes), list(descriptor.strides)
    return f"data type {descriptor.data_type}, sizes {sizes}, strides {strides}"
