"""Kernels for weights of 1 (nearest): all passes at once, in registers.

A result is the sum of a window of the input, over depth first, then height, then width. Windows of
neighbors hardly overlap, so summing their rows again costs less than storing the sums.
"""

from __future__ import annotations

from typing import Any

from numba import carray, cfunc, types

from gradwire_server.backends.numba_cpu.instructions import (
    CAN_PICK,
    clear,
    computed_of,
    element_bytes,
    even_lanes,
    integer_at,
    lanes,
    load,
    load_first,
    odd_lanes,
    pick,
    prefetch,
    store,
    store_until,
    twice,
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
from gradwire_server.backends.numba_cpu.vectors import STORAGE_FORMATS, Format, part

# Bytes ahead at which input is prefetched: rows are too short for the processor's own prefetching.
_AHEAD = 1024


@part
def _load(stored, at, end):
    prefetch(stored, at + _AHEAD)
    return load(stored, at)


@part
def _load_before(stored, at, end):
    """Load the lanes before the end only; the others are 0."""
    return load_first(stored, at, max(0, min(lanes(stored), (end - at) // element_bytes(stored))))


def _sum_of_window(load_one: Any) -> Any:
    """Build the sums of a vector over depth and height.

    at      address in the window's first row
    window  height: bytes from the first row to the last, bytes from row to row; depth: likewise
    """

    @part
    def over_depth(stored, at, end, window):
        _, _, reach, step = window
        total = load_one(stored, at, end)
        last = at + reach
        while at != last:
            at += step
            total = total + load_one(stored, at, end)
        return total

    @part
    def over_height(stored, at, end, window):
        reach, step, _, _ = window
        total = over_depth(stored, at, end, window)
        last = at + reach
        while at != last:
            at += step
            total = total + over_depth(stored, at, end, window)
        return total

    return over_height


def _halved(sum_window: Any) -> Any:
    @part
    def halved(stored, job, at, end, window, first, stop, result):
        """Compute some results of a row, each the sum of two neighbors.

        The results are first .. stop - 1.
        """
        wide, size = twice(stored), element_bytes(stored)
        at += (job.even.start + 2 * first) * size
        left = stop - first
        while left > 0:
            pairs = sum_window(wide, at, end, window)
            store_until(stored, result, even_lanes(pairs) + odd_lanes(pairs), left)
            at += lanes(wide) * size
            result += lanes(stored) * size
            left -= lanes(stored)

    return halved


def _of_pixels(sum_window: Any) -> Any:
    @part
    def over_width(stored, at, end, window, across, pixel):
        total = sum_window(stored, at, end, window)
        last = at + (across - 1) * pixel
        while at != last:
            at += pixel
            total = total + sum_window(stored, at, end, window)
        return total

    @part
    def of_pixels(stored, job, at, end, window, first, stop, result):
        """Compute pixels first .. stop - 1 of a row.

        A pixel has many channels.
        """
        wide, size = twice(stored), element_bytes(stored)
        pixel = job.channels * size
        for j in range(first, stop):
            start, across, _ = band(job.width, 1, j)
            left, place, to = job.channels, at + start * pixel, result
            result += pixel
            if not across:
                clear(to, pixel)
                continue
            while left >= lanes(wide):
                store(wide, to, over_width(wide, place, end, window, across, pixel))
                place += lanes(wide) * size
                to += lanes(wide) * size
                left -= lanes(wide)
            while left > 0:
                total = over_width(stored, place, end, window, across, pixel)
                store_until(stored, to, total, left)
                place += lanes(stored) * size
                to += lanes(stored) * size
                left -= lanes(stored)

    return of_pixels


@part
def _sum_of_lanes(computed, groups, channels, index, vector):
    """Sum each lane's taps.

    Taps are picked from a vector of two or four registers.
    """
    total = pick(index, 0, vector)
    if groups.gaps:
        total = where_more(index + 64, 0, total, zeros(computed))
    for k in range(1, groups.taps):
        more = total + pick(index, k * channels, vector)
        total = where_more(index + 64, k, more, total) if groups.uneven else more
    return total


def _picked(sum_window: Any) -> Any:
    @part
    def picked(stored, job, at, end, window, first, stop, result):
        """Compute pixels of a row vector by vector, as in tables.Groups.

        The pixels are first .. stop - 1.
        """
        computed, size, width = computed_of(stored), element_bytes(stored), lanes(stored)
        wide, groups, channels = twice(stored), job.groups, job.channels
        begin = first * channels // width
        left = stop * channels - begin * width
        for g in range(begin, -(-stop * channels // width)):
            place = at + integer_at(groups.bases + 8 * g) * size
            index = groups.data + g * groups.size
            if groups.wide:
                vector = sum_window(twice(wide), place, end, window)
                total = _sum_of_lanes(computed, groups, channels, index, vector)
            else:
                pair = sum_window(wide, place, end, window)
                total = _sum_of_lanes(computed, groups, channels, index, pair)
            store_until(stored, result, total, left)
            result += width * size
            left -= width

    return picked


def _rows(build: Any) -> Any:
    # Near the input's end, loads must not reach beyond it.
    row, careful_row = build(_sum_of_window(_load)), build(_sum_of_window(_load_before))

    @part
    def rows(stored, job, x, first, count, j0, j1, result):
        """Compute a rectangle of rows and pixels from the input at x.

        The rows are first .. first + count - 1, the pixels j0 .. j1 - 1.
        """
        depth, height = job.depth, job.height
        pixel = job.channels * element_bytes(stored)
        line, deep_step = job.row_step, job.depth_step
        to_line, length = job.width.outputs * pixel, (j1 - j0) * pixel
        end = x + job.input_bytes
        last = end - PAD * element_bytes(stored)
        plane = first // height.outputs
        h = first - plane * height.outputs
        for _ in range(count):
            outer = plane // depth.outputs
            d_first, deep, _ = band(depth, 1, plane - outer * depth.outputs)
            h_first, taps, _ = band(height, 1, h)
            at = x + outer * job.outer_step + d_first * deep_step + h_first * line
            window = ((taps - 1) * line, line, (deep - 1) * deep_step, deep_step)
            if not taps or not deep:
                clear(result, length)
            elif at + (deep - 1) * deep_step + taps * line <= last:
                row(stored, job, at, end, window, j0, j1, result)
            else:
                careful_row(stored, job, at, end, window, j0, j1, result)
            result += to_line
            h += 1
            if h == height.outputs:
                h, plane = 0, plane + 1

    return rows


_halved_rows = _rows(_halved)
_pixel_rows = _rows(_of_pixels)
_picked_rows = _rows(_picked) if CAN_PICK else _pixel_rows


@part
def _stage(stored, job, x, first, count, j0, j1, result):
    if job.method == WINDOW_HALVE:
        _halved_rows(stored, job, x, first, count, j0, j1, result)
    elif job.method == WINDOW_PERMUTE:
        _picked_rows(stored, job, x, first, count, j0, j1, result)
    else:
        _pixel_rows(stored, job, x, first, count, j0, j1, result)


# Job; input; first result row and count; first pixel and its end; results.
_STAGE = types.void(JOB_POINTER, *[types.int64] * 6)


def _compiled(stored: Format) -> Any:
    @cfunc(_STAGE, cache=True)
    def nearest(job, x, first, count, j0, j1, result):
        _stage(stored, carray(job, 1)[0], x, first, count, j0, j1, result)

    return nearest


# By the name of the storage type of input and result.
NEAREST_KERNELS = {one.name: _compiled(one) for one in STORAGE_FORMATS}
