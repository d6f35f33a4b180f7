"""Fused evaluation of up to three passes, in blocks, without intermediate tensors.

The tensor has the form [outer, depth, height, width, channels]; depth, height and width may have
a pass. A block is a few result rows and a tile of their columns. Sums go from stage to stage
in buffers that fit the processor's first caches:

1. depth: sums over depth of the input rows that the block's height bands cover
2. height: sums of those rows
3. width: sums along the rows

A job names the compiled functions of each stage by address. Blocks are independent.
"""

from __future__ import annotations

from numba import carray, cfunc, njit, types

from gradwire_server.backends.numba_cpu.instructions import call, clear, fence
from gradwire_server.backends.numba_cpu.records import (
    CHANNELS,
    COLUMNS,
    DEPTH_AT,
    HEIGHT_AT,
    JOB_POINTER,
    NO_WIDTH,
    PAD,
    WIDTH_AT,
    band,
    span,
)
from gradwire_server.backends.numba_cpu.vectors import part

_RUN = types.void(JOB_POINTER, *[types.int64] * 5)


@part
def _stage_depth(job, x, plane, bottom, top, low, high, stage):
    """Sum some rows over depth; return the number of taps.

    The rows are bottom .. top - 1, the pixels low .. high - 1.
    """
    depth, size = job.depth, job.input_size
    outer = plane // depth.outputs
    index = plane - outer * depth.outputs
    taps = band(depth, job.itemsize, index)[1]
    row, step = job.row_step, job.depth_step
    at = x + outer * job.outer_step + low * job.channels * size
    axis, length = job.address + DEPTH_AT, (high - low) * job.channels
    for r in range(bottom, top if taps else bottom):
        to = stage + (r - bottom) * job.row_bytes
        call(job.depth_sum, (axis, index, index + 1, at + r * row, step, length, to, 0, 0))
    return taps


@part
def _sum_height(job, x, stage, bottom, first, count, left, length, result, result_step):
    """Sum the inputs of some rows over height.

    The rows are first .. first + count - 1; sums begin at element `left`.
    """
    height, axis = job.height, job.address + HEIGHT_AT
    while count:
        outer = first // height.outputs
        index = first - outer * height.outputs
        some = min(count, height.outputs - index)
        if job.depth.moves:
            size, step, rows = job.itemsize, job.row_bytes, stage - bottom * job.row_bytes
        else:
            size, step = job.input_size, job.row_step
            rows = x + outer * job.outer_step + left * size
        where = (rows, step, length, result, result_step, 0)
        call(job.height_sum, (axis, index, index + some, *where))
        result += some * result_step
        first += some
        count -= some


@part
def _rows(job, x, scratch, bottom, first, count, readable, low, high):
    """Sum rows over height; return the address and step of sums.

    The pixels are low .. high - 1. At that address `readable` rows can be read, and PAD elements
    beyond the end of each.
    """
    itemsize, channels, step = job.itemsize, job.channels, job.row_step
    stage, sums, length = scratch + job.stage_at, scratch + job.sums_at, (high - low) * channels
    if not job.height.moves and not job.input_narrow:
        at = x + first * step + low * channels * itemsize
        if at + (readable - 1) * step + (length + PAD) * itemsize <= x + job.input_bytes:
            return at, step
    _sum_height(job, x, stage, bottom, first, count, low * channels, length, sums, job.row_bytes)
    return sums, job.row_bytes


@part
def _is_empty(job, row):
    """Whether the height band of a result row is empty."""
    return not band(job.height, job.itemsize, row % job.height.outputs)[1]


@part
def _sum_width(job, rows, step, count, j0, j1, result, result_step):
    """Apply the width stage to some rows.

    rows is the address of input 0.
    """
    if job.method != CHANNELS:
        call(job.width_stage, (job.address, rows, step, count, j0, j1, result, result_step))
        return
    axis, pixel = job.address + WIDTH_AT, job.channels * job.itemsize
    for i in range(count):
        row, to = rows + i * step, result + i * result_step
        call(job.width_sum, (axis, j0, j1, row, pixel, job.channels, to, pixel, 0))


@part
def _some_rows(job, x, y, scratch, bottom, first, count, j0, j1):
    """Apply the last two stages to some rows.

    y is the address of their first result.
    """
    channels, size = job.channels, job.output_size
    length, line = (j1 - j0) * channels, job.width.outputs * channels * size
    held = job.output_narrow or job.stream
    to, step = (scratch + job.lines_at, job.line_bytes) if held else (y, line)
    if job.method == NO_WIDTH:
        _sum_height(job, x, 0, 0, first, count, j0, length, to, step)
    else:
        low, high = span(job.width, job.itemsize, j0, j1)
        rows, row_step = _rows(job, x, scratch, bottom, first, count, count, low, high)
        rows -= low * channels * job.itemsize
        _sum_width(job, rows, row_step, count, j0, j1, to, step)
    if held:
        _put(job, scratch, to, step, count, length, y, line)


