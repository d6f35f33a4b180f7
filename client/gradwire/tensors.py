"""Arrays to and from the wire: their descriptors, and the order in which their bytes travel.

Wire order is little-endian elements in ascending address order, padding gaps skipped, each
broadcast (stride 0) axis once. So the server is told only which axes are broadcast and in which
order the others nest; padding, and axes that run backward in memory, stay this side's affair.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, cast

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from gradwire import v1
from gradwire._wire.arrays import WireOrder, nested_axes, share_memory, to_array
from gradwire._wire.text import counted
from gradwire.errors import InvalidRequestError

__all__ = [
    "DATA_TYPES",
    "DTYPES",
    "MAX_RANK",
    "WireView",
    "as_array",
    "check_out",
    "check_sizes",
    "data_type_of",
    "describe",
    "element_count",
    "empty_result",
    "result_descriptor",
    "strides_of",
    "wire_axes",
    "wire_bytes",
]

MAX_RANK = 8

DTYPES: dict[v1.DataType.ValueType, np.dtype[Any]] = {
    v1.DataType.DATA_TYPE_FLOAT32: np.dtype(np.float32),
    v1.DataType.DATA_TYPE_FLOAT16: np.dtype(np.float16),
    v1.DataType.DATA_TYPE_BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    v1.DataType.DATA_TYPE_FLOAT64: np.dtype(np.float64),
}

DATA_TYPES = {dtype: data_type for data_type, dtype in DTYPES.items()}


class WireView:
    """The bytes of an array in the wire order of its descriptor, without a copy of the whole.

    array       any strides and either byte order
    descriptor  of the array's sizes; by default the array's own. Another one, such as a result's,
                makes the axes nest in its order, so that transposing takes no memory
    """

    def __init__(self, array: NDArray[Any], descriptor: v1.TensorDescriptor | None = None) -> None:
        descriptor = describe(array) if descriptor is None else descriptor
        if tuple(descriptor.sizes) != array.shape:
            raise ValueError(f"descriptor has sizes {list(descriptor.sizes)}, array {array.shape}")
        self._order = WireOrder(array, wire_axes(descriptor))

    @property
    def nbytes(self) -> int:
        """Bytes on the wire."""
        return self._order.nbytes

    def in_place(self, start: int, stop: int) -> NDArray[np.uint8] | None:
        """View bytes start..stop-1 of the array's own memory; None where it has another order."""
        return self._order.in_place(start, stop)

    def read(self, start: int, stop: int) -> memoryview:
        """Return bytes start..stop-1; a view of the array's memory where that is in wire order.

        Otherwise only these bytes are copied. The range may split elements.
        """
        return self._order.read(start, stop)

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Store bytes offset..offset+len(data)-1; the range may split elements."""
        self._order.write(offset, data)


def as_array(values: object) -> NDArray[Any]:
    """View values as an array that the wire can carry: of a known type, with 1 to 8 axes.

    values  a NumPy array or memmap, a list of floats, or any object with `__array__`,
            `__array_interface__` or DLPack, such as the tensors of torch, JAX and CuPy. torch
            tensors are detached; what lies on a device is copied to the host, all else is viewed

    Raises TypeError, which names the fix, where there is no way; InvalidRequestError where type,
    number of axes or a size is not one the wire carries.
    """
    array = to_array(values)
    data_type_of(array.dtype)
    check_sizes("input", array.shape)
    return array


def data_type_of(dtype: DTypeLike) -> v1.DataType.ValueType:
    """Return the wire's name of an element type, in either byte order."""
    known = DATA_TYPES.get(np.dtype(dtype).newbyteorder("="))
    if known is None:
        names = ", ".join(str(each) for each in DATA_TYPES)
        raise InvalidRequestError.of(
            "input.data_type", f"is {np.dtype(dtype)}; give one of {names}, as astype() makes them"
        )
    return known


