"""One evaluation as a value: what is computed, on which array, and where its result goes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from gradwire import ops, tensors, v1
from gradwire._framing import Parts, evaluation_frame, read_evaluation
from gradwire._templates import Template, Templates, key_of
from gradwire.errors import ServerError

_TEMPLATES = Templates()


@dataclass(frozen=True, slots=True)
class Job:
    """One evaluation.

    template    what is computed, and how both tensors travel
    source      the input, any strides
    out         where the result is stored; None where an array is made for it
    request_id  its name in the server's log, the same for every try; ASCII
    """

    template: Template
    source: NDArray[Any]
    out: NDArray[Any] | None
    request_id: str

    @property
    def operator(self) -> v1.Operator:
        """What is computed."""
        return self.template.operator

    @property
    def input(self) -> v1.TensorDescriptor:
        """How the input's elements travel."""
        return self.template.input

    @property
    def output(self) -> v1.TensorDescriptor | None:
        """How those of the result do; None where the server infers it from the attributes."""
        return self.template.output

    @property
    def input_bytes(self) -> int:
        """Bytes of the input on the wire."""
        return self.template.input_bytes

    @property
    def output_bytes(self) -> int | None:
        """Bytes of the result on the wire; None where the server infers its shape."""
        return None if self.output is None else tensors.wire_bytes(self.output)

    @property
    def bulk_bytes(self) -> int:
        """Bytes on the wire of the input or of the result, whichever is larger."""
        return self.template.bulk_bytes

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
        if reordered == self.input:
            return None
        return replace(self, template=replace(self.template, input=reordered))

    def unary_request(self) -> bytes:
        """Encode the whole job as one message."""
        template = self.template
        name = self.request_id.encode("ascii")
        return evaluation_frame(name, template.header, template.data(self.source))

    def unary_result(self, response: bytes) -> NDArray[Any]:
        """Decode the answer."""
        try:
            _, header, data = read_evaluation(response) or _parse(response)
            return self.template.result(header, data, out=self.out)
        except ServerError as error:
            error.request_id = self.request_id
            raise

    def result_as(self, output: v1.TensorDescriptor) -> NDArray[Any]:
        """Return the array for a result that the server describes so."""
        try:
            self.template.check_result(output)
        except ServerError as error:
            error.request_id = self.request_id
            raise
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
    template, source = find_template(operator, array, output_shape=output_shape, out=out)
    return Job(template, source, out, new_request_id())


def find_template(
    operator: object,
    array: object,
    *,
    output_shape: Sequence[int] | None,
    out: NDArray[Any] | None,
) -> tuple[Template, NDArray[Any]]:
    """Check the arguments of evaluate(); return their template, and the array."""
    checked = check_operator(operator)
    key = key_of(checked, array, output_shape) if out is None else None
    template = None if key is None else _TEMPLATES.get(key, checked)
    if template is not None:
        return template, np.asarray(array)
    source = tensors.as_array(array)
    described = tensors.describe(source)
    output = _described_output(source, described, output_shape=output_shape, out=out)
    template = Template(checked, ops.to_message(checked), described, output)
    if key is not None:
        _TEMPLATES.keep(key, template)
    return template, source


def new_request_id() -> str:
    """Make a name for a request. It is no secret, so that it need not be hard to guess."""
    return f"{random.getrandbits(128):032x}"


def _described_output(
    source: NDArray[Any],
    described: v1.TensorDescriptor,
    *,
    output_shape: Sequence[int] | None,
    out: NDArray[Any] | None,
) -> v1.TensorDescriptor | None:
    if out is not None:
        shape = np.shape(out) if output_shape is None else output_shape
        dtype = tensors.DTYPES[described.data_type]
        shape = tensors.check_sizes("output", shape)
        return tensors.describe(tensors.check_out(out, dtype=dtype, shape=shape, source=source))
    return None if output_shape is None else tensors.result_descriptor(described, output_shape)


def _parse(response: bytes) -> Parts:
    """Read a response that is written in another way than protobuf's."""
    try:
        message = v1.EvaluateResponse.FromString(response)
    except DecodeError as error:
        raise ServerError(f"the server sent {len(response)} bytes that are no message") from error
    data = memoryview(message.data)
    message.ClearField("data")
    return b"", message.SerializeToString(), data


def check_operator(operator: object) -> ops.Operator:
    """Return operator if it is one; raise TypeError otherwise."""
    if not isinstance(operator, ops.Operator):
        raise TypeError(f"op is a {type(operator).__name__}; give an operator of gradwire.ops")
    return operator
