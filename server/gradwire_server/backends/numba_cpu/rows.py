"""Kernels on whole rows: weighted sums of rows, conversion and streaming stores.

Sums of rows are the one primitive of every pass along whose rows all elements share the weights.

The rows of a sum may be one row again and again (step 0): those loops end by the weights' address.
The others end by the rows' address, whose trip count LLVM does not compute in advance: bands are
too short for that to pay.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import carray, cfunc, types

from gradwire_server.backends.numba_cpu.instructions import (
    clear,
    copy,
    lanes,
    load,
    load_first,
    prefetch,
    product,
    put_streaming,
    store,
    store_first,
    unweighted,
    zeros,
)
from gradwire_server.backends.numba_cpu.records import AXIS_POINTER, band
from gradwire_server.backends.numba_cpu.vectors import (
    COMPUTE,
    COMPUTE_TYPES,
    STORAGE_TYPES,
    part,
)

# Bytes ahead at which input is prefetched: rows are too short for the processor's own prefetching.
_AHEAD = 1024
# Only whole cache lines are streamed.
_LINE = 64


def _four_vectors(term: Any, *, onto: bool, again: bool) -> Any:
    """Build the sum of four adjacent vectors, whose additions do not wait for each other."""

    @part
    def four_vectors(memory, compute, size, at, step, weights, taps, to):
        one = lanes(compute) * size
        itemsize = 64 // lanes(compute)
        at_b, at_c, at_d = at + one, at + 2 * one, at + 3 * one
        a = term(compute, weights, load(memory, compute, at))
        b = term(compute, weights, load(memory, compute, at_b))
        c = term(compute, weights, load(memory, compute, at_c))
        d = term(compute, weights, load(memory, compute, at_d))
        if onto:
            a = load(COMPUTE, compute, to) + a
            b = load(COMPUTE, compute, to + 64) + b
            c = load(COMPUTE, compute, to + 128) + c
            d = load(COMPUTE, compute, to + 192) + d
        last = weights + (taps - 1) * itemsize if again else at + (taps - 1) * step
        while (weights if again else at) != last:
            at += step
            weights += itemsize
            a = a + term(compute, weights, load(memory, compute, at))
            b = b + term(compute, weights, load(memory, compute, at + one))
            c = c + term(compute, weights, load(memory, compute, at + 2 * one))
            d = d + term(compute, weights, load(memory, compute, at + 3 * one))
        prefetch(at + _AHEAD)
        prefetch(at + _AHEAD + 64)
        prefetch(at + _AHEAD + 128)
        prefetch(at + _AHEAD + 192)
        store(COMPUTE, to, a)
        store(COMPUTE, to + 64, b)
        store(COMPUTE, to + 128, c)
        store(COMPUTE, to + 192, d)

    return four_vectors


def _one_vector(term: Any, *, onto: bool, again: bool) -> Any:
    """Build the sum of one vector, or of its first lanes."""

    @part
    def one_vector(memory, compute, at, step, weights, taps, to, left):
        itemsize = 64 // lanes(compute)
        if left >= lanes(compute):
            a = term(compute, weights, load(memory, compute, at))
            if onto:
                a = load(COMPUTE, compute, to) + a
            last = weights + (taps - 1) * itemsize if again else at + (taps - 1) * step
            while (weights if again else at) != last:
                at += step
                weights += itemsize
                a = a + term(compute, weights, load(memory, compute, at))
            prefetch(at + _AHEAD)
            store(COMPUTE, to, a)
        else:
            a = term(compute, weights, load_first(memory, compute, at, left))
            if onto:
                a = load_first(COMPUTE, compute, to, left) + a
            last = weights + (taps - 1) * itemsize if again else at + (taps - 1) * step
            while (weights if again else at) != last:
                at += step
                weights += itemsize
                a = a + term(compute, weights, load_first(memory, compute, at, left))
            store_first(COMPUTE, to, a, left)

    return one_vector


def _sum_rows(term: Any, *, onto: bool, again: bool) -> Any:
    four_vectors = _four_vectors(term, onto=onto, again=again)
    one_vector = _one_vector(term, onto=onto, again=again)

    @part
    def sum_rows(memory, compute, size, at, step, weights, taps, length, to):
        """to[i] = sum over k of weights[k] * at[k * step + i], k ascending, 0 <= i < length."""
        width = lanes(compute)
        for _ in range(length // (4 * width)):
            four_vectors(memory, compute, size, at, step, weights, taps, to)
            at += 4 * width * size
            to += 256
        for left in range(length % (4 * width), 0, -width):
            one_vector(memory, compute, at, step, weights, taps, to, left)
            at += width * size
            to += 64

    return sum_rows


def _sums(term: Any, *, onto: bool) -> Any:
    """Build the sums of some bands; onto: whether they are added to the values in place."""
    sum_rows = _sum_rows(term, onto=onto, again=False)
    sum_again = sum_rows if onto else _sum_rows(term, onto=False, again=True)

    @part
    def banded(memory, compute, axis, first, stop, size, rows, step, length, result, result_step):
        itemsize = 64 // lanes(compute)
        for index in range(first, stop):
            start, taps, weights = band(axis, itemsize, index)
            if taps:
                at = rows + start * step
                if step:
                    sum_rows(memory, compute, size, at, step, weights, taps, length, result)
                else:
                    sum_again(memory, compute, size, at, step, weights, taps, length, result)
            elif not onto:
                clear(result, length * itemsize)
            result += result_step

    return banded


_weighted = _sums(product, onto=False)
_plain = _sums(unweighted, onto=False)
_onto = _sums(product, onto=True)


@part
def _convert(memory, compute, rows, step, count, length, size, result, result_step):
    width = lanes(compute)
    itemsize = 64 // width
    for row in range(count):
        source, to, i = rows + row * step, result + row * result_step, 0
        while i < length:
            left = length - i
            if left < width <= length:
                # Converts some elements again rather than a part of a vector.
                i, left = length - width, width
            if left >= width:
                store(memory, to + i * size, load(COMPUTE, compute, source + i * itemsize))
            else:
                value = load_first(COMPUTE, compute, source + i * itemsize, left)
                store_first(memory, to + i * size, value, left)
            i += width


# Axis; first result and its end; bytes of an element of the rows; rows (at input 0), bytes from row
# to row, their length; results (at the first) and their step.
_SUM = types.void(AXIS_POINTER, *[types.int64] * 8)
# Rows, step, count, length; bytes of an element of the result; results and their step.
_CONVERT = types.void(*[types.int64] * 7)


class RowKernels(NamedTuple):
    """Compiled functions for rows of one storage type.

    weighted  sums rows times their weights
    plain     sums rows whose weights are all 1
    convert   rounds rows of the compute type to the storage type
    """

    weighted: Any
    plain: Any
    convert: Any


def _compiled(memory: Any, compute: Any) -> RowKernels:
    @cfunc(_SUM, cache=True)
    def weighted(axis, first, stop, size, rows, step, length, result, to):
        one = carray(axis, 1)[0]
        _weighted(memory, compute, one, first, stop, size, rows, step, length, result, to)

    @cfunc(_SUM, cache=True)
    def plain(axis, first, stop, size, rows, step, length, result, to):
        one = carray(axis, 1)[0]
        _plain(memory, compute, one, first, stop, size, rows, step, length, result, to)

    @cfunc(_CONVERT, cache=True)
    def convert(rows, step, count, length, size, result, to):
        _convert(memory, compute, rows, step, count, length, size, result, to)

    return RowKernels(weighted, plain, convert)


def _compiled_onto(compute: Any) -> Any:
    @cfunc(_SUM, cache=True)
    def onto(axis, first, stop, size, rows, step, length, result, to):
        one = carray(axis, 1)[0]
        _onto(COMPUTE, compute, one, first, stop, size, rows, step, length, result, to)

    return onto


@part
def _whole_lines(to, size):
    """Address of the first cache line within some bytes, and the end of the last."""
    first = to + (-to & (_LINE - 1))
    return first, max(first, (to + size) & -_LINE)


# Streaming stores are for results larger than the caches keep: an ordinary store first reads the
# line that it overwrites, so it moves twice as many bytes. `fence` must follow them.
@cfunc(types.void(*[types.int64] * 6), cache=True)
def stream(rows, step, count, size, result, result_step):
    """Copy count rows of size bytes."""
    for row in range(count):
        source, to = rows + row * step, result + row * result_step
        first, stop = _whole_lines(to, size)
        head = min(first - to, size)
        copy(to, source, head)
        if head < size:
            distance = source - to
            for at in range(first, stop, _LINE):
                put_streaming(at, load(COMPUTE, np.float32, at + distance))
            copy(stop, stop + distance, to + size - stop)


@cfunc(types.void(*[types.int64] * 4), cache=True)
def stream_zeros(count, size, result, result_step):
    """Write count rows of size zero bytes."""
    for row in range(count):
        to = result + row * result_step
        first, stop = _whole_lines(to, size)
        head = min(first - to, size)
        clear(to, head)
        if head < size:
            for at in range(first, stop, _LINE):
                put_streaming(at, zeros(np.float32))
            clear(stop, to + size - stop)


STREAM_KERNELS: tuple[Any, Any] = stream, stream_zeros
# By the name of the storage type, and of the compute type.
ROW_KERNELS = {
    name: _compiled(memory, compute) for name, (memory, compute, _) in STORAGE_TYPES.items()
}
SUM_ONTO = {name: _compiled_onto(compute) for name, compute in COMPUTE_TYPES.items()}
