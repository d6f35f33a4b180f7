"""The items of evaluate_many, to the bytes of their requests and from those of their results."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from gradwire import ops, tensors, v1
from gradwire._job import Job, prepare
from gradwire._many_framing import request_frame
from gradwire._statuses import from_in_band
from gradwire.errors import GradwireError, ServerError
from gradwire.retries import Tries

# Templates that are kept.
_MOST_TEMPLATES = 256

_NOTHING = np.empty(0, np.uint8)


class Item(NamedTuple):
    """One evaluation among many; what each field means says `Client.evaluate`.

    A plain tuple of two to four of them does as well.
    """

    op: ops.Operator
    array: object
    output_shape: Sequence[int] | None = None
    out: NDArray[Any] | None = None


def as_item(given: Any) -> Item:
    """Return what was given as an item; raise TypeError where it is none."""
    if isinstance(given, Item):
        return given
    came = f"a {type(given).__name__}"
    if tuple in type(given).__mro__:
        with contextlib.suppress(TypeError):
            return Item(*given)
        came += f" of {len(given)}"
    raise TypeError(f"an item is {came}; give gradwire.Item(op, array), or a tuple of its fields")


@dataclass(slots=True, eq=False)
class Template:
    """What items share that differ in the numbers of their tensors only.

    op             what was given
    job            the evaluation, without its arrays
    header         of the request
    bulk_bytes     of the input or the result, whichever is larger
    plain          whether the input's memory is in wire order
    known          header of a result whose bytes are those of a new array; None until one came
    shape, nbytes  of that result
    """

    op: ops.Operator
    job: Job
    header: bytes
    bulk_bytes: int
    plain: bool
    known: bytes | None = None
    shape: tuple[int, ...] = ()
    nbytes: int = 0

    @classmethod
    def of(cls, item: Item) -> tuple[Template, NDArray[Any]]:
        """Check an item as evaluate() does; return its template, and its array."""
        job = prepare(item.op, item.array, output_shape=item.output_shape, out=item.out)
        header = v1.EvaluateRequest(operator=job.operator, input=job.input, output=job.output)
        view = tensors.WireView(job.source, job.input)
        plain = job.source.flags.c_contiguous and view.in_place(0, view.nbytes) is not None
        bare = dataclasses.replace(job, source=_NOTHING)
        template = cls(item.op, bare, header.SerializeToString(), job.bulk_bytes, plain)
        return template, job.source

    def frame(self, name: bytes, array: NDArray[Any]) -> bytes:
        """Encode the request for an array."""
        if self.plain:
            return request_frame(name, self.header, array.reshape(-1).view(np.uint8).data)
        view = tensors.WireView(array, self.job.input)
        return request_frame(name, self.header, view.read(0, view.nbytes))

    def array(self, data: memoryview) -> NDArray[Any]:
        """Return the array that has these bytes."""
        described = self.job.input
        strides = tensors.strides_of(described)
        sizes = [
            size if stride else 1 for size, stride in zip(described.sizes, strides, strict=True)
        ]
        carried = v1.TensorDescriptor(data_type=described.data_type, sizes=sizes, strides=strides)
        array = tensors.empty_result(carried)
        tensors.WireView(array, carried).write(0, data)
        return np.broadcast_to(array, tuple(described.sizes))

    def result(self, header: bytes, data: memoryview) -> NDArray[Any]:
        """Decode a result; raise ServerError where it is not the one that was asked for."""
        if header == self.known and len(data) == self.nbytes:
            result = np.empty(self.shape, tensors.DTYPES[self.job.input.data_type])
            result.reshape(-1).view(np.uint8)[:] = data
            return result
        try:
            output = v1.EvaluateResponse.FromString(header).output
        except DecodeError as error:
            raise ServerError(
                f"the server sent a header of {len(header)} bytes that is none"
            ) from error
        result = self.job.result_as(output)
        view = tensors.WireView(result, output)
        if len(data) != view.nbytes:
            raise ServerError(
                f"the server sent {len(data)} result bytes and announced {view.nbytes}"
            )
        view.write(0, data)
        in_place = view.in_place(0, view.nbytes) is not None
        if self.job.out is None and result.flags.c_contiguous and in_place:
            self.shape, self.nbytes, self.known = result.shape, view.nbytes, header
        return result


class Templates:
    """Finds the template of an item, since items alike are common. Threads may share it."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Template] = {}

    def find(self, item: Item) -> tuple[Template, NDArray[Any]]:
        """Return the template and the array of an item; raise what evaluate() raises for it."""
        array: Any = item.array
        key = _key(item, array) if type(array) is np.ndarray else None
        if key is None:
            return Template.of(item)
        template = self._known.get(key)
        # Equal numbers such as 0.0 and -0.0 are spelled in their own ways.
        if template is None or (template.op is not item.op and repr(template.op) != repr(item.op)):
            template, _ = Template.of(item)
            if len(self._known) >= _MOST_TEMPLATES:
                self._known.clear()
            self._known[key] = template
        return template, array


@dataclass(slots=True, eq=False)
class Slot:
    """One item and what becomes of it.

    index    its place in the iterable
    name     of its request
    frame    the request; empty where it does not go by the common stream
    alone    the item where it goes by a call of its own
    settled  whether there is an outcome: an error, else the result
    """

    index: int
    name: bytes
    template: Template | None = None
    frame: bytes = b""
    alone: Item | None = None
    settled: bool = False
    result: NDArray[Any] | None = None
    error: BaseException | None = None
    tries: Tries | None = None

    @property
    def item(self) -> Item:
        """The item of a slot that goes alone."""
        if self.alone is None:
            raise AssertionError("it goes by the common stream")
        return self.alone


def parse_answer(message: bytes) -> tuple[bytes, tuple[bytes, memoryview] | GradwireError]:
    """Read an answer of any kind: its name, and header and data of the result, or the error.

    The name is empty where the error ends the stream. Raises ServerError where it is none of them.
    """
    try:
        response = v1.EvaluateManyResponse.FromString(message)
    except DecodeError as error:
        raise ServerError(f"the server sent {len(message)} bytes that are no message") from error
    name = response.request_id
    match response.WhichOneof("outcome"):
        case "result":
            header = v1.EvaluateResponse(output=response.result.output)
            data = memoryview(response.result.data)
            return name.encode(), (header.SerializeToString(), data)
        case "error":
            return name.encode(), from_in_band(response.error, request_id=name or None)
        case None:
            raise ServerError(f"the server answered {name or 'nothing'} with nothing")


def _key(item: Item, array: NDArray[Any]) -> Hashable | None:
    """Return all that a template depends on; None where equality would not do."""
    op: Any = item.op
    shape = item.output_shape
    if item.out is not None or not issubclass(type(op), ops.Operator):
        return None
    if shape is not None:
        shape = tuple(shape) if isinstance(shape, (tuple, list)) else ()
        if not shape or not all(type(size) is int for size in shape):
            return None
    return op, array.dtype, array.shape, array.strides, shape
