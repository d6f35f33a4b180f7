"""One evaluation as a value: what is computed, on which array, and where its result goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from gradwire import ops, tensors, v1
from gradwire.errors import ServerError


@dataclass(frozen=True, slots=True)
class Job:
    """One evaluation.

    source      the input, any strides
    input       how its elements travel
    output      how those of the result do; None where the server infers it from the attributes
    out         where the result is stored; None where an array is made for it
    request_id  its name in the server's log, the same for every try
    """

    operator: v1.Operator
    source: NDArray[Any]
    input: v1.TensorDescriptor
    output: v1.TensorDescriptor | None
    out: NDArray[Any] | None
    request_id: str

    @property
    def input_bytes(self) -> int:
        """Bytes of the input on the wire."""
        return tensors.wire_bytes(self.input)

    @property
    def bulk_bytes(self) -> int:
        """Bytes on the wire of the input or of the result, whichever is larger."""
        output_bytes = 0 if self.output is None else tensors.wire_bytes(self.output)
        return max(self.input_bytes, output_bytes)

    def reordered(self) -> Job | None:
        """Return the job with the input's axes nesting as the result's do, none of them broadcast.

        None where they do already. The bytes are gathered while they are sent; no copy of the whole
        input is made.
        """
        # An inferred output is row-major.
        nesting = self.output or v1.TensorDescriptor(
            data_type=self.input.data_type, sizes=self.input.sizes
        )
        reordered = tensors.result_descriptor(nesting, self.input.sizes)
        return None if reordered == self.input else replace(self, input=reordered)

    def unary_request(self) -> v1.EvaluateRequest:
        """Encode the whole job as one message."""
        view = tensors.WireView(self.source, self.input)
        return v1.EvaluateRequest(
            request_id=self.request_id,
            operator=self.operator,
            input=self.input,
            output=self.output,
            data=bytes(view.read(0, view.nbytes)),
        )

    def unary_result(self, response: v1.EvaluateResponse) -> NDArray[Any]:
        """Decode the answer."""
        result = self.result_as(response.output)
        view = tensors.WireView(result, response.output)
        if len(response.data) != view.nbytes:
            raise ServerError(
                f"the server sent {len(response.data)} result bytes and announced {view.nbytes}",
                request_id=self.request_id,
            )
        view.write(0, response.data)
        return result

    def result_as(self, output: v1.TensorDescriptor) -> NDArray[Any]:
        """Return the array for a result that the server describes so."""
        wanted = self.output or output
        sound = len(output.strides) in {0, len(output.sizes)} and min(output.sizes, default=0) >= 1
        if not sound or output.data_type != self.input.data_type or not _alike(output, wanted):
            raise ServerError(
                f"the server announced the result as {_words(output)}; "
                f"{_words(self.output or self.input)} was asked for",
                request_id=self.request_id,
            )
        return self.out if self.out is not None else tensors.empty_result(output)


def prepare(
    operator: object,
    array: object,
    *,
    output_shape: Sequence[int] | None,
    out: NDArray[Any] | None,
) -> Job:
    """Check the arguments of evaluate() and settle how both tensors travel.

    Without out, the result's axes nest as the input's do: that can be streamed at any size.
    """
    checked = check_operator(operator)
    source = tensors.as_array(array)
    described = tensors.describe(source)
    output = None
    if out is not None:
        shape = np.shape(out) if output_shape is None else output_shape
        dtype = tensors.DTYPES[described.data_type]
        shape = tensors.check_sizes("output", shape)
        output = tensors.describe(tensors.check_out(out, dtype=dtype, shape=shape, source=source))
    elif output_shape is not None:
        output = tensors.result_descriptor(described, output_shape)
    return Job(ops.to_message(checked), source, described, output, out, uuid4().hex)


def check_operator(operator: object) -> ops.Operator:
    """Return operator if it is one; raise TypeError otherwise."""
    if not isinstance(operator, ops.Operator):
        raise TypeError(f"op is a {type(operator).__name__}; give an operator of gradwire.ops")
    return operator


def _alike(one: v1.TensorDescriptor, other: v1.TensorDescriptor) -> bool:
    """Whether two sound descriptors mean the same bytes."""
    return one.sizes == other.sizes and tensors.wire_axes(one) == tensors.wire_axes(other)


def _words(descriptor: v1.TensorDescriptor) -> str:
    sizes, strides = list(descriptor.sizes), list(descriptor.strides)
    return f"data type {descriptor.data_type}, sizes {sizes}, strides {strides}"
