"""Sums of windows in registers, where every weight is 1: nearest.

A result is the sum of a window of the input, over depth first, then height, then width. Windows of
neighbors hardly overlap, so that summing their rows anew costs less than to keep the sums.
"""

from __future__ import annotations

from typing import Any

from gradwire_server.backends.numba_cpu.records import band
from gradwire_server.backends.numba_cpu.shuffles import every_second, pick_of, where_more
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
from gradwire_server.backends.numba_cpu.vectors import part

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


@part
def _sum_of_lanes(compute, groups, channels, index, vectors):
    """Sum each lane's taps, which are found in vectors side by side."""
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
        """Results of pixels first .. stop - 1 of a row, one vector of `Groups` after the other."""
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


# Results of a row whose loads may reach beyond it, and of one whose loads stop at `end`.
halved, careful_halved = _halved(_load), _halved(_load_before)
of_pixels, careful_of_pixels = _of_pixels(_load), _of_pixels(_load_before)
picked, careful_picked = _picked(_load), _picked(_load_before)
