"""Kernels on whole rows: weighted sums of rows, conversion and streaming stores.

Sums of rows are the one primitive of every pass along whose rows all elements share the weights.

The rows of a sum may be one row again and again (step 0): those loops end by the weights' address.
The others end by the rows' address, whose trip count LLVM does not compute in advance: bands are
too short for that to pay.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import carray, cfunc, types

from gradwire_server.backends.numba_cpu.instructions import (
    VECTOR_BYTES,
    clear,
    computed_of,
    copy,
    element_bytes,
    lanes,
    load,
    load_until,
    prefetch,
    product,
    put_streaming,
    store_until,
    twice,
)
from gradwire_server.backends.numba_cpu.records import AXIS_POINTER, band
from gradwire_server.backends.numba_cpu.vectors import STORAGE_FORMATS, Format, part

# Bytes ahead at which input is prefetched: rows are too short for the processor's own prefetching.
_AHEAD = 1024
_BYTES = Format("float32")


@part
def _sum_vectors(stored, at, step, weights, taps, to, left, onto):
    """Sum the vectors at one place of rows; at most `left` lanes."""
    computed = computed_of(stored)
    size = element_bytes(computed)
    total = product(weights, load_until(stored, at, left))
    if onto:
        total = load_until(computed, to, left) + total
    last = at + (taps - 1) * step if step else weights + (taps - 1) * size
    while (at if step else weights) != last:
        at += step
        weights += size
        total = total + product(weights, load_until(stored, at, left))
    prefetch(stored, at + _AHEAD)
    store_until(computed, to, total, left)


@part
def _sum_rows(stored, at, step, weights, taps, length, to, onto):
    """Sum weighted rows, with k ascending.

    to[i] = sum over k of weights[k] * at[k * step + i], for 0 <= i < length.

    onto  whether the sums are added to the values in place
    """
    # Additions to several registers do not wait for each other.
    wide = twice(twice(stored))
    computed = computed_of(stored)
    while length >= lanes(wide):
        _sum_vectors(wide, at, step, weights, taps, to, lanes(wide), onto)
        at += lanes(wide) * element_bytes(stored)
        to += lanes(wide) * element_bytes(computed)
        length -= lanes(wide)
    while length > 0:
        _sum_vectors(stored, at, step, weights, taps, to, length, onto)
        at += lanes(stored) * element_bytes(stored)
        to += VECTOR_BYTES
        length -= lanes(stored)


@part
def _sums(stored, axis, first, stop, rows, step, length, result, result_step, carried):
    itemsize = element_bytes(computed_of(stored))
    for index in range(first, stop):
        start, taps, weights = band(axis, itemsize, index)
        at = rows + start * step
        if not taps:
            if index >= carried:
                clear(result, length * itemsize)
        elif index < carried:
            _sum_rows(stored, at, step, weights, taps, length, result, onto=True)
        elif step:
            _sum_rows(stored, at, step, weights, taps, length, result, onto=False)
        else:
            _sum_rows(stored, at, 0, weights, taps, length, result, onto=False)
        result += result_step


@part
def _convert(stored, rows, step, count, length, result, result_step):
    computed = computed_of(stored)
    for row in range(count):
        source, to = rows + row * step, result + row * result_step
        for i in range(0, length, lanes(stored)):
            numbers = load(computed, source + i * element_bytes(computed))
            store_until(stored, to + i * element_bytes(stored), numbers, length - i)


# Axis; first result and its end; rows (at input 0), bytes from row to row, their length; results
# (at the first) and their step; the end of the results that hold partial sums.
_SUM = types.void(AXIS_POINTER, *[types.int64] * 8)
# Rows, step, count, length; results and their step.
_CONVERT = types.void(*[types.int64] * 6)


class RowKernels(NamedTuple):
    """Compiled functions for rows of one storage type.

    sums     sums rows times their weights, onto partial sums or not
    convert  rounds rows of the compute type to the storage type
    """

    sums: Any
    convert: Any


def _compiled(stored: Format) -> RowKernels:
    @cfunc(_SUM, cache=True)
    def sums(axis, first, stop, rows, step, length, result, to, carried):
        one = carray(axis, 1)[0]
        _sums(stored, one, first, stop, rows, step, length, result, to, carried)

    @cfunc(_CONVERT, cache=True)
    def convert(rows, step, count, length, result, to):
        _convert(stored, rows, step, count, length, result, to)

    return RowKernels(sums, convert)


# Streaming stores are for results larger than the caches keep: an ordinary store first reads the
# line that it overwrites, so it moves twice as many bytes. They write whole lines. `fence` must
# follow them.
@cfunc(types.void(*[types.int64] * 6), cache=True)
def stream(rows, step, count, size, result, result_step):
    """Copy count rows of size bytes."""
    for row in range(count):
        source, to = rows + row * step, result + row * result_step
        first, stop = to + (-to & (VECTOR_BYTES - 1)), (to + size) & -VECTOR_BYTES
        head = min(first - to, size)
        copy(to, source, head)
        if head < size:
            distance = source - to
            for at in range(first, stop, VECTOR_BYTES):
                put_streaming(at, load(_BYTES, at + distance))
            stop = max(first, stop)
            copy(stop, stop + distance, to + size - stop)


# By the name of the storage type.
ROW_KERNELS = {one.name: _compiled(one) for one in STORAGE_FORMATS}
