"""Arrays to and from the wire: descriptors and byte order.

Wire order is little-endian elements in ascending address order, padding gaps skipped, each
broadcast (stride 0) axis once. So the server is told only which axes are broadcast and in which
order the others nest; padding, and axes that run backward in memory, concern this side only.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, cast

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from gradwire import v1
from gradwire.errors import InvalidRequestError, counted

MAX_RANK = 8

Array = NDArray[Any]
DType = np.dtype[Any]
Shape = tuple[int, ...]
Sizes = Sequence[int]
Descriptor = v1.TensorDescriptor

DTYPES: dict[v1.DataType.ValueType, DType] = {
    v1.DataType.DATA_TYPE_FLOAT32: np.dtype(np.float32),
    v1.DataType.DATA_TYPE_FLOAT16: np.dtype(np.float16),
    v1.DataType.DATA_TYPE_BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    v1.DataType.DATA_TYPE_FLOAT64: np.dtype(np.float64),
}

DATA_TYPES = {dtype: data_type for data_type, dtype in DTYPES.items()}


class WireView:
    """Bytes of an array in the wire order of its descriptor.

    It needs no copy of the whole array.

    nbytes    on the wire
    in_place  the array's own memory as bytes; None if it has another order

    array       any strides and either byte order; the wire's is little-endian
    descriptor  of the array's sizes; by default the array's own. Another one, such as a result's,
                makes the axes nest in its order, so that transposing takes no memory
    """

    def __init__(self, array: Array, descriptor: Descriptor | None = None) -> None:
        descriptor = describe(array) if descriptor is None else descriptor
        if tuple(descriptor.sizes) != array.shape:
            raise ValueError(f"descriptor has sizes {list(descriptor.sizes)}, array {array.shape}")
        axes = wire_axes(descriptor)
        rest = [axis for axis in range(array.ndim) if axis not in axes]
        # Bit patterns, so that no copy can change a NaN.
        bits = np.dtype(f"u{array.dtype.itemsize}").newbyteorder(array.dtype.byteorder)
        walked = np.asarray(array).view(bits).transpose([*rest, *axes])
        # The first element stands for all along an axis that does not travel.
        first: Any = (*[0] * len(rest), ...)
        self._elements: Array = np.atleast_1d(walked[first])
        self._wire = bits.newbyteorder("<")
        self.in_place: Array | None = None
        if self._elements.flags.c_contiguous and bits == self._wire:
            self.in_place = self._elements.reshape(-1).view(np.uint8)
        self.nbytes = self._elements.size * bits.itemsize
        sizes = reversed(self._elements.shape)
        # Bytes of an element, of a row, and so on to those of all.
        self._blocks = tuple(accumulate(sizes, operator.mul, initial=bits.itemsize))

    def chunk_stop(self, start: int, size: int) -> int:
        """Return the end of a chunk of at most `size` bytes.

        It is a multiple of the largest block of inner axes whose multiples fill three quarters of
        `size`: chunks have one size, and a server computes whole blocks where they arrived.
        """
        most = start + size
        if most >= self.nbytes:
            return self.nbytes
        fits = (
            block for block in reversed(self._blocks) if 4 * (size // block * block) >= 3 * size
        )
        block = next(fits, 1)
        return most // block * block

    def read(self, start: int, stop: int) -> memoryview:
        """Return bytes start..stop-1, without a copy if possible.

        They are a view of the array's memory if that is in wire order; otherwise only these bytes
        are copied. The range may split elements.
        """
        if self.in_place is not None:
            return self.in_place[start:stop].data
        first, whole, asked = self._covering(start, stop)
        self._gather(first, whole)
        return asked.data

    def copy_to(self, memory: Array) -> None:
        """Copy all bytes to contiguous memory, as long as they are."""
        memory.view(self._wire).reshape(self._elements.shape)[...] = self._elements

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Store bytes offset..offset+len(data)-1; the range may split elements."""
        given = np.frombuffer(data, np.uint8)
        if self.in_place is not None:
            self.in_place[offset : offset + given.size] = given
            return
        first, whole, among = self._covering(offset, offset + given.size)
        if given.size == whole.nbytes:
            whole = given.view(self._wire)
        else:
            # Present bytes complete split elements.
            self._gather(first, whole)
            among[...] = given
        for part, values in self._parts(first, whole):
            part[...] = values

    def _covering(self, start: int, stop: int) -> tuple[int, Array, Array]:
        """Make room for the elements that have some bytes.

        Returns the number of the first element, the room, and the part of it for those bytes.
        """
        first, skipped = divmod(start, self._wire.itemsize)
        whole = np.empty(-(-stop // self._wire.itemsize) - first, self._wire)
        return first, whole, whole.view(np.uint8)[skipped : skipped + stop - start]

    def _gather(self, first: int, flat: Array) -> None:
        """Copy elements from the first one on to a contiguous array."""
        for part, values in self._parts(first, flat):
            values[...] = part

    def _parts(self, first: int, flat: Array) -> Iterator[tuple[Array, Array]]:
        """Pair parts of the elements with those of a contiguous array."""
        done = 0
        for box in _boxes(self._elements.shape, first, first + flat.size):
            part = self._elements[box]
            yield part, flat[done : done + part.size].reshape(part.shape)
            done += part.size


def data_type_of(dtype: DTypeLike) -> v1.DataType.ValueType:
    """Return the wire's name of an element type, in either byte order."""
    known = DATA_TYPES.get(np.dtype(dtype).newbyteorder("="))
    if known is None:
        names = ", ".join(str(each) for each in DATA_TYPES)
        raise InvalidRequestError.of(
            "input.data_type", f"is {np.dtype(dtype)}; convert it to one of {names} with astype()"
        )
    return known


def check_sizes(name: str, sizes: Sizes) -> Shape:
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
    numbers: list[int] = []
    for axis, size in enumerate(sizes):
        try:
            number = -1 if isinstance(size, bool) else operator.index(size)
        except TypeError:
            number = -1
        if not 0 <= number < 2**63:
            raise InvalidRequestError.of(
                f"{name}.sizes[{axis}]", f"is {size!r}; give an integer from 0 to 2**63 - 1"
            )
        numbers.append(number)
    return tuple(numbers)


def strides_of(descriptor: Descriptor) -> tuple[int, ...]:
    """Return the stride of each axis in elements; row-major by default."""
    return tuple(descriptor.strides) or _packed(descriptor.sizes, range(len(descriptor.sizes)))


def wire_axes(descriptor: Descriptor) -> tuple[int, ...]:
    """Return the axes that the wire carries, slowest first.

    They are neither of length 1 nor broadcast.
    """
    strides = strides_of(descriptor)
    carried = [a for a, size in enumerate(descriptor.sizes) if size != 1 and strides[a] > 0]
    return tuple(sorted(carried, key=lambda axis: -strides[axis]))


def wire_bytes(descriptor: Descriptor) -> int:
    """Return the number of bytes on the wire."""
    if 0 in descriptor.sizes:
        return 0
    carried = math.prod(descriptor.sizes[axis] for axis in wire_axes(descriptor))
    return carried * DTYPES[descriptor.data_type].itemsize


def describe(array: Array) -> Descriptor:
    """Describe an array for the wire: broadcast axes and nesting.

    Strides are those of the packed array, left empty where it is row-major. Axes whose elements
    interleave or overlap in memory, as in a sliding window, travel row-major.

    Raises InvalidRequestError where type, number of axes or a size is not one the wire carries.
    """
    data_type = data_type_of(array.dtype)
    check_sizes("input", array.shape)
    if not array.size:
        return Descriptor(data_type=data_type, sizes=array.shape)
    order = nested_axes(array)
    broadcast = _broadcast_axes(array)
    if order is None:
        order = tuple(a for a, n in enumerate(array.shape) if n > 1 and a not in broadcast)
    return _descriptor(data_type, array.shape, order, broadcast)


def result_descriptor(source: Descriptor, sizes: Sizes) -> Descriptor:
    """Describe a packed result with the source's nesting of axes.

    Equal nesting allows streaming of a tensor of any size. Axes that the source does not carry take
    the place that row-major order gives them.
    """
    sizes = check_sizes("output", sizes)
    if 0 in sizes:
        return Descriptor(data_type=source.data_type, sizes=sizes)
    order: list[int] = [axis for axis in wire_axes(source) if axis < len(sizes)]
    for axis in range(len(sizes)):
        if axis not in order:
            before = next((i for i, other in enumerate(order) if other > axis), len(order))
            order.insert(before, axis)
    return _descriptor(source.data_type, sizes, order, [])


def empty_result(descriptor: Descriptor, memory: Array | None = None) -> Array:
    """Return an uninitialized array of a descriptor's type, sizes and nesting.

    memory  contiguous bytes, as many as it has; None to allocate them
    """
    dtype, strides = DTYPES[descriptor.data_type], byte_strides(descriptor)
    return np.ndarray(tuple(descriptor.sizes), dtype, memory, strides=strides)


def byte_strides(descriptor: Descriptor) -> Shape | None:
    """Return byte strides of memory in the wire's order; None if row-major."""
    if not descriptor.strides:
        return None
    broadcast = [axis for axis, stride in enumerate(descriptor.strides) if not stride]
    packed = _packed(descriptor.sizes, wire_axes(descriptor), broadcast)
    return tuple(DTYPES[descriptor.data_type].itemsize * stride for stride in packed)


def check_out(out: object, *, dtype: DTypeLike, shape: Sizes, source: Array) -> Array:
    """Return out if it can hold a result while source is read.

    Its type and shape must be those given, and it must share no memory with source.

    Raises TypeError if it is no array, InvalidRequestError, a ValueError, otherwise.
    """
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out is a {type(out).__name__}; give a numpy.ndarray or numpy.memmap")
    array = np.asarray(cast("Array", out))
    wanted = np.dtype(dtype)
    if array.dtype.newbyteorder("=") != wanted:
        raise InvalidRequestError.of("out", f"has dtype {array.dtype}; the result has {wanted}")
    if array.shape != tuple(shape):
        raise InvalidRequestError.of(
            "out", f"has shape {array.shape}; the result has {tuple(shape)}"
        )
    if not array.flags.writeable:
        raise InvalidRequestError.of("out", "is read-only; give a writable array")
    if array.size and (_broadcast_axes(array) or nested_axes(array) is None):
        raise InvalidRequestError.of(
            "out", f"has strides {array.strides} that overlap or interleave; give a plain array"
        )
    if share_memory(array, source):
        raise InvalidRequestError.of("out", "shares memory with the input; give another array")
    return array


def _descriptor(
    data_type: v1.DataType.ValueType,
    sizes: Sizes,
    order: Sequence[int],
    broadcast: Sequence[int],
) -> Descriptor:
    longer = [axis for axis in order if sizes[axis] > 1]
    strides: tuple[int, ...] = ()
    if broadcast or longer != sorted(longer):
        strides = _packed(sizes, longer, broadcast)
    return Descriptor(data_type=data_type, sizes=sizes, strides=strides)


def _packed(sizes: Sizes, order: Sequence[int], broadcast: Sequence[int] = ()) -> tuple[int, ...]:
    """Return strides of a packed array with axes in this order.

    order is slowest first. Strides of an empty array are those of an array whose axes have a length
    of 1 instead of 0.
    """
    strides = [0 if axis in broadcast else 1 for axis in range(len(sizes))]
    step = 1
    for axis in reversed(order):
        strides[axis] = step
        step *= max(1, sizes[axis])
    return tuple(strides)


# DLPack's kDLCPU and kDLCUDAHost, https://dmlc.github.io/dlpack/latest/c_api.html
_HOST_DEVICES = (1, 3)

# The exact overlap of strided memory is NP-hard; beyond this work the bounds alone decide.
_OVERLAP_WORK: Any = 100_000


def to_array(values: object) -> Array:
    """View values as a NumPy array of any type and shape.

    values  a NumPy array or memmap, a list of floats, or any object with `__array__`,
            `__array_interface__` or DLPack, such as the tensors of torch, JAX and CuPy. torch
            tensors are detached; values on a device are copied to the host, others are viewed

    Raises InvalidRequestError for None, and TypeError, which names the fix, for other values that
    cannot be converted.
    """
    if _is_masked(values):
        raise TypeError("a masked array has elements without a value; pass array.filled(value)")
    if values is None:
        raise InvalidRequestError.of("array", "is None; give a NumPy array or a tensor")
    if isinstance(values, np.ndarray):
        return np.asarray(cast("Array", values))
    try:
        return _convert(values)
    except MemoryError:
        raise
    except Exception as error:
        kind = f"{type(values).__module__}.{type(values).__qualname__}".removeprefix("builtins.")
        raise TypeError(
            f"cannot read a {kind} as an array: {error}; pass a NumPy array or a tensor on the host"
        ) from error


def _is_masked(values: object) -> bool:
    # Importing numpy.ma takes longer than most calls: without it no array is masked. The class is
    # missing while another thread imports the module.
    kind = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    return kind is not None and isinstance(values, kind)


def share_memory(one: Array, other: Array) -> bool:
    """Whether two arrays may share a byte."""
    try:
        return np.shares_memory(one, other, max_work=_OVERLAP_WORK)
    except np.exceptions.TooHardError:
        return True


def _convert(values: Any) -> Array:
    if hasattr(values, "detach") and hasattr(values, "requires_grad"):
        values = values.detach()
    if hasattr(values, "__dlpack_device__") and values.__dlpack_device__()[0] not in _HOST_DEVICES:
        values = _on_host(values)
    if str(getattr(values, "dtype", None)) == "torch.bfloat16":
        # NumPy has no bfloat16, so torch exports it as integers only.
        integer = values.new_empty(0).short().dtype
        return np.asarray(values.view(integer)).view(ml_dtypes.bfloat16)
    if hasattr(values, "__dlpack__") and not hasattr(values, "__array__"):
        return np.from_dlpack(values)
    return np.asarray(values)


def _on_host(values: Any) -> Any:
    """Copy an array from a device to the host.

    torch, CuPy and JAX arrays are copied as their documentation says, others by DLPack.
    """
    for method in ("cpu", "get"):
        if hasattr(values, method):
            return getattr(values, method)()
    if hasattr(values, "__array__"):
        return values
    return np.from_dlpack(values, device="cpu")


def _boxes(shape: Shape, first: int, last: int) -> Iterator[tuple[int | slice, ...]]:
    """Cut elements first..last-1 of a row-major array into boxes.

    They are in order, and few for each axis.
    """
    if first >= last:
        return
    inner = math.prod(shape[1:])
    row, into = divmod(first, inner)
    end_row, beyond = divmod(last, inner)
    if row == end_row:
        yield from ((row, *box) for box in _boxes(shape[1:], into, beyond))
        return
    if into:
        yield from ((row, *box) for box in _boxes(shape[1:], into, inner))
        row += 1
    if row < end_row:
        yield (slice(row, end_row),)
    yield from ((end_row, *box) for box in _boxes(shape[1:], 0, beyond))


def _broadcast_axes(array: Array) -> list[int]:
    return [a for a, n in enumerate(array.shape) if n > 1 and array.strides[a] == 0]


def nested_axes(array: Array) -> tuple[int, ...] | None:
    """Return the axes of an array by descending distance in memory.

    Axes of length 1 and broadcast axes are left out. None if a step along one axis is shorter than
    the extent of the axes inside it: then elements overlap or interleave, and no order of axes is
    the order in memory.
    """
    sizes, strides = array.shape, [abs(stride) for stride in array.strides]
    axes = sorted(
        (a for a, n in enumerate(sizes) if n > 1 and strides[a]), key=lambda a: -strides[a]
    )
    reach = array.dtype.itemsize
    for axis in reversed(axes):
        if strides[axis] < reach:
            return None
        reach += (sizes[axis] - 1) * strides[axis]
    return tuple(axes)
