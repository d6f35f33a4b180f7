"""The width stage where each vector of results finds its inputs in two or four vectors.

One instruction picks any lanes of two vectors, on processors where `CAN_PICK`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc

from gradwire_server.backends.numba_cpu.records import STAGE
from gradwire_server.backends.numba_cpu.shuffles import pick, where_more
from gradwire_server.backends.numba_cpu.simd import (
    integer_at,
    lanes,
    load,
    store,
    store_first,
    unweighted,
    zeros,
)
from gradwire_server.backends.numba_cpu.vectors import COMPUTE, part


def _permuted(term: Any) -> Any:
    @part
    def permuted(compute, groups, step, row, first, stop, elements, result):
        """Results of groups first .. stop - 1, one vector each, of a row of so many elements.

        groups  record of tables.Groups
        step    bytes from tap to tap
        row     address of input 0; result that of result 0
        """
        width = lanes(compute)
        number, taps, wide = 64 // width, groups.taps, groups.wide
        gaps, uneven = groups.gaps, groups.uneven
        for g in range(first, stop):
            at = row + integer_at(groups.bases + 8 * g) * number
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
    width, step = lanes(compute), job.channels * job.number
    base = result - first * step
    begin, end = first * job.channels // width, -(-stop * job.channels // width)
    elements = job.width.outputs * job.channels
    if job.width.plain:
        _permuted_plain(compute, job.groups, step, row, begin, end, elements, base)
    else:
        _permuted_weighted(compute, job.groups, step, row, begin, end, elements, base)


@cfunc(STAGE, cache=True)
def stage_float32(job, rows, step, count, first, stop, result, result_step):
    """Width stage of rows that stand at input 0; results stand at the first."""
    one = carray(job, 1)[0]
    for row in range(count):
        at, to = rows + row * step, result + row * result_step
        _permute_stage(np.float32, one, at, first, stop, to)


@cfunc(STAGE, cache=True)
def stage_float64(job, rows, step, count, first, stop, result, result_step):
    """Width stage of rows that stand at input 0; results stand at the first."""
    one = carray(job, 1)[0]
    for row in range(count):
        at, to = rows + row * step, result + row * result_step
        _permute_stage(np.float64, one, at, first, stop, to)


def stage_of(compute: np.dtype[Any]) -> int:
    """Address of the width stage."""
    return int(globals()[f"stage_{compute}"].address)