@part
def _put(job, scratch, rows, step, count, length, y, line):
    """Write rows to their place, converted or streamed or both.

    Rows have `length` elements.
    """
    size = job.output_size
    to, to_step = y, line
    if job.output_narrow or not job.stream:
        if job.stream:
            to, to_step = scratch + job.converted_at, job.line_bytes
        call(job.convert, (rows, step, count, length, to, to_step))
        rows, step = to, to_step
    if job.stream:
        call(job.stream, (rows, step, count, length * size, y, line))


@part
def _clear_rows(job, y, scratch, count, j0, j1):
    """Write +0 to some rows.

    y is the address of their first result.
    """
    size = job.channels * job.output_size
    line, length = job.width.outputs * size, (j1 - j0) * size
    if job.stream:
        clear(scratch + job.lines_at, length)
        call(job.stream, (scratch + job.lines_at, 0, count, length, y, line))
        return
    if line == length:
        count, length = 1, count * length
    for i in range(count):
        clear(y + i * line, length)


@part
def _direct_block(job, x, y, scratch, bottom, first, count, j0, j1):
    """Apply the last two stages, several rows at a time.

    y is the address of the first result.
    """
    line = job.width.outputs * job.channels * job.output_size
    while count:
        some, empty = count, False
        if job.height.gaps:
            some, empty = 1, _is_empty(job, first)
            while some < count and _is_empty(job, first + some) == empty:
                some += 1
        if empty:
            _clear_rows(job, y, scratch, some, j0, j1)
        else:
            # Loads right after stores of another alignment are slow, so several rows are stored
            # before any is loaded.
            some = min(some, job.ahead)
            _some_rows(job, x, y, scratch, bottom, first, some, j0, j1)
        y += some * line
        first += some
        count -= some


@part
def _transposed_block(job, x, y, scratch, bottom, first, count, j0, j1):
    """Apply the last two stages to a transposed block.

    y is the address of its first result.
    """
    axis, length = job.width, (j1 - j0) * job.channels
    columns, results = scratch + job.columns_at, scratch + job.results_at
    low, high = span(axis, job.itemsize, j0, j1)
    for c0 in range(low, max(high, low + 1), job.chunk):
        c1 = min(c0 + job.chunk, high)
        rows, row_step = _rows(job, x, scratch, bottom, first, count, job.block, c0, c1)
        call(job.width_stage, (job.address, rows, row_step, columns, c0, c1, j0, j1, results))
    line = axis.outputs * job.channels * job.output_size
    held = job.output_narrow or job.stream
    direct = not held and count == job.block and length >= job.block
    to, step = (y, line) if direct else (scratch + job.lines_at, job.line_bytes)
    call(job.to_rows, (results, length, to, step, direct))
    if not direct:
        _put(job, scratch, to, step, count, length, y, line)
    for i in range(count):
        if _is_empty(job, first + i):
            _clear_rows(job, y + i * line, scratch, 1, j0, j1)


@part
def _block(job, x, y, scratch, unit):
    """Apply all stages to one block."""
    itemsize, height, width = job.itemsize, job.height, job.width
    block = unit // job.tiles
    j0 = (unit - block * job.tiles) * job.tile
    j1 = min(j0 + job.tile, width.outputs)
    rows, plane, bottom = job.rows, 0, 0
    if job.depth.moves:
        plane = block // job.blocks
        rows = (plane + 1) * height.outputs
        block -= plane * job.blocks
    first = plane * height.outputs + block * job.block
    count = min(job.block, rows - first)
    size = job.channels * job.output_size
    to = y + (first * width.outputs + j0) * size
    if job.depth.moves:
        inside = block * job.block
        bottom, top = span(height, itemsize, inside, inside + count)
        low, high = span(width, itemsize, j0, j1)
        stage = scratch + job.stage_at
        if not _stage_depth(job, x, plane, bottom, top, low, high, stage):
            _clear_rows(job, to, scratch, count, j0, j1)
            return
    if job.method == COLUMNS:
        _transposed_block(job, x, to, scratch, bottom, first, count, j0, j1)
    else:
        _direct_block(job, x, to, scratch, bottom, first, count, j0, j1)


@cfunc(_RUN, cache=True)
def run(jobs, x, y, scratch, first, stop):
    """Compute blocks first .. stop - 1 of a job.

    x, y and scratch are addresses.
    """
    job = carray(jobs, 1)[0]
    for unit in range(first, stop):
        _block(job, x, y, scratch, unit)
    if job.stream:
        fence()


@njit(types.void(*[types.int64] * 10), nogil=True, cache=True)
def accumulate(sum_rows, axis, inputs, outputs, outer, row, length, carried, x, y):
    """Add the taps of every result on x to y, as `Backend.accumulate`.

    sum_rows  address of the compiled function
    axis      address of the axis's record
    x, y      addresses; x has `outer` times `inputs` rows of so many bytes and elements
    """
    for _ in range(outer):
        call(sum_rows, (axis, 0, outputs, x, row, length, y, row, carried))
        x += inputs * row
        y += outputs * row
