"""Conversion to NumPy arrays, and byte ranges of strided arrays in wire order."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

# DLPack's kDLCPU and kDLCUDAHost, https://dmlc.github.io/dlpack/latest/c_api.html
_HOST_DEVICES = (1, 3)

# The exact overlap of strided memory is NP-hard; beyond this work the bounds alone decide.
_OVERLAP_WORK: Any = 100_000


def to_array(values: object) -> NDArray[Any]:
    """View values as a NumPy array, whatever its type and shape.

    values  as gradwire.tensors.as_array takes them

    Raises TypeError, which names the fix, for values that cannot be converted.
    """
    if _is_masked(values):
        raise TypeError("a masked array has elements without a value; pass array.filled(value)")
    if isinstance(values, np.ndarray):
        return np.asarray(cast("NDArray[Any]", values))
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
    # numpy.ma takes longer to import than most calls: without it no array is masked. The class is
    # missing while another thread imports the module.
    kind = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    return kind is not None and isinstance(values, kind)


def share_memory(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two arrays may share a byte."""
    try:
        return np.shares_memory(one, other, max_work=_OVERLAP_WORK)
    except np.exceptions.TooHardError:
        return True


def _convert(values: Any) -> NDArray[Any]:
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
    """Copy from a device as its library documents it: torch, CuPy, JAX; others by DLPack."""
    for method in ("cpu", "get"):
        if hasattr(values, method):
            return getattr(values, method)()
    if hasattr(values, "__array__"):
        return values
    return np.from_dlpack(values, device="cpu")


class WireOrder:
    """An array as consecutive bytes: row-major over the axes given, slowest first.

    array  the elements; either byte order, the wire's is little-endian
    axes   axes to walk; every other axis contributes its first element only
    """

    def __init__(self, array: NDArray[Any], axes: Sequence[int]) -> None:
        rest = [axis for axis in range(array.ndim) if axis not in axes]
        # Bit patterns, so that no copy can change a NaN.
        bits = np.dtype(f"u{array.dtype.itemsize}").newbyteorder(array.dtype.byteorder)
        walked = np.asarray(array).view(bits).transpose([*rest, *axes])
        first = walked[(slice(0, 1),) * len(rest)].squeeze(tuple(range(len(rest))))
        self._elements: NDArray[Any] = np.atleast_1d(first)
        self._wire = bits.newbyteorder("<")
        self._bytes: NDArray[np.uint8] | None = None
        if self._elements.flags.c_contiguous and bits == self._wire:
            self._bytes = self._elements.reshape(-1).view(np.uint8)
        self.nbytes = self._elements.size * bits.itemsize

    def in_place(self, start: int, stop: int) -> NDArray[np.uint8] | None:
        """View bytes start..stop-1 of the array's own memory; None if its order differs."""
        self._check_range(start, stop)
        return None if self._bytes is None else self._bytes[start:stop]

    def read(self, start: int, stop: int) -> memoryview:
        """Return bytes start..stop-1, by reference if they are in this order already."""
        self._check_range(start, stop)
        if self._bytes is not None:
            return self._bytes[start:stop].data
        first, last = self._covering(start, stop)
        skipped = start - first * self._wire.itemsize
        gathered = self._gather(first, last).view(np.uint8)
        return gathered[skipped : skipped + stop - start].data

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Store bytes offset..offset+len(data)-1."""
        given = np.frombuffer(data, np.uint8)
        self._check_range(offset, offset + given.size)
        if self._bytes is not None:
            self._bytes[offset : offset + given.size] = given
        elif given.size:
            self._scatter(*self._whole_elements(offset, given))

    def _check_range(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.nbytes:
            raise ValueError(f"bytes {start} to {stop} of an array of {self.nbytes}")

    def _covering(self, start: int, stop: int) -> tuple[int, int]:
        itemsize = self._wire.itemsize
        return start // itemsize, -(-stop // itemsize)

    def _whole_elements(self, offset: int, given: NDArray[np.uint8]) -> tuple[int, NDArray[Any]]:
        """Complete split elements at both ends with the array's present bytes."""
        itemsize = self._wire.itemsize
        first, last = self._covering(offset, offset + given.size)
        if offset % itemsize == 0 and given.size % itemsize == 0:
            return first, given.view(self._wire)
        whole = np.empty(last - first, self._wire)
        whole[:1] = self._gather(first, first + 1)
        whole[-1:] = self._gather(last - 1, last)
        skipped = offset - first * itemsize
        whole.view(np.uint8)[skipped : skipped + given.size] = given
        return first, whole

    def _gather(self, first: int, last: int) -> NDArray[Any]:
        result = np.empty(last - first, self._wire)
        done = 0
        for box in boxes(self._elements.shape, first, last):
            part = self._elements[box]
            result[done : done + part.size].reshape(part.shape)[...] = part
            done += part.size
        return result

    def _scatter(self, first: int, values: NDArray[Any]) -> None:
        done = 0
        for box in boxes(self._elements.shape, first, first + values.size):
            part = self._elements[box]
            part[...] = values[done : done + part.size].reshape(part.shape)
            done += part.size


def boxes(shape: tuple[int, ...], first: int, last: int) -> Iterator[tuple[int | slice, ...]]:
    """Cut elements first..last-1 of a row-major array into boxes, in order; few for each axis."""
    if first >= last:
        return
    inner = math.prod(shape[1:])
    row, into = divmod(first, inner)
    end_row, beyond = divmod(last, inner)
    if row == end_row:
        yield from ((row, *box) for box in boxes(shape[1:], into, beyond))
        return
    if into:
        yield from ((row, *box) for box in boxes(shape[1:], into, inner))
        row += 1
    if row < end_row:
        yield (slice(row, end_row),)
    yield from ((end_row, *box) for box in boxes(shape[1:], 0, beyond))


def nested_axes(array: NDArray[Any]) -> tuple[int, ...] | None:
    """Return the axes longer than 1 that are not broadcast, by descending distance in memory.

    None if a step along one axis is shorter than the extent of the axes inside it: then elements
    overlap or interleave, and no order of axes is the order in memory.
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
