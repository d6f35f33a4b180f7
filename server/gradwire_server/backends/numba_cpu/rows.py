"""Sums of rows: the one primitive of every pass whose neighbors in memory share their weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cfunc, njit, types

from gradwire_server.backends.numba_cpu.simd import (
    broadcast,
    lanes,
    load,
    load_first,
    store,
    store_first,
)
from gradwire_server.backends.numba_cpu.vectors import BFLOAT16, COMPUTE, FLOAT16


@njit
def product(compute, weights, value):
    """A value times the weight at an address."""
    return broadcast(compute, weights) * value


@njit
def unweighted(compute, weights, value):
    """A value whose weight is 1."""
    return value


@njit
def _assigned(compute, result, value):
    return value


@njit
def _assigned_first(compute, result, value, count):
    return value


@njit
def _added(compute, result, value):
    return load(COMPUTE, compute, result) + value


@njit
def _added_first(compute, result, value, count):
    return load_first(COMPUTE, compute, result, count) + value


def _sum_of_rows(term: Any, begun: Any, begun_first: Any, *, twice: bool) -> Any:
    """Build a sum; twice: whether writing a result once more leaves it as it is."""

    @njit
    def sum_rows(memory, compute, size, rows, step, weights, taps, length, result):
        """result[i] = sum over k of weights[k] * rows[k * step + i], k ascending, 0 <= i < length.

        memory   format of the rows, whose numbers take size bytes; result is in the compute type
        step     bytes from row to row
        taps     how many rows, at least 1
        """
        width = lanes(compute)
        number = 64 // width
        four = 4 * width
        i = 0
        # At the end once more what stands before, rather than parts of vectors.
        stop = length if twice and length >= four else length - four + 1
        while i < stop:
            i = min(i, length - four)
            at, to = rows + i * size, result + i * number
            at_b, at_c, at_d = at + width * size, at + 2 * width * size, at + 3 * width * size
            a = begun(compute, to, term(compute, weights, load(memory, compute, at)))
            b = begun(compute, to + 64, term(compute, weights, load(memory, compute, at_b)))
            c = begun(compute, to + 128, term(compute, weights, load(memory, compute, at_c)))
            d = begun(compute, to + 192, term(compute, weights, load(memory, compute, at_d)))
            w = weights
            for _ in range(taps - 1):
                at += step
                w += number
                a = a + term(compute, w, load(memory, compute, at))
                b = b + term(compute, w, load(memory, compute, at + width * size))
                c = c + term(compute, w, load(memory, compute, at + 2 * width * size))
                d = d + term(compute, w, load(memory, compute, at + 3 * width * size))
            store(COMPUTE, to, a)
            store(COMPUTE, to + 64, b)
            store(COMPUTE, to + 128, c)
            store(COMPUTE, to + 192, d)
            i += four
        while i < length:
            at, w = rows + i * size, weights
            to, left = result + i * number, length - i
            if left >= width:
                a = begun(compute, to, term(compute, w, load(memory, compute, at)))
                for _ in range(taps - 1):
                    at += step
                    w += number
                    a = a + term(compute, w, load(memory, compute, at))
                store(COMPUTE, to, a)
            else:
                a = load_first(memory, compute, at, left)
                a = begun_first(compute, to, term(compute, w, a), left)
                for _ in range(taps - 1):
                    at += step
                    w += number
                    a = a + term(compute, w, load_first(memory, compute, at, left))
                store_first(COMPUTE, to, a, left)
            i += width

    return sum_rows


_sum_weighted = _sum_of_rows(product, _assigned, _assigned_first, twice=True)
_sum_plain = _sum_of_rows(unweighted, _assigned, _assigned_first, twice=True)
_sum_onto = _sum_of_rows(product, _added, _added_first, twice=False)


@njit
def _convert(memory, compute, source, length, size, result):
    """Round a row of the compute type to a format, whose numbers take size bytes."""
    width = lanes(compute)
    number = 64 // width
    i = 0
    while i < length:
        left = length - i
        if left >= width:
            store(memory, result + i * size, load(COMPUTE, compute, source + i * number))
        elif length >= width:
            i = length - width
            store(memory, result + i * size, load(COMPUTE, compute, source + i * number))
        else:
            value = load_first(COMPUTE, compute, source + i * number, left)
            store_first(memory, result + i * size, value, left)
        i += width


_SUM = types.void(*[types.int64] * 7)
_CONVERT = types.void(*[types.int64] * 4)


@cfunc(_SUM, cache=True)
def sum_weighted_float32(size, rows, step, weights, taps, length, result):
    """Sum rows of float32, times their weights."""
    _sum_weighted(COMPUTE, np.float32, size, rows, step, weights, taps, length, result)


@cfunc(_SUM, cache=True)
def sum_plain_float32(size, rows, step, weights, taps, length, result):
    """Sum rows of float32, whose weights are 1."""
    _sum_plain(COMPUTE, np.float32, size, rows, step, weights, taps, length, result)


@cfunc(_SUM, cache=True)
def sum_onto_float32(size, rows, step, weights, taps, length, result):
    """Sum rows of float32, times their weights, onto the result."""
    _sum_onto(COMPUTE, np.float32, size, rows, step, weights, taps, length, result)


@cfunc(_CONVERT, cache=True)
def convert_float32(source, length, size, result):
    """Round a row to float32."""
    _convert(COMPUTE, np.float32, source, length, size, result)


@cfunc(_SUM, cache=True)
def sum_weighted_float16(size, rows, step, weights, taps, length, result):
    """Sum rows of float16, times their weights."""
    _sum_weighted(FLOAT16, np.float32, size, rows, step, weights, taps, length, result)


@cfunc(_SUM, cache=True)
def sum_plain_float16(size, rows, step, weights, taps, length, result):
    """Sum rows of float16, whose weights are 1."""
    _sum_plain(FLOAT16, np.float32, size, rows, step, weights, taps, length, result)


@cfunc(_CONVERT, cache=True)
def convert_float16(source, length, size, result):
    """Round a row to float16."""
    _convert(FLOAT16, np.float32, source, length, size, result)


@cfunc(_SUM, cache=True)
def sum_weighted_bfloat16(size, rows, step, weights, taps, length, result):
    """Sum rows of bfloat16, times their weights."""
    _sum_weighted(BFLOAT16, np.float32, size, rows, step, weights, taps, length, result)


@cfunc(_SUM, cache=True)
def sum_plain_bfloat16(size, rows, step, weights, taps, length, result):
    """Sum rows of bfloat16, whose weights are 1."""
    _sum_plain(BFLOAT16, np.float32, size, rows, step, weights, taps, length, result)


@cfunc(_CONVERT, cache=True)
def convert_bfloat16(source, length, size, result):
    """Round a row to bfloat16."""
    _convert(BFLOAT16, np.float32, source, length, size, result)


@cfunc(_SUM, cache=True)
def sum_weighted_float64(size, rows, step, weights, taps, length, result):
    """Sum rows of float64, times their weights."""
    _sum_weighted(COMPUTE, np.float64, size, rows, step, weights, taps, length, result)


@cfunc(_SUM, cache=True)
def sum_plain_float64(size, rows, step, weights, taps, length, result):
    """Sum rows of float64, whose weights are 1."""
    _sum_plain(COMPUTE, np.float64, size, rows, step, weights, taps, length, result)


@cfunc(_SUM, cache=True)
def sum_onto_float64(size, rows, step, weights, taps, length, result):
    """Sum rows of float64, times their weights, onto the result."""
    _sum_onto(COMPUTE, np.float64, size, rows, step, weights, taps, length, result)


@cfunc(_CONVERT, cache=True)
def convert_float64(source, length, size, result):
    """Round a row to float64."""
    _convert(COMPUTE, np.float64, source, length, size, result)


def sum_of(memory: np.dtype[Any], *, weights_are_one: bool) -> int:
    """Address of the function that sums rows of a type."""
    kind = "plain" if weights_are_one else "weighted"
    return int(globals()[f"sum_{kind}_{memory}"].address)


def onto(compute: np.dtype[Any]) -> int:
    """Address of the function that adds rows to what is there already."""
    return int(globals()[f"sum_onto_{compute}"].address)


def convert_to(memory: np.dtype[Any]) -> int:
    """Address of the function that rounds rows to a type."""
    return int(globals()[f"convert_{memory}"].address)
