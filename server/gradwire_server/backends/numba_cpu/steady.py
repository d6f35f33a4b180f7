"""The width stage where bands advance steadily, with the same weights.

Where they advance by two inputs a result, in `_halve`, or by one for every two results, in
`_double`, vectors of neighbors are taken apart or put together by shuffles. Results at the ends,
whose bands differ, are summed one by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc

from gradwire_server.backends.numba_cpu.records import STAGE
from gradwire_server.backends.numba_cpu.shuffles import every_second, interleave
from gradwire_server.backends.numba_cpu.simd import (
    broadcast,
    integer_at,
    lanes,
    load,
    number_at,
    put_number,
    store,
    store_first,
    zeros,
)
from gradwire_server.backends.numba_cpu.vectors import COMPUTE, part


@part
def _gather(compute, axis, row, first, stop, result):
    """Results first .. stop - 1 one by one. row and result stand at input 0 and result 0."""
    number = 64 // lanes(compute)
    for j in range(first, stop):
        offset = integer_at(axis.offset + 8 * j)
        taps = integer_at(axis.offset + 8 * j + 8) - offset
        at = row + integer_at(axis.start + 8 * j) * number
        w = axis.weight + offset * number
        total = number_at(compute, w) * number_at(compute, at) if taps else compute(0)
        for _ in range(taps - 1):
            at += number
            w += number
            total = total + number_at(compute, w) * number_at(compute, at)
        put_number(result + j * number, total)


@part
def _halve(compute, weights, taps, inputs, length, result):
    """result[i] = sum over k of weights[k] * inputs[2 * i + k], 0 <= i < length."""
    width = lanes(compute)
    number = 64 // width
    i = 0
    while i < length:
        at = inputs + 2 * i * number
        low, high = load(COMPUTE, compute, at), load(COMPUTE, compute, at + 64)
        w = weights
        total = broadcast(compute, w) * every_second(low, high, 0)
        if taps > 1:
            total = total + broadcast(compute, w + number) * every_second(low, high, 1)
        last = w + (taps // 2 - 1) * 2 * number if taps > 1 else w
        while w != last:
            at += 2 * number
            w += 2 * number
            low, high = load(COMPUTE, compute, at), load(COMPUTE, compute, at + 64)
            total = total + broadcast(compute, w) * every_second(low, high, 0)
            total = total + broadcast(compute, w + number) * every_second(low, high, 1)
        if taps > 2 and taps % 2:
            at += 2 * number
            w += 2 * number
            low, high = load(COMPUTE, compute, at), load(COMPUTE, compute, at + 64)
            total = total + broadcast(compute, w) * every_second(low, high, 0)
        if length - i >= width:
            store(COMPUTE, result + i * number, total)
        else:
            store_first(COMPUTE, result + i * number, total, length - i)
        i += width


@part
def _steady(compute, weights, taps, at):
    """Sum of so many vectors, each one number on from the last; +0 of none."""
    number = 64 // lanes(compute)
    if not taps:
        return zeros(compute)
    total = broadcast(compute, weights) * load(COMPUTE, compute, at)
    for k in range(1, taps):
        total = total + broadcast(compute, weights + k * number) * load(
            COMPUTE, compute, at + k * number
        )
    return total


@part
def _double(compute, even, odd, row, first, length, result):
    """result[2 * i] and result[2 * i + 1], 0 <= i < length, by the bands of two phases.

    even, odd  records with start, taps and weight: of result 2 * i the band starts at start + i
    row        address of input 0
    first      pairs before, from the records' results on
    """
    width = lanes(compute)
    number = 64 // width
    i = 0
    while i < length:
        at = row + (first + i) * number
        a = _steady(compute, even.weight, even.taps, at + even.start * number)
        b = _steady(compute, odd.weight, odd.taps, at + odd.start * number)
        to = result + 2 * i * number
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
    base = result - first * job.number
    begin = min(max(first, job.steady_first), stop)
    end = max(begin, min(stop, job.steady_stop))
    at = row + (job.even.start + 2 * (begin - job.steady_first)) * job.number
    to = base + begin * job.number
    _gather(compute, job.width, row, first, begin, base)
    _halve(compute, job.even.weight, job.even.taps, at, end - begin, to)
    _gather(compute, job.width, row, end, stop, base)


@part
def _double_stage(compute, job, row, first, stop, result):
    base = result - first * job.number
    begin = max(first, job.steady_first)
    begin = min(begin + (begin - job.steady_first) % 2, stop)
    pairs = max(0, min(stop, job.steady_stop) - begin) // 2
    end, to = begin + 2 * pairs, base + begin * job.number
    _gather(compute, job.width, row, first, begin, base)
    _double(compute, job.even, job.odd, row, (begin - job.steady_first) // 2, pairs, to)
    _gather(compute, job.width, row, end, stop, base)


@cfunc(STAGE, cache=True)
def halve_float32(job, rows, step, count, first, stop, result, result_step):
    """Width stage of rows that stand at input 0; results stand at the first."""
    one = carray(job, 1)[0]
    for row in range(count):
        at, to = rows + row * step, result + row * result_step
        _halve_stage(np.float32, one, at, first, stop, to)


@cfunc(STAGE, cache=True)
def double_float32(job, rows, step, count, first, stop, result, result_step):
    """Width stage of rows that stand at input 0; results stand at the first."""
    one = carray(job, 1)[0]
    for row in range(count):
        at, to = rows + row * step, result + row * result_step
        _double_stage(np.float32, one, at, first, stop, to)


@cfunc(STAGE, cache=True)
def halve_float64(job, rows, step, count, first, stop, result, result_step):
    """Width stage of rows that stand at input 0; results stand at the first."""
    one = carray(job, 1)[0]
    for row in range(count):
        at, to = rows + row * step, result + row * result_step
        _halve_stage(np.float64, one, at, first, stop, to)


@cfunc(STAGE, cache=True)
def double_float64(job, rows, step, count, first, stop, result, result_step):
    """Width stage of rows that stand at input 0; results stand at the first."""
    one = carray(job, 1)[0]
    for row in range(count):
        at, to = rows + row * step, result + row * result_step
        _double_stage(np.float64, one, at, first, stop, to)


def halving(compute: np.dtype[Any]) -> int:
    """Address of the width stage for bands that advance by two inputs a result."""
    return int(globals()[f"halve_{compute}"].address)


def doubling(compute: np.dtype[Any]) -> int:
    """Address of the width stage for bands that advance by one input for every two results."""
    return int(globals()[f"double_{compute}"].address)
