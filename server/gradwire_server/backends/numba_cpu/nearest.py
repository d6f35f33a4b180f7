"""Kernels for weights that are all 1 (nearest): every pass at once, in registers.

A result is the sum of a window of the input, over depth first, then height, then width. Windows of
neighbors hardly overlap, so summing their rows again costs less than storing the sums.
"""

from __future__ import annotations

from typing import Any

from numba import carray, cfunc, types

from gradwire_server.backends.numba_cpu.instructions import (
    CAN_PICK,
    clear,
    every_second,
    integer_at,
    lanes,
    load,
    load_first,
    pick_of,
    prefetch,
    store,
    store_first,
    where_more,
    zeros,
)
from gradwire_server.backends.numba_cpu.records import (
    JOB_POINTER,
    PAD,
    WINDOW_HALVE,
    WINDOW_PERMUTE,
    band,
)
from gradwire_server.backends.numba_cpu.vectors import STORAGE_TYPES, part

# Bytes ahead at which input is prefetched: rows are too short for the processor's own prefetching.
_AHEAD = 1024


@part
def _load(memory, compute, size, at, end):
    prefetch(at + _AHEAD)
    return load(memory, compute, at)


@part
def _load_before(memory, compute, size, at, end):
    """Load the lanes before the end only; the others are 0."""
    left = max(0, min(lanes(compute), (end - at) // size))
    return load_first(memory, compute, at, left)


def _vectors(load_one: Any) -> tuple[Any, Any]:
    """Build the sums over depth and height of one vector, and of two adjacent ones.

    at      address in the window's first row
    window  height: bytes from the first row to the last, bytes from row to row; depth: likewise
    """

    @part
    def one(memory, compute, size, at, end, window):
        reach, step, deep_reach, deep_step = window
        a = load_one(memory, compute, size, at, end)
        deep, bottom = at, at + deep_reach
        while deep != bottom:
            deep += deep_step
            a = a + load_one(memory, compute, size, deep, end)
        last = at + reach
        while at != last:
            at += step
            p = load_one(memory, compute, size, at, end)
            deep, bottom = at, at + deep_reach
            while deep != bottom:
                deep += deep_step
                p = p + load_one(memory, compute, size, deep, end)
            a = a + p
        return a

    @part
    def two(memory, compute, size, at, end, window):
        reach, step, deep_reach, deep_step = window
        other = lanes(compute) * size
        a = load_one(memory, compute, size, at, end)
        b = load_one(memory, compute, size, at + other, end)
        deep, bottom = at, at + deep_reach
        while deep != bottom:
            deep += deep_step
            a = a + load_one(memory, compute, size, deep, end)
            b = b + load_one(memory, compute, size, deep + other, end)
        last = at + reach
        while at != last:
            at += step
            p = load_one(memory, compute, size, at, end)
            q = load_one(memory, compute, size, at + other, end)
            deep, bottom = at, at + deep_reach
            while deep != bottom:
                deep += deep_step
                p = p + load_one(memory, compute, size, deep, end)
                q = q + load_one(memory, compute, size, deep + other, end)
            a = a + p
            b = b + q
        return a, b

    return one, two


def _halved(load_one: Any) -> Any:
    _, two = _vectors(load_one)

    @part
    def halved(memory, compute, size, job, at, end, window, first, stop, result):
        """Compute results first .. stop - 1 of a row, each the sum of two neighbors."""
        width = lanes(compute)
        at += (job.even.start + 2 * first) * size
        left = stop - first
        while left > 0:
            a, b = two(memory, compute, size, at, end, window)
            total = every_second(a, b, 0) + every_second(a, b, 1)
            if left >= width:
                store(memory, result, total)
            else:
                store_first(memory, result, total, left)
            at += 2 * width * size
            result += width * size
            left -= width

    return halved


def _of_pixels(load_one: Any) -> Any:
    one, two = _vectors(load_one)

    @part
    def of_pixels(memory, compute, size, job, at, end, window, first, stop, result):
        """Compute pixels first .. stop - 1 of a row; a pixel has many channels."""
        width, pixel = lanes(compute), job.channels * size
        for j in range(first, stop):
            start, across, _ = band(job.width, 1, j)
            left, place = job.channels, at + start * pixel
            if not across:
                clear(result, pixel)
                result += pixel
                left = 0
            while left >= 2 * width:
                a, b = two(memory, compute, size, place, end, window)
                other, last = place, place + (across - 1) * pixel
                while other != last:
                    other += pixel
                    p, q = two(memory, compute, size, other, end, window)
                    a, b = a + p, b + q
                store(memory, result, a)
                store(memory, result + width * size, b)
                place += 2 * width * size
                result += 2 * width * size
                left -= 2 * width
            while left > 0:
                a = one(memory, compute, size, place, end, window)
                other, last = place, place + (across - 1) * pixel
                while other != last:
                    other += pixel
                    a = a + one(memory, compute, size, other, end, window)
                if left >= width:
                    store(memory, result, a)
                else:
                    store_first(memory, result, a, left)
                some = min(left, width)
                place += some * size
                result += some * size
                left -= some

    return of_pixels


@part
def _sum_of_lanes(compute, groups, channels, index, vectors):
    """Sum each lane's taps, picked from adjacent vectors."""
    total = pick_of(compute, index, 0, vectors)
    if groups.gaps:
        total = where_more(compute, index + 64, 0, total, zeros(compute))
    for k in range(1, groups.taps):
        more = total + pick_of(compute, index, k * channels, vectors)
        total = where_more(compute, index + 64, k, more, total) if groups.uneven else more
    return total


def _picked(load_one: Any) -> Any:
    _, two = _vectors(load_one)

    @part
    def picked(memory, compute, size, job, at, end, window, first, stop, result):
        """Compute pixels first .. stop - 1 of a row, vector by vector as in tables.Groups."""
        width, groups, channels = lanes(compute), job.groups, job.channels
        begin = first * channels // width
        left = stop * channels - begin * width
        for g in range(begin, -(-stop * channels // width)):
            place = at + integer_at(groups.bases + 8 * g) * size
            index = groups.data + g * groups.size
            a, b = two(memory, compute, size, place, end, window)
            if groups.wide:
                place += 2 * width * size
                c, d = two(memory, compute, size, place, end, window)
                total = _sum_of_lanes(compute, groups, channels, index, (a, b, c, d))
            else:
                total = _sum_of_lanes(compute, groups, channels, index, (a, b))
            if left >= width:
                store(memory, result, total)
            else:
                store_first(memory, result, total, left)
            result += width * size
            left -= width

    return picked


def _rows(build: Any) -> Any:
    # Near the input's end, loads must not reach beyond it.
    row, careful_row = build(_load), build(_load_before)

    @part
    def rows(memory, compute, size, job, x, first, count, j0, j1, result):
        """Compute rows first .. first + count - 1, pixels j0 .. j1 - 1, of the input at x."""
        depth, height = job.depth, job.height
        pixel = job.channels * size
        line, deep_step = job.row_step, job.depth_step
        to_line, length = job.width.outputs * pixel, (j1 - j0) * pixel
        plane = first // height.outputs
        h = first - plane * height.outputs
        last = x + job.input_bytes - PAD * size
        for _ in range(count):
            outer = plane // depth.outputs
            d_first, deep, _ = band(depth, 1, plane - outer * depth.outputs)
            h_first, taps, _ = band(height, 1, h)
            at = x + outer * job.outer_step + d_first * deep_step + h_first * line
            window = ((taps - 1) * line, line, (deep - 1) * deep_step, deep_step)
            if not taps or not deep:
                clear(result, length)
            elif at + (deep - 1) * deep_step + taps * line <= last:
                row(memory, compute, size, job, at, 0, window, j0, j1, result)
            else:
                end = x + job.input_bytes
                careful_row(memory, compute, size, job, at, end, window, j0, j1, result)
            result += to_line
            h += 1
            if h == height.outputs:
                h, plane = 0, plane + 1

    return rows


_halved_rows = _rows(_halved)
_pixel_rows = _rows(_of_pixels)
_picked_rows = _rows(_picked) if CAN_PICK else _pixel_rows


@part
def _stage(memory, compute, size, job, x, first, count, j0, j1, result):
    if job.method == WINDOW_HALVE:
        _halved_rows(memory, compute, size, job, x, first, count, j0, j1, result)
    elif job.method == WINDOW_PERMUTE:
        _picked_rows(memory, compute, size, job, x, first, count, j0, j1, result)
    else:
        _pixel_rows(memory, compute, size, job, x, first, count, j0, j1, result)


# Job; input; first result row and count; first pixel and its end; results.
_STAGE = types.void(JOB_POINTER, *[types.int64] * 6)


def _compiled(memory: Any, compute: Any, size: int) -> Any:
    @cfunc(_STAGE, cache=True)
    def nearest(job, x, first, count, j0, j1, result):
        _stage(memory, compute, size, carray(job, 1)[0], x, first, count, j0, j1, result)

    return nearest


# By the name of the storage type of input and result.
NEAREST_KERNELS = {name: _compiled(*kind) for name, kind in STORAGE_TYPES.items()}