def check_sizes(name: str, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return sizes as a tuple of integers.

    Raises InvalidRequestError, which names "<name>.sizes", where the wire cannot carry them.
    """
    try:
        sizes = tuple(sizes)
    except TypeError:
        raise InvalidRequestError.of(
            f"{name}.sizes", f"is {sizes!r}; give a tuple or list of integers"
        ) from None
    if not 1 <= len(sizes) <= MAX_RANK:
        raise InvalidRequestError.of(
            f"{name}.sizes", f"has {counted(len(sizes), 'axis')}; give 1 to {MAX_RANK}"
        )
    for axis, size in enumerate(sizes):
        try:
            number = -1 if isinstance(size, bool) else operator.index(size)
        except TypeError:
            number = -1
        if not 0 <= number < 2**63:
            raise InvalidRequestError.of(
                f"{name}.sizes[{axis}]", f"is {size!r}; give an integer from 0 to 2**63 - 1"
            )
    return tuple(operator.index(size) for size in sizes)


def strides_of(descriptor: v1.TensorDescriptor) -> tuple[int, ...]:
    """Return the stride of each axis in elements; packed row-major where none are given."""
    return tuple(descriptor.strides) or _packed(descriptor.sizes, range(len(descriptor.sizes)))


def wire_axes(descriptor: v1.TensorDescriptor) -> tuple[int, ...]:
    """Return the axes that the wire carries, slowest first: not of length 1 and not broadcast."""
    strides = strides_of(descriptor)
    carried = [a for a, size in enumerate(descriptor.sizes) if size != 1 and strides[a] > 0]
    return tuple(sorted(carried, key=lambda axis: -strides[axis]))


def element_count(descriptor: v1.TensorDescriptor) -> int:
    """Return the number of logical elements, broadcast ones included."""
    return math.prod(descriptor.sizes)


def wire_bytes(descriptor: v1.TensorDescriptor) -> int:
    """Return the number of bytes on the wire."""
    if 0 in descriptor.sizes:
        return 0
    carried = math.prod(descriptor.sizes[axis] for axis in wire_axes(descriptor))
    return carried * DTYPES[descriptor.data_type].itemsize


def describe(array: NDArray[Any]) -> v1.TensorDescriptor:
    """Describe an array as it travels: its broadcast axes, and how the others nest.

    Strides are those of the packed array, left empty where it is row-major. Axes whose elements
    interleave or overlap in memory, as in a sliding window, travel row-major.

    Raises InvalidRequestError where type, number of axes or a size is not one the wire carries.
    """
    data_type = data_type_of(array.dtype)
    check_sizes("input", array.shape)
    if not array.size:
        return v1.TensorDescriptor(data_type=data_type, sizes=array.shape)
    order = nested_axes(array)
    broadcast = [a for a, n in enumerate(array.shape) if n > 1 and array.strides[a] == 0]
    if order is None:
        order = tuple(a for a, n in enumerate(array.shape) if n > 1 and a not in broadcast)
    return _descriptor(data_type, array.shape, order, broadcast)


def result_descriptor(source: v1.TensorDescriptor, sizes: Sequence[int]) -> v1.TensorDescriptor:
    """Describe a packed result of these sizes whose axes nest as the source's do.

    Equal nesting is what lets a tensor of any size be streamed. Axes that the source does not carry
    take the place that row-major order gives them.
    """
    sizes = check_sizes("output", sizes)
    if 0 in sizes:
        return v1.TensorDescriptor(data_type=source.data_type, sizes=sizes)
    order: list[int] = [axis for axis in wire_axes(source) if axis < len(sizes)]
    for axis in range(len(sizes)):
        if axis not in order:
            before = next((i for i, other in enumerate(order) if other > axis), len(order))
            order.insert(before, axis)
    return _descriptor(source.data_type, sizes, order, [])


def empty_result(descriptor: v1.TensorDescriptor) -> NDArray[Any]:
    """Allocate an array of a descriptor's type and sizes whose axes nest as it says."""
    strides = strides_of(descriptor)
    order = sorted(range(len(strides)), key=lambda axis: -strides[axis])
    packed = np.empty([descriptor.sizes[axis] for axis in order], DTYPES[descriptor.data_type])
    return packed.transpose(np.argsort(order, kind="stable"))


def check_out(
    out: object, *, dtype: DTypeLike, shape: Sequence[int], source: NDArray[Any]
) -> NDArray[Any]:
    """Return out if a result of this type and shape can be written to it while source is read.

    Raises TypeError where it is no array, InvalidRequestError, a ValueError, otherwise.
    """
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out is a {type(out).__name__}; give a numpy.ndarray or numpy.memmap")
    array = np.asarray(cast("NDArray[Any]", out))
    wanted = np.dtype(dtype)
    if array.dtype.newbyteorder("=") != wanted:
        raise InvalidRequestError.of("out", f"has dtype {array.dtype}; the result has {wanted}")
    if array.shape != tuple(shape):
        raise InvalidRequestError.of(
            "out", f"has shape {array.shape}; the result has {tuple(shape)}"
        )
    if not array.flags.writeable:
        raise InvalidRequestError.of("out", "is read-only; give a writable array")
    repeats = any(
        n > 1 and stride == 0 for n, stride in zip(array.shape, array.strides, strict=True)
    )
    if array.size and (repeats or nested_axes(array) is None):
        raise InvalidRequestError.of(
            "out", f"has strides {array.strides} that overlap or interleave; give a plain array"
        )
    if share_memory(array, source):
        raise InvalidRequestError.of("out", "shares memory with the input; give another array")
    return array


def _descriptor(
    data_type: v1.DataType.ValueType,
    sizes: Sequence[int],
    order: Sequence[int],
    broadcast: Sequence[int],
) -> v1.TensorDescriptor:
    longer = [axis for axis in order if sizes[axis] > 1]
    strides: tuple[int, ...] = ()
    if broadcast or longer != sorted(longer):
        strides = _packed(sizes, longer, broadcast)
    return v1.TensorDescriptor(data_type=data_type, sizes=sizes, strides=strides)


def _packed(
    sizes: Sequence[int], order: Sequence[int], broadcast: Sequence[int] = ()
) -> tuple[int, ...]:
    """Return strides of a packed array whose axes nest in this order, slowest first.

    Those of an empty array are those of one whose axes have a length of 1 instead of 0.
    """
    strides = [0 if axis in broadcast else 1 for axis in range(len(sizes))]
    step = 1
    for axis in reversed(order):
        strides[axis] = step
        step *= max(1, sizes[axis])
    return tuple(strides)
