"""Records that describe work to the compiled functions; every field is an int64."""

from __future__ import annotations

import numpy as np
from numba import from_dtype, types

from gradwire_server.backends.numba_cpu.instructions import integer_at
from gradwire_server.backends.numba_cpu.vectors import part

_PHASE = np.dtype([("start", "i8"), ("taps", "i8"), ("weight", "i8")])
_GROUPS = np.dtype(
    [
        ("bases", "i8"),  # addresses of the arrays of tables.Groups
        ("data", "i8"),
        ("size", "i8"),  # bytes of a vector's data
        ("taps", "i8"),
        ("wide", "i8"),
        ("gaps", "i8"),
        ("uneven", "i8"),
    ]
)
AXIS = np.dtype(
    [
        ("moves", "i8"),  # whether the axis has a pass; if not, only the lengths are set
        ("outputs", "i8"),
        ("inputs", "i8"),
        ("start", "i8"),  # addresses of the table's arrays, the weights in the compute type
        ("offset", "i8"),
        ("weight", "i8"),
        ("gaps", "i8"),  # whether some bands are empty
    ]
)
JOB = np.dtype(
    [
        ("depth", AXIS),
        ("height", AXIS),
        ("width", AXIS),
        ("address", "i8"),  # of the record itself
        ("itemsize", "i8"),  # bytes of an element of the compute type
        ("depth_sum", "i8"),  # addresses of the compiled functions for each stage
        ("height_sum", "i8"),
        ("width_sum", "i8"),
        ("width_stage", "i8"),
        ("to_columns", "i8"),
        ("to_rows", "i8"),
        ("convert", "i8"),
        ("stream", "i8"),  # 0 if results are not streamed
        ("stream_zeros", "i8"),
        ("channels", "i8"),
        ("rows", "i8"),  # result rows of all outer indices
        ("outer_step", "i8"),  # bytes of the input between outer indices; 0 if repeated
        ("depth_step", "i8"),  # likewise between planes, and between rows
        ("row_step", "i8"),
        ("input_bytes", "i8"),
        ("input_narrow", "i8"),  # whether the type is narrower than the compute type
        ("output_narrow", "i8"),
        ("input_size", "i8"),  # bytes of an element
        ("output_size", "i8"),
        ("staged", "i8"),  # whether the depth stage runs
        ("method", "i8"),  # method of the width stage, see below
        ("block", "i8"),  # rows of a block
        ("ahead", "i8"),  # rows summed over height before their width stage
        ("blocks", "i8"),  # blocks of a plane
        ("tile", "i8"),  # pixels of a tile
        ("tiles", "i8"),
        ("chunk", "i8"),  # input pixels of a row buffered at once
        ("row_bytes", "i8"),  # bytes of a row in the depth and height buffers
        ("line_bytes", "i8"),  # bytes of a row of results before conversion or streaming
        ("stage_at", "i8"),  # offsets of the buffers in scratch
        ("sums_at", "i8"),
        ("columns_at", "i8"),
        ("results_at", "i8"),
        ("lines_at", "i8"),
        ("converted_at", "i8"),
        ("steady_first", "i8"),  # results that `even` and `odd` describe, and their end
        ("steady_stop", "i8"),
        ("even", _PHASE),
        ("odd", _PHASE),
        ("groups", _GROUPS),
    ]
)
ACCUMULATION = np.dtype(
    [
        ("axis", AXIS),  # first, so that its address is the record's
        ("address", "i8"),
        ("outer", "i8"),
        ("length", "i8"),  # elements of a row
        ("carried", "i8"),  # results, from the first, that hold a partial sum
        ("itemsize", "i8"),
        ("sum", "i8"),  # addresses of compiled functions
        ("sum_onto", "i8"),
    ]
)
# Elements beyond the end of a row that a stage may read, but does not use.
PAD = 128
# Methods of the width stage: without a pass, by pixels of many channels, and those of width.py.
NO_WIDTH, CHANNELS, COLUMNS, HALVE, DOUBLE, PERMUTE = range(6)
# Methods of nearest.py.
WINDOW_CHANNELS, WINDOW_HALVE, WINDOW_PERMUTE = range(6, 9)
# Compiled functions take records by address.
JOB_POINTER = types.CPointer(from_dtype(JOB))
AXIS_POINTER = types.CPointer(from_dtype(AXIS))
DEPTH_AT, HEIGHT_AT, WIDTH_AT = (int(JOB.fields[name][1]) for name in ("depth", "height", "width"))


@part
def band(axis, itemsize, index):
    """First input, taps and address of the weights of a result."""
    if not axis.moves:
        return index, 1, 0
    offset = integer_at(axis.offset + 8 * index)
    taps = integer_at(axis.offset + 8 * index + 8) - offset
    return integer_at(axis.start + 8 * index), taps, axis.weight + offset * itemsize


@part
def span(axis, itemsize, first, stop):
    """Inputs that the bands of results first .. stop - 1 cover."""
    begin, taps, _ = band(axis, itemsize, first)
    last, last_taps, _ = band(axis, itemsize, stop - 1)
    return min(begin, last), max(begin + taps, last + last_taps)
