"""Kernels of the width stage, which sums along rows.

columns  blocks of rows are transposed: neighbors in a column share their weights with any bands
halve    bands advance by two inputs per result, with the same weights: shuffles split vectors
double   bands advance by one input per two results: shuffles merge vectors
permute  each vector of results finds its inputs in two or four vectors; one instruction picks any
         lanes of two vectors (CAN_PICK)

At both ends of an axis, whose bands differ, `halve` and `double` sum results one by one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import carray, cfunc, types

from gradwire_server.backends.numba_cpu.instructions import (
    CAN_PICK,
    broadcast,
    every_second,
    integer_at,
    interleave,
    lanes,
    load,
    number_at,
    pick,
    product,
    put_number,
    store,
    store_first,
    transpose,
    unweighted,
    where_more,
    zeros,
)
from gradwire_server.backends.numba_cpu.records import JOB_POINTER
from gradwire_server.backends.numba_cpu.vectors import COMPUTE, COMPUTE_TYPES, part

# Job; rows (at input 0), step, count; first result and its end; results (at the first) and step. Of
# `columns`: job; transposed block, first input and its end; results likewise; results; unused.
_STAGE = types.void(JOB_POINTER, *[types.int64] * 7)
_TO_COLUMNS = types.void(*[types.int64] * 4)
_TO_ROWS = types.void(*[types.int64] * 5)


def _sum_of_columns(term: Any) -> Any:
    @part
    def sum_columns(compute, axis, channels, columns, low, high, first, stop, result):
        """Compute the part of results first .. stop - 1 that inputs low .. high - 1 give.

        columns  transposed block: a vector per channel of each input, from input low on
        result   a vector per channel of each result, from result first on; if its band begins
                 before low, it holds the partial sum
        """
        itemsize = 64 // lanes(compute)
        pixel = 64 * channels
        to = result
        for j in range(first, stop):
            start = integer_at(axis.start + 8 * j)
            offset = integer_at(axis.offset + 8 * j)
            taps = integer_at(axis.offset + 8 * j + 8) - offset
            begin, end = max(start, low), min(start + taps, high)
            w = axis.weight + (offset + begin - start) * itemsize
            at = columns + (begin - low) * pixel
            for _ in range(channels):
                if begin < end:
                    total = term(compute, w, load(COMPUTE, compute, at))
                    if begin > start:
                        total = load(COMPUTE, compute, to) + total
                    weight, place, last = w, at, at + (end - begin - 1) * pixel
                    while place != last:
                        weight += itemsize
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
    axis, channels = job.width, job.channels
    if axis.plain:
        _sum_columns_plain(compute, axis, channels, columns, low, high, first, stop, results)
    else:
        _sum_columns_weighted(compute, axis, channels, columns, low, high, first, stop, results)


@part
def _to_columns(compute, rows, step, length, columns):
    itemsize = 64 // lanes(compute)
    for p in range(0, length, lanes(compute)):
        transpose(compute, rows + p * itemsize, step, columns + p * 64, 64)


@part
def _to_rows(compute, results, length, rows, step, exact):
    width = lanes(compute)
    for p in range(0, length, width):
        # Transposes some columns again rather than write beyond the end.
        begin = min(p, length - width) if exact else p
        transpose(compute, results + begin * 64, 64, rows + begin * (64 // width), step)


@part
def _one_by_one(compute, axis, row, first, stop, result):
    """Compute results first .. stop - 1; row and result are the addresses of elements 0."""
    itemsize = 64 // lanes(compute)
    for j in range(first, stop):
        offset = integer_at(axis.offset + 8 * j)
        taps = integer_at(axis.offset + 8 * j + 8) - offset
        at = row + integer_at(axis.start + 8 * j) * itemsize
        w = axis.weight + offset * itemsize
        total = number_at(compute, w) * number_at(compute, at) if taps else compute(0)
        for _ in range(taps - 1):
            at += itemsize
            w += itemsize
            total = total + number_at(compute, w) * number_at(compute, at)
        put_number(result + j * itemsize, total)


@part
def _halve(compute, weights, taps, inputs, length, result):
    """result[i] = sum over k of weights[k] * inputs[2 * i + k], 0 <= i < length."""
    width = lanes(compute)
    itemsize = 64 // width
    i = 0
    while i < length:
        at = inputs + 2 * i * itemsize
        low, high = load(COMPUTE, compute, at), load(COMPUTE, compute, at + 64)
        w = weights
        total = broadcast(compute, w) * every_second(low, high, 0)
        if taps > 1:
            total = total + broadcast(compute, w + itemsize) * every_second(low, high, 1)
        last = w + (taps // 2 - 1) * 2 * itemsize if taps > 1 else w
        while w != last:
            at += 2 * itemsize
            w += 2 * itemsize
            low, high = load(COMPUTE, compute, at), load(COMPUTE, compute, at + 64)
            total = total + broadcast(compute, w) * every_second(low, high, 0)
            total = total + broadcast(compute, w + itemsize) * every_second(low, high, 1)
        if taps > 2 and taps % 2:
            at += 2 * itemsize
            w += 2 * itemsize
            low, high = load(COMPUTE, compute, at), load(COMPUTE, compute, at + 64)
            total = total + broadcast(compute, w) * every_second(low, high, 0)
        if length - i >= width:
            store(COMPUTE, result + i * itemsize, total)
        else:
            store_first(COMPUTE, result + i * itemsize, total, length - i)
        i += width


@part
def _steady(compute, weights, taps, at):
    """Sum taps vectors, each one element after the last; +0 without taps."""
    itemsize = 64 // lanes(compute)
    if not taps:
        return zeros(compute)
    total = broadcast(compute, weights) * load(COMPUTE, compute, at)
    for k in range(1, taps):
        total = total + broadcast(compute, weights + k * itemsize) * load(
            COMPUTE, compute, at + k * itemsize
        )
    return total


@part
def _double(compute, even, odd, row, first, length, result):
    """Compute result[2 * i] by band even and result[2 * i + 1] by band odd, 0 <= i < length.

    even, odd  bands of pair 0: start, taps and weight
    row        address of input 0
    first      pair of result[0] and result[1]
    """
    width = lanes(compute)
    itemsize = 64 // width
    i = 0
    while i < length:
        at = row + (first + i) * itemsize
        a = _steady(compute, even.weight, even.taps, at + even.start * itemsize)
        b = _steady(compute, odd.weight, odd.taps, at + odd.start * itemsize)
        to = result + 2 * i * itemsize
        left = 2 * (length - i)
        if left >= 2 * width:
            store(COMPUTE, to, interleave(a, b, 0))
            store(COMPUTE, to + 64, interleave(a, b, 1))
        elif left > width:
            store(COMPUTE, to, interleave(a, b, 0))
            store_first(COMPUTE, to + 64, interleave(a, b, 1), left - width)
        else:
            store_first(COMPUTE, to, interleave(a, b, 0), left)
        i += width


@part
def _halve_stage(compute, job, row, first, stop, result):
    base = result - first * job.itemsize
    begin = min(max(first, job.steady_first), stop)
    end = max(begin, min(stop, job.steady_stop))
    at = row + (job.even.start + 2 * (begin - job.steady_first)) * job.itemsize
    to = base + begin * job.itemsize
    _one_by_one(compute, job.width, row, first, begin, base)
    _halve(compute, job.even.weight, job.even.taps, at, end - begin, to)
    _one_by_one(compute, job.width, row, end, stop, base)


@part
def _double_stage(compute, job, row, first, stop, result):
    base = result - first * job.itemsize
    begin = max(first, job.steady_first)
    begin = min(begin + (begin - job.steady_first) % 2, stop)
    pairs = max(0, min(stop, job.steady_stop) - begin) // 2
    end, to = begin + 2 * pairs, base + begin * job.itemsize
    _one_by_one(compute, job.width, row, first, begin, base)
    _double(compute, job.even, job.odd, row, (begin - job.steady_first) // 2, pairs, to)
    _one_by_one(compute, job.width, row, end, stop, base)


def _permuted(term: Any) -> Any:
    @part
    def permuted(compute, groups, step, row, first, stop, elements, result):
        """Compute vectors first .. stop - 1 of a row of so many elements.

        groups       record of tables.Groups
        step         bytes from tap to tap
        row, result  addresses of elements 0
        """
        width = lanes(compute)
        itemsize, taps, wide = 64 // width, groups.taps, groups.wide
        gaps, uneven = groups.gaps, groups.uneven
        for g in range(first, stop):
            at = row + integer_at(groups.bases + 8 * g) * itemsize
            index = groups.data + g * groups.size
            w = index + 128
            total = term(compute, w, pick(compute, at, index, wide))
            if gaps:
                total = where_more(compute, index + 64, 0, total, zeros(compute))
            k, last = 0, w + (taps - 1) * 64
            while w != last:
                k += 1
                at += step
                w += 64
                more = total + term(compute, w, pick(compute, at, index, wide))
                total = where_more(compute, index + 64, k, more, total) if uneven else more
            left = elements - g * width
            if left >= width:
                store(COMPUTE, result + g * 64, total)
            else:
                store_first(COMPUTE, result + g * 64, total, left)

    return permuted


@part
def _lanewise(compute, weights, value):
    return load(COMPUTE, compute, weights) * value


_permuted_weighted = _permuted(_lanewise)
_permuted_plain = _permuted(unweighted)


@part
def _permute_stage(compute, job, row, first, stop, result):
    width, step = lanes(compute), job.channels * job.itemsize
    base = result - first * step
    begin, end = first * job.channels // width, -(-stop * job.channels // width)
    elements = job.width.outputs * job.channels
    if job.width.plain:
        _permuted_plain(compute, job.groups, step, row, begin, end, elements, base)
    else:
        _permuted_weighted(compute, job.groups, step, row, begin, end, elements, base)


class WidthKernels(NamedTuple):
    """Compiled functions of the width stage for one compute type, by method.

    to_columns  transposes the rows of a block, for `columns`
    to_rows     transposes results back; exact: nothing may be written beyond a row's end
    permute     None without CAN_PICK
    """

    columns: Any
    to_columns: Any
    to_rows: Any
    halve: Any
    double: Any
    permute: Any


def _compiled(compute: Any) -> WidthKernels:
    @cfunc(_STAGE, cache=True)
    def columns(job, block, low, high, first, stop, results, _):
        _columns_stage(compute, carray(job, 1)[0], block, low, high, first, stop, results)

    @cfunc(_TO_COLUMNS, cache=True)
    def to_columns(rows, step, length, block):
        _to_columns(compute, rows, step, length, block)

    @cfunc(_TO_ROWS, cache=True)
    def to_rows(results, length, rows, step, exact):
        _to_rows(compute, results, length, rows, step, exact)

    @cfunc(_STAGE, cache=True)
    def halve(job, rows, step, count, first, stop, result, to):
        one = carray(job, 1)[0]
        for row in range(count):
            _halve_stage(compute, one, rows + row * step, first, stop, result + row * to)

    @cfunc(_STAGE, cache=True)
    def double(job, rows, step, count, first, stop, result, to):
        one = carray(job, 1)[0]
        for row in range(count):
            _double_stage(compute, one, rows + row * step, first, stop, result + row * to)

    permute = _compiled_permute(compute) if CAN_PICK else None
    return WidthKernels(columns, to_columns, to_rows, halve, double, permute)


def _compiled_permute(compute: Any) -> Any:
    @cfunc(_STAGE, cache=True)
    def permute(job, rows, step, count, first, stop, result, to):
        one = carray(job, 1)[0]
        for row in range(count):
            _permute_stage(compute, one, rows + row * step, first, stop, result + row * to)

    return permute


# By the name of the compute type.
WIDTH_KERNELS = {name: _compiled(compute) for name, compute in COMPUTE_TYPES.items()}
