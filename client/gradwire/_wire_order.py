"""Bytes of a strided array in the order of the wire, any range of them at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class WireOrder:
    """An array as consecutive bytes: row-major over the axes given, slowest first.

    array  the elements; either byte order, the wire's is little-endian
    axes   axes to walk; of every other axis only the first element counts
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
        """View bytes start..stop-1 of the array's own memory; None where it has another order."""
        self._check_range(start, stop)
        return None if self._bytes is None else self._bytes[start:stop]

    def read(self, start: int, stop: int) -> memoryview:
        """Return bytes start..stop-1, by reference where they lie in this order already."""
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
        """Complete split elements at both ends with the bytes that the array holds."""
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

    None where a step along one axis stays within the reach of the axes inside it: then elements
    overlap or interleave, and memory has no order of axes.
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
