"""All passes at once, in registers, where every weight is 1: nearest.

A result is the sum of a window of the input, over depth first, then height, then width. Windows of
neighbors hardly overlap, so that summing their rows anew costs less than to keep the sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, types

from gradwire_server.backends.numba_cpu.records import (
    JOB_POINTER,
    PAD,
    WINDOW_HALVE,
    WINDOW_PERMUTE,
    band,
)
from gradwire_server.backends.numba_cpu.shuffles import (
    CAN_PICK,
    every_second,
    pick_of_four,
    pick_of_two,
    where_more,
)
from gradwire_server.backends.numba_cpu.simd import (
    clear,
    integer_at,
    lanes,
    load,
    load_first,
    prefetch,
    store,
    store_first,
    zeros,
)
from gradwire_server.backends.numba_cpu.vectors import BFLOAT16, COMPUTE, FLOAT16, part

# How far ahead input is fetched: a row is too short for processors to foresee the next.
_AHEAD = 1024


@part
def _load(memory, compute, size, at, end):
    prefetch(at + _AHEAD)
    return load(memory, compute, at)


@part
def _load_before(memory, compute, size, at, end):
    """Load what stands before the end only."""
    left = max(0, min(lanes(compute), (end - at) // size))
    return load_first(memory, compute, at, left)


def _vectors(load_one: Any) -> tuple[Any, Any]:
    """Build the sums over depth and height of one vector and of two side by side.

    at      address in the first row of the window
    window  bytes from the first row to the last of height, from one to the next, and of depth
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
        """Results first .. stop - 1 of a row, each the sum of two neighbors."""
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
        """Results of pixels first .. stop - 1 of a row of wide pixels."""
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


def _picked(load_one: Any) -> Any:
    _, two = _vectors(load_one)

    @part
    def narrow(memory, compute, size, groups, channels, at, end, window, index):
        a, b = two(memory, compute, size, at, end, window)
        total = pick_of_two(compute, index, 0, a, b)
        if groups.gaps:
            total = where_more(compute, index + 64, 0, total, zeros(compute))
        for k in range(1, groups.taps):
            more = total + pick_of_two(compute, index, k * channels, a, b)
            total = where_more(compute, index + 64, k, more, total) if groups.uneven else more
        return total

    @part
    def wide(memory, compute, size, groups, channels, at, end, window, index):
        beyond = at + 2 * lanes(compute) * size
        a, b = two(memory, compute, size, at, end, window)
        c, d = two(memory, compute, size, beyond, end, window)
        total = pick_of_four(compute, index, 0, a, b, c, d)
        if groups.gaps:
            total = where_more(compute, index + 64, 0, total, zeros(compute))
        for k in range(1, groups.taps):
            more = total + pick_of_four(compute, index, k * channels, a, b, c, d)
            total = where_more(compute, index + 64, k, more, total) if groups.uneven else more
        return total

    @part
    def picked(memory, compute, size, job, at, end, window, first, stop, result):
        """Results of pixels first .. stop - 1 of a row, a vector of groups' lanes after the other."""
        width, groups, channels = lanes(compute), job.groups, job.channels
        begin = first * channels // width
        left = stop * channels - begin * width
        for g in range(begin, -(-stop * channels // width)):
            place = at + integer_at(groups.bases + 8 * g) * size
            index = groups.data + g * groups.size
            if groups.wide:
                total = wide(memory, compute, size, groups, channels, place, end, window, index)
            else:
                total = narrow(memory, compute, size, groups, channels, place, end, window, index)
            if left >= width:
                store(memory, result, total)
            else:
                store_first(memory, result, total, left)
            result += width * size
            left -= width

    return picked


def _rows(row: Any, careful_row: Any) -> Any:
    @part
    def rows(memory, compute, size, job, x, first, count, j0, j1, result):
        """Result rows first .. first + count - 1, pixels j0 .. j1 - 1; x is the input's address."""
        depth, height = job.depth, job.height
        pixel = job.channels * size
        line, to_line, length = job.width.inputs * pixel, job.width.outputs * pixel, (j1 - j0) * pixel
        plane = first // height.outputs
        h = first - plane * height.outputs
        last = x + job.input_bytes - PAD * size
        for _ in range(count):
            outer = plane // depth.outputs
            d_first, deep, _ = band(depth, 1, plane - outer * depth.outputs)
            h_first, taps, _ = band(height, 1, h)
            deep_step = height.inputs * line
            at = x + (outer * depth.inputs + d_first) * deep_step + h_first * line
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


_halved_rows = _rows(_halved(_load), _halved(_load_before))
_pixel_rows = _rows(_of_pixels(_load), _of_pixels(_load_before))
_picked_rows = _rows(_picked(_load), _picked(_load_before)) if CAN_PICK else _pixel_rows


@part
def _stage(memory, compute, size, job, x, first, count, j0, j1, result):
    if job.method == WINDOW_HALVE:
        _halved_rows(memory, compute, size, job, x, first, count, j0, j1, result)
    elif job.method == WINDOW_PERMUTE:
        _picked_rows(memory, compute, size, job, x, first, count, j0, j1, result)
    else:
        _pixel_rows(memory, compute, size, job, x, first, count, j0, j1, result)


# Job; input; first result row and how many; first pixel and one past the last; their place.
_WINDOWS = types.void(JOB_POINTER, *[types.int64] * 6)


@cfunc(_WINDOWS, cache=True)
def windows_float32(job, x, first, count, j0, j1, result):
    """Results of float32."""
    _stage(COMPUTE, np.float32, 4, carray(job, 1)[0], x, first, count, j0, j1, result)


@cfunc(_WINDOWS, cache=True)
def windows_float16(job, x, first, count, j0, j1, result):
    """Results of float16."""
    _stage(FLOAT16, np.float32, 2, carray(job, 1)[0], x, first, count, j0, j1, result)


@cfunc(_WINDOWS, cache=True)
def windows_bfloat16(job, x, first, count, j0, j1, result):
    """Results of bfloat16."""
    _stage(BFLOAT16, np.float32, 2, carray(job, 1)[0], x, first, count, j0, j1, result)


@cfunc(_WINDOWS, cache=True)
def windows_float64(job, x, first, count, j0, j1, result):
    """Results of float64."""
    _stage(COMPUTE, np.float64, 8, carray(job, 1)[0], x, first, count, j0, j1, result)


def windows_of(memory: np.dtype[Any]) -> int:
    """Address of the function for a type of input and result."""
    return int(globals()[f"windows_{memory}"].address)
