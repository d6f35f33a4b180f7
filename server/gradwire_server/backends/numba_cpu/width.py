"""Kernels of the width stage, which sums along rows.

columns  blocks of rows are transposed: neighbors in a column share their weights with any bands
halve    bands advance by two inputs per result, with the same weights: shuffles split vectors
double   bands advance by one input per two results: shuffles merge vectors
permute  each vector of results finds its inputs in two registers, of which one instruction picks
         any lanes (CAN_PICK)

At both ends of an axis, whose bands differ, `halve` and `double` sum results one by one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import carray, cfunc, types

from gradwire_server.backends.numba_cpu.instructions import (
    CAN_PICK,
    VECTOR_BYTES,
    clear,
    element_bytes,
    even_lanes,
    integer_at,
    interleave,
    lanes,
    lanewise_product,
    load,
    number_at,
    odd_lanes,
    pick,
    product,
    put_number,
    store,
    store_until,
    transpose,
    twice,
    where_more,
    zeros,
)
from gradwire_server.backends.numba_cpu.records import DOUBLE, HALVE, JOB_POINTER, band
from gradwire_server.backends.numba_cpu.vectors import COMPUTE_FORMATS, Format, part

# Job; rows (at input 0), step, count; first result and its end; results (at the first) and step.
_STAGE = types.void(JOB_POINTER, *[types.int64] * 7)
# Job; rows, step, their buffer; first input and its end; first result and its end; results.
_COLUMNS = types.void(JOB_POINTER, *[types.int64] * 8)
_TO_ROWS = types.void(*[types.int64] * 5)


@part
def _columns(computed, job, rows, step, columns, low, high, first, stop, result):
    """Compute the part of results that some inputs contribute.

    The results are first .. stop - 1, the inputs low .. high - 1.

    rows     address of input low of as many rows as a vector has lanes
    columns  buffer for them: a vector per channel of each input
    result   a vector per channel of each result, from result first on; if its band begins
             before low, it holds the partial sum
    """
    for p in range(0, (high - low) * job.channels, lanes(computed)):
        place = columns + p * VECTOR_BYTES
        transpose(computed, rows + p * element_bytes(computed), step, place, VECTOR_BYTES)
    itemsize, pixel = element_bytes(computed), VECTOR_BYTES * job.channels
    for j in range(first, stop):
        start, taps, weights = band(job.width, itemsize, j)
        begin, end = max(start, low), min(start + taps, high)
        at, to = columns + (begin - low) * pixel, result
        result += pixel
        weights += (begin - start) * itemsize
        while to != result:
            if begin < end:
                total = product(weights, load(computed, at))
                if begin > start:
                    total = load(computed, to) + total
                weight, place, last = weights, at, at + (end - begin - 1) * pixel
                while place != last:
                    weight += itemsize
                    place += pixel
                    total = total + product(weight, load(computed, place))
                store(computed, to, total)
            elif not taps:
                store(computed, to, zeros(computed))
            at += VECTOR_BYTES
            to += VECTOR_BYTES


@part
def _to_rows(computed, results, length, rows, step, exact):
    width = lanes(computed)
    for p in range(0, length, width):
        # Transposes some columns again rather than write beyond the end.
        begin = min(p, length - width) if exact else p
        place = rows + begin * element_bytes(computed)
        transpose(computed, results + begin * VECTOR_BYTES, VECTOR_BYTES, place, step)


@part
def _one_by_one(computed, axis, row, first, stop, result):
    """Compute results first .. stop - 1.

    row and result are the addresses of elements 0.
    """
    itemsize = element_bytes(computed)
    for j in range(first, stop):
        start, taps, weight = band(axis, itemsize, j)
        at = row + start * itemsize
        if not taps:
            clear(result + j * itemsize, itemsize)
            continue
        total = number_at(computed, weight) * number_at(computed, at)
        for _ in range(taps - 1):
            at += itemsize
            weight += itemsize
            total = total + number_at(computed, weight) * number_at(computed, at)
        put_number(result + j * itemsize, total)


@part
def _halve(computed, job, at, to, left):
    size, weight, wide = element_bytes(computed), job.even.weight, twice(computed)
    at += job.even.start * size
    pairs = load(wide, at)
    total = product(weight, even_lanes(pairs))
    for taps in range(job.even.taps - 1, 0, -2):
        total = total + product(weight + size, odd_lanes(pairs))
        if taps > 1:
            at += 2 * size
            weight += 2 * size
            pairs = load(wide, at)
            total = total + product(weight, even_lanes(pairs))
    store_until(computed, to, total, left)


@part
def _sum_of_phase(computed, phase, at):
    """Sum a band for each lane.

    From lane to lane, the band moves on by one input.
    """
    size, weight = element_bytes(computed), phase.weight
    at += phase.start * size
    if not phase.taps:
        return zeros(computed)
    total = product(weight, load(computed, at))
    for _ in range(phase.taps - 1):
        at += size
        weight += size
        total = total + product(weight, load(computed, at))
    return total


@part
def _double(computed, job, at, to, left):
    even, odd = _sum_of_phase(computed, job.even, at), _sum_of_phase(computed, job.odd, at)
    store_until(twice(computed), to, interleave(even, odd), left)


@part
def _steady(computed, job, row, first, stop, result, put, period, step):
    """Compute results first .. stop - 1.

    Most bands repeat every `period` results, `step` inputs on. row and result are the addresses of
    elements 0.

    put  writes the results of as many periods as a vector has lanes; at is the address of the input
         from which the first of them counts
    """
    size, width = element_bytes(computed), lanes(computed)
    begin = max(first, job.steady_first)
    begin = min(begin + (begin - job.steady_first) % period, stop)
    end = begin + max(0, min(stop, job.steady_stop) - begin) // period * period
    _one_by_one(computed, job.width, row, first, begin, result)
    at = row + (begin - job.steady_first) // period * step * size
    for j in range(begin, end, period * width):
        put(computed, job, at, result + j * size, end - j)
        at += step * width * size
    _one_by_one(computed, job.width, row, end, stop, result)


@part
def _permuted(computed, job, row, first, stop, result, uneven):
    """Compute results first .. stop - 1.

    row and result are the addresses of elements 0.

    uneven  whether some lanes have fewer taps than others
    """
    width, itemsize, groups = lanes(computed), element_bytes(computed), job.groups
    step, left = job.channels * itemsize, job.width.outputs * job.channels
    for g in range(first * job.channels // width, -(-stop * job.channels // width)):
        at = row + integer_at(groups.bases + 8 * g) * itemsize
        index = groups.data + g * groups.size
        counts = w = index + VECTOR_BYTES
        total = zeros(computed)
        for k in range(groups.taps):
            w += VECTOR_BYTES
            term = lanewise_product(
                w, pick(index, load(computed, at), load(computed, at + VECTOR_BYTES))
            )
            more = total + term if k else term
            total = where_more(counts, k, more, total) if uneven else more
            at += step
        store_until(computed, result + g * VECTOR_BYTES, total, left - g * width)


@part
def _along_row(computed, job, row, first, stop, result):
    """Compute results first .. stop - 1.

    row and result are the addresses of elements 0.
    """
    if job.method == HALVE:
        _steady(computed, job, row, first, stop, result, _halve, 1, 2)
    elif job.method == DOUBLE:
        _steady(computed, job, row, first, stop, result, _double, 2, 1)
    elif CAN_PICK and job.groups.uneven:
        _permuted(computed, job, row, first, stop, result, uneven=True)
    elif CAN_PICK:
        _permuted(computed, job, row, first, stop, result, uneven=False)


class WidthKernels(NamedTuple):
    """Compiled functions of the width stage for one compute type.

    columns     transposes the rows of a block and sums them
    to_rows     transposes results back; exact: nothing may be written beyond a row's end
    along_rows  the other methods
    """

    columns: Any
    to_rows: Any
    along_rows: Any


def _compiled(computed: Format) -> WidthKernels:
    @cfunc(_COLUMNS, cache=True)
    def columns(job, rows, step, block, low, high, first, stop, results):
        _columns(computed, carray(job, 1)[0], rows, step, block, low, high, first, stop, results)

    @cfunc(_TO_ROWS, cache=True)
    def to_rows(results, length, rows, step, exact):
        _to_rows(computed, results, length, rows, step, exact)

    @cfunc(_STAGE, cache=True)
    def along_rows(job, rows, step, count, first, stop, result, to):
        one = carray(job, 1)[0]
        base = result - first * one.channels * element_bytes(computed)
        for row in range(count):
            _along_row(computed, one, rows + row * step, first, stop, base + row * to)

    return WidthKernels(columns, to_rows, along_rows)


# By the name of the compute type.
WIDTH_KERNELS = {one.name: _compiled(one) for one in COMPUTE_FORMATS}
