"""All passes at once where every weight is 1: row after row of sums of windows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, types

from gradwire_server.backends.numba_cpu import windows
from gradwire_server.backends.numba_cpu.records import (
    JOB_POINTER,
    PAD,
    WINDOW_HALVE,
    WINDOW_PERMUTE,
    band,
)
from gradwire_server.backends.numba_cpu.shuffles import CAN_PICK
from gradwire_server.backends.numba_cpu.simd import clear
from gradwire_server.backends.numba_cpu.vectors import BFLOAT16, COMPUTE, FLOAT16, part


def _rows(row: Any, careful_row: Any) -> Any:
    @part
    def rows(memory, compute, size, job, x, first, count, j0, j1, result):
        """Result rows first .. first + count - 1, pixels j0 .. j1 - 1; x is the input's address."""
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


_halved_rows = _rows(windows.halved, windows.careful_halved)
_pixel_rows = _rows(windows.of_pixels, windows.careful_of_pixels)
_picked_rows = _rows(windows.picked, windows.careful_picked) if CAN_PICK else _pixel_rows


@part
def _stage(memory, compute, size, job, x, first, count, j0, j1, result):
    if job.method == WINDOW_HALVE:
        _halved_rows(memory, compute, size, job, x, first, count, j0, j1, result)
    elif job.method == WINDOW_PERMUTE:
        _picked_rows(memory, compute, size, job, x, first, count, j0, j1, result)
    else:
        _pixel_rows(memory, compute, size, job, x, first, count, j0, j1, result)


# Job; input; first result row and how many; first pixel and one past the last; their place.
_STAGE = types.void(JOB_POINTER, *[types.int64] * 6)


@cfunc(_STAGE, cache=True)
def nearest_float32(job, x, first, count, j0, j1, result):
    """Results of float32."""
    _stage(COMPUTE, np.float32, 4, carray(job, 1)[0], x, first, count, j0, j1, result)


@cfunc(_STAGE, cache=True)
def nearest_float16(job, x, first, count, j0, j1, result):
    """Results of float16."""
    _stage(FLOAT16, np.float32, 2, carray(job, 1)[0], x, first, count, j0, j1, result)


@cfunc(_STAGE, cache=True)
def nearest_bfloat16(job, x, first, count, j0, j1, result):
    """Results of bfloat16."""
    _stage(BFLOAT16, np.float32, 2, carray(job, 1)[0], x, first, count, j0, j1, result)


@cfunc(_STAGE, cache=True)
def nearest_float64(job, x, first, count, j0, j1, result):
    """Results of float64."""
    _stage(COMPUTE, np.float64, 8, carray(job, 1)[0], x, first, count, j0, j1, result)


def stage_of(memory: np.dtype[Any]) -> int:
    """Address of the function for a type of input and result."""
    return int(globals()[f"nearest_{memory}"].address)
