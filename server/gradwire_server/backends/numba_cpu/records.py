"""Records that describe work to the compiled functions.

Every field is an int64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import from_dtype, types

from gradwire_server.backends.numba_cpu.instructions import integer_at
from gradwire_server.backends.numba_cpu.vectors import part


def _integers(*names: str, **nested: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype([*((name, np.int64) for name in names), *nested.items()])


_PHASE = _integers("start", "taps", "weight")
_GROUPS = _integers(
    "bases",  # addresses of the arrays of tables.Groups
    "data",
    "size",  # bytes of a vector's data
    "taps",
    "uneven",  # whether some lanes have fewer taps than others
)
AXIS = _integers(
    "moves",  # whether the axis has a pass; if not, its weight is a single 1
    "outputs",
    "inputs",
    "start",  # addresses of the table's arrays, the weights in the compute type
    "offset",
    "weight",
    "gaps",  # whether some bands are empty
)
JOB = _integers(
    "address",  # of the record itself
    "itemsize",  # bytes of an element of the compute type
    "depth_sum",  # addresses of the compiled functions for each stage
    "height_sum",
    "width_sum",
    "width_stage",
    "to_rows",
    "convert",
    "stream",  # 0 if results are not streamed
    "channels",
    "rows",  # result rows of all outer indices
    "outer_step",  # bytes of the input between outer indices; 0 if repeated
    "depth_step",  # likewise between planes, and between rows
    "row_step",
    "input_bytes",
    "input_narrow",  # whether the type is narrower than the compute type
    "output_narrow",
    "input_size",  # bytes of an element
    "output_size",
    "method",  # method of the width stage, see below
    "block",  # rows of a block
    "ahead",  # rows summed over height before their width stage
    "blocks",  # blocks of a plane
    "tile",  # pixels of a tile
    "tiles",
    "chunk",  # input pixels of a row buffered at once
    "row_bytes",  # bytes of a row in the depth and height buffers
    "line_bytes",  # bytes of a row of results before conversion or streaming
    "stage_at",  # offsets of the buffers in scratch
    "sums_at",
    "columns_at",
    "results_at",
    "lines_at",
    "converted_at",
    "steady_first",  # results that `even` and `odd` describe, and their end
    "steady_stop",
    depth=AXIS,
    height=AXIS,
    width=AXIS,
    even=_PHASE,
    odd=_PHASE,
    groups=_GROUPS,
)
# Elements beyond the end of a row that a stage may read, but does not use.
PAD = 128
# Methods of the width stage: without a pass, by pixels of many channels, and those of width.py.
NO_WIDTH, CHANNELS, COLUMNS, HALVE, DOUBLE, PERMUTE = range(6)
# Compiled functions take records by address.
JOB_POINTER = types.CPointer(from_dtype(JOB))
AXIS_POINTER = types.CPointer(from_dtype(AXIS))
DEPTH_AT, HEIGHT_AT, WIDTH_AT = (int(JOB.fields[name][1]) for name in ("depth", "height", "width"))


@part
def band(axis, itemsize, index):
    """First input, taps and address of the weights of a result."""
    if not axis.moves:
        return index, 1, axis.weight
    offset = integer_at(axis.offset + 8 * index)
    taps = integer_at(axis.offset + 8 * index + 8) - offset
    return integer_at(axis.start + 8 * index), taps, axis.weight + offset * itemsize


@part
def span(axis, itemsize, first, stop):
    """Inputs that the bands of results first .. stop - 1 cover."""
    begin, taps, _ = band(axis, itemsize, first)
    last, last_taps, _ = band(axis, itemsize, stop - 1)
    return min(begin, last), max(begin + taps, last + last_taps)
