"""The width stage by transposing blocks.

What lies side by side in a transposed block is one column of several rows, which share every
weight, whatever the bands.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, types

from gradwire_server.backends.numba_cpu.records import STAGE
from gradwire_server.backends.numba_cpu.shuffles import transpose
from gradwire_server.backends.numba_cpu.simd import (
    integer_at,
    lanes,
    load,
    product,
    store,
    unweighted,
    zeros,
)
from gradwire_server.backends.numba_cpu.vectors import COMPUTE, part

_TO_COLUMNS = types.void(*[types.int64] * 4)
_TO_ROWS = types.void(*[types.int64] * 5)


def _sum_of_columns(term: Any) -> Any:
    @part
    def sum_columns(compute, axis, channels, columns, low, high, first, stop, result):
        """Results first .. stop - 1 of a transposed block, as far as inputs low .. high - 1 go.

        columns  a vector for each channel of each input, from input low on
        result   a vector for each channel of each result, from result first on; where a band
                 begins before low it holds the sum of what came before
        """
        number = 64 // lanes(compute)
        pixel = 64 * channels
        to = result
        for j in range(first, stop):
            start = integer_at(axis.start + 8 * j)
            offset = integer_at(axis.offset + 8 * j)
            taps = integer_at(axis.offset + 8 * j + 8) - offset
            begin, end = max(start, low), min(start + taps, high)
            w = axis.weight + (offset + begin - start) * number
            at = columns + (begin - low) * pixel
            for _ in range(channels):
                if begin < end:
                    total = term(compute, w, load(COMPUTE, compute, at))
                    if begin > start:
                        total = load(COMPUTE, compute, to) + total
                    weight, place, last = w, at, at + (end - begin - 1) * pixel
                    while place != last:
                        weight += number
                        place += pixel
                        total = total + term(compute, weight, load(COMPUTE, compute, place))
                    store(COMPUTE, to, total)
                elif not taps:
                    store(COMPUTE, to, zeros(compute))
                at += 64
                to += 64

    return sum_columns


_sum_columns_weighted = _sum_of_columns(product)
_sum_columns_plain = _sum_of_columns(unweighted)


@part
def _columns_stage(compute, job, columns, low, high, first, stop, results):
    if job.width.plain:
        _sum_columns_plain(
            compute, job.width, job.channels, columns, low, high, first, stop, results
        )
    else:
        _sum_columns_weighted(
            compute, job.width, job.channels, columns, low, high, first, stop, results
        )


@part
def _to_columns(compute, rows, step, length, columns):
    number = 64 // lanes(compute)
    for p in range(0, length, lanes(compute)):
        transpose(compute, rows + p * number, step, columns + p * 64, 64)


@part
def _to_rows(compute, results, length, rows, step, exact):
    width = lanes(compute)
    for p in range(0, length, width):
        # Once more what stands before, rather than beyond the end.
        begin = min(p, length - width) if exact else p
        transpose(compute, results + begin * 64, 64, rows + begin * (64 // width), step)


@cfunc(STAGE, cache=True)
def columns_float32(job, columns, low, high, first, stop, results, _):
    """Width stage of a transposed block."""
    _columns_stage(np.float32, carray(job, 1)[0], columns, low, high, first, stop, results)


@cfunc(_TO_COLUMNS, cache=True)
def to_columns_float32(rows, step, length, columns):
    """Transpose the rows of a block."""
    _to_columns(np.float32, rows, step, length, columns)


@cfunc(_TO_ROWS, cache=True)
def to_rows_float32(results, length, rows, step, exact):
    """Transpose results back; exact: nothing may be written beyond a row's end."""
    _to_rows(np.float32, results, length, rows, step, exact)


@cfunc(STAGE, cache=True)
def columns_float64(job, columns, low, high, first, stop, results, _):
    """Width stage of a transposed block."""
    _columns_stage(np.float64, carray(job, 1)[0], columns, low, high, first, stop, results)


@cfunc(_TO_COLUMNS, cache=True)
def to_columns_float64(rows, step, length, columns):
    """Transpose the rows of a block."""
    _to_columns(np.float64, rows, step, length, columns)


@cfunc(_TO_ROWS, cache=True)
def to_rows_float64(results, length, rows, step, exact):
    """Transpose results back; exact: nothing may be written beyond a row's end."""
    _to_rows(np.float64, results, length, rows, step, exact)


def of_columns(compute: np.dtype[Any]) -> int:
    """Address of the width stage of a transposed block."""
    return int(globals()[f"columns_{compute}"].address)


def to_columns(compute: np.dtype[Any]) -> int:
    """Address of what transposes the rows of a block."""
    return int(globals()[f"to_columns_{compute}"].address)


def to_rows(compute: np.dtype[Any]) -> int:
    """Address of what transposes results back."""
    return int(globals()[f"to_rows_{compute}"].address)
