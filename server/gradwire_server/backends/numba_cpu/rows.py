"""Sums of rows: the one primitive of every pass whose neighbors in memory share their weights.

Rows may be one row again and again, with a step of 0: loops over those end by their weights. The
others end by addresses, which the compiler does not count in advance: bands are too short for that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, types

from gradwire_server.backends.numba_cpu.records import AXIS_POINTER, band
from gradwire_server.backends.numba_cpu.simd import (
    clear,
    lanes,
    load,
    load_first,
    prefetch,
    product,
    store,
    store_first,
    unweighted,
)
from gradwire_server.backends.numba_cpu.vectors import BFLOAT16, COMPUTE, FLOAT16, part

# How far ahead input is fetched: a row is too short for processors to foresee the next.
_AHEAD = 1024


def _four_vectors(term: Any, *, onto: bool, again: bool) -> Any:
    """Build the sum of four vectors side by side, whose chains of sums do not wait for another."""

    @part
    def four_vectors(memory, compute, size, at, step, weights, taps, to):
        one = lanes(compute) * size
        number = 64 // lanes(compute)
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
        last = weights + (taps - 1) * number if again else at + (taps - 1) * step
        while (weights if again else at) != last:
            at += step
            weights += number
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
        number = 64 // lanes(compute)
        if left >= lanes(compute):
            a = term(compute, weights, load(memory, compute, at))
            if onto:
                a = load(COMPUTE, compute, to) + a
            last = weights + (taps - 1) * number if again else at + (taps - 1) * step
            while (weights if again else at) != last:
                at += step
                weights += number
                a = a + term(compute, weights, load(memory, compute, at))
            prefetch(at + _AHEAD)
            store(COMPUTE, to, a)
        else:
            a = term(compute, weights, load_first(memory, compute, at, left))
            if onto:
                a = load_first(COMPUTE, compute, to, left) + a
            last = weights + (taps - 1) * number if again else at + (taps - 1) * step
            while (weights if again else at) != last:
                at += step
                weights += number
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
    """Build sums of rows; onto: whether they are added to what is there already."""
    sum_rows = _sum_rows(term, onto=onto, again=False)
    sum_again = sum_rows if onto else _sum_rows(term, onto=False, again=True)

    @part
    def banded(memory, compute, axis, first, stop, size, rows, step, length, result, result_step):
        number = 64 // lanes(compute)
        for index in range(first, stop):
            start, taps, weights = band(axis, number, index)
            if taps:
                at = rows + start * step
                if step:
                    sum_rows(memory, compute, size, at, step, weights, taps, length, result)
                else:
                    sum_again(memory, compute, size, at, step, weights, taps, length, result)
            elif not onto:
                clear(result, length * number)
            result += result_step

    return banded


_weighted = _sums(product, onto=False)
_plain = _sums(unweighted, onto=False)
_onto = _sums(product, onto=True)


@part
def _convert(memory, compute, rows, step, count, length, size, result, result_step):
    """Round rows of the compute type to a format, whose numbers take size bytes."""
    width = lanes(compute)
    number = 64 // width
    for row in range(count):
        source, to, i = rows + row * step, result + row * result_step, 0
        while i < length:
            left = length - i
            if left < width <= length:
                # Once more what stands before, rather than part of a vector.
                i, left = length - width, width
            if left >= width:
                store(memory, to + i * size, load(COMPUTE, compute, source + i * number))
            else:
                value = load_first(COMPUTE, compute, source + i * number, left)
                store_first(memory, to + i * size, value, left)
            i += width


# Axis; first result and one past the last; bytes of a number of the rows; rows, which stand at
# input 0, bytes from row to row, their length; results, which stand at the first, and step.
_SUM = types.void(AXIS_POINTER, *[types.int64] * 8)
# Rows, step, how many, their length; bytes of a number of the result; results and step.
_CONVERT = types.void(*[types.int64] * 7)


@cfunc(_SUM, cache=True)
def weighted_float32(axis, first, stop, size, rows, step, length, result, result_step):
    """Sum rows of float32, times their weights."""
    one = carray(axis, 1)[0]
    _weighted(COMPUTE, np.float32, one, first, stop, size, rows, step, length, result, result_step)


@cfunc(_SUM, cache=True)
def plain_float32(axis, first, stop, size, rows, step, length, result, result_step):
    """Sum rows of float32, whose weights are 1."""
    one = carray(axis, 1)[0]
    _plain(COMPUTE, np.float32, one, first, stop, size, rows, step, length, result, result_step)


@cfunc(_SUM, cache=True)
def onto_float32(axis, first, stop, size, rows, step, length, result, result_step):
    """Sum rows of float32, times their weights, onto the results."""
    one = carray(axis, 1)[0]
    _onto(COMPUTE, np.float32, one, first, stop, size, rows, step, length, result, result_step)


@cfunc(_CONVERT, cache=True)
def convert_float32(rows, step, count, length, size, result, result_step):
    """Round rows to float32."""
    _convert(COMPUTE, np.float32, rows, step, count, length, size, result, result_step)


@cfunc(_SUM, cache=True)
def weighted_float16(axis, first, stop, size, rows, step, length, result, result_step):
    """Sum rows of float16, times their weights."""
    one = carray(axis, 1)[0]
    _weighted(FLOAT16, np.float32, one, first, stop, size, rows, step, length, result, result_step)


@cfunc(_SUM, cache=True)
def plain_float16(axis, first, stop, size, rows, step, length, result, result_step):
    """Sum rows of float16, whose weights are 1."""
    one = carray(axis, 1)[0]
    _plain(FLOAT16, np.float32, one, first, stop, size, rows, step, length, result, result_step)


@cfunc(_CONVERT, cache=True)
def convert_float16(rows, step, count, length, size, result, result_step):
    """Round rows to float16."""
    _convert(FLOAT16, np.float32, rows, step, count, length, size, result, result_step)


@cfunc(_SUM, cache=True)
def weighted_bfloat16(axis, first, stop, size, rows, step, length, result, result_step):
    """Sum rows of bfloat16, times their weights."""
    one = carray(axis, 1)[0]
    _weighted(BFLOAT16, np.float32, one, first, stop, size, rows, step, length, result, result_step)


@cfunc(_SUM, cache=True)
def plain_bfloat16(axis, first, stop, size, rows, step, length, result, result_step):
    """Sum rows of bfloat16, whose weights are 1."""
    one = carray(axis, 1)[0]
    _plain(BFLOAT16, np.float32, one, first, stop, size, rows, step, length, result, result_step)


@cfunc(_CONVERT, cache=True)
def convert_bfloat16(rows, step, count, length, size, result, result_step):
    """Round rows to bfloat16."""
    _convert(BFLOAT16, np.float32, rows, step, count, length, size, result, result_step)


@cfunc(_SUM, cache=True)
def weighted_float64(axis, first, stop, size, rows, step, length, result, result_step):
    """Sum rows of float64, times their weights."""
    one = carray(axis, 1)[0]
    _weighted(COMPUTE, np.float64, one, first, stop, size, rows, step, length, result, result_step)


@cfunc(_SUM, cache=True)
def plain_float64(axis, first, stop, size, rows, step, length, result, result_step):
    """Sum rows of float64, whose weights are 1."""
    one = carray(axis, 1)[0]
    _plain(COMPUTE, np.float64, one, first, stop, size, rows, step, length, result, result_step)


@cfunc(_SUM, cache=True)
def onto_float64(axis, first, stop, size, rows, step, length, result, result_step):
    """Sum rows of float64, times their weights, onto the results."""
    one = carray(axis, 1)[0]
    _onto(COMPUTE, np.float64, one, first, stop, size, rows, step, length, result, result_step)


@cfunc(_CONVERT, cache=True)
def convert_float64(rows, step, count, length, size, result, result_step):
    """Round rows to float64."""
    _convert(COMPUTE, np.float64, rows, step, count, length, size, result, result_step)


def sum_of(memory: np.dtype[Any], *, weights_are_one: bool) -> int:
    """Address of the function that sums rows of a type."""
    kind = "plain" if weights_are_one else "weighted"
    return int(globals()[f"{kind}_{memory}"].address)


def onto(compute: np.dtype[Any]) -> int:
    """Address of the function that adds rows to what is there already."""
    return int(globals()[f"onto_{compute}"].address)


def convert_to(memory: np.dtype[Any]) -> int:
    """Address of the function that rounds rows to a type."""
    return int(globals()[f"convert_{memory}"].address)
