"""A fused evaluation of up to three passes, block by block, without intermediate tensors.

The tensor is seen as [outer, depth, height, width, channels]; each of the three axes between may
have a pass. A block is a handful of result rows and a tile of their columns. Its three stages hand
their sums on in buffers that stay in the processor's first caches:

1. depth: the input rows that the block's height bands cover, summed over depth
2. height: the block's rows, summed over those
3. width: the block's results, summed along the rows

What is done to numbers is in functions of their own, by type and method, that a job names. Blocks
do not depend on one another.
"""

from __future__ import annotations

from numba import from_dtype, njit, types

from gradwire_server.backends.numba_cpu.records import (
    ACCUMULATION,
    COLUMNS,
    JOB,
    NO_WIDTH,
    PAD,
    band,
    span,
)
from gradwire_server.backends.numba_cpu.simd import call, clear, integer_at, put_number

_RUN = types.void(types.Array(from_dtype(JOB), 1, "C"), *[types.int64] * 5)
_ACCUMULATE = types.void(types.Array(from_dtype(ACCUMULATION), 1, "C"), *[types.int64] * 2)


@njit
def _stage_depth(job, x, plane, bottom, top, low, high, stage):
    """Sum rows bottom .. top - 1, pixels low .. high - 1, over depth; returns the taps."""
    number = job.number
    depth, height = job.depth, job.height
    outer = plane // depth.outputs
    start, taps, weights = band(depth, number, plane - outer * depth.outputs)
    row = job.width.inputs * job.channels * job.input_size
    step = height.inputs * row
    at = x + (outer * depth.inputs + start) * step + low * job.channels * job.input_size
    length, size = (high - low) * job.channels, job.input_size
    for r in range(bottom, top if taps else bottom):
        to = stage + (r - bottom) * job.row_bytes
        call(job.depth_sum, (size, at + r * row, step, weights, taps, length, to))
    return taps


@njit
def _sum_height(job, x, stage, bottom, q, left, length, result):
    """Sum the inputs of result row q, from number left on; returns how many there were."""
    number = job.number
    height = job.height
    outer = q // height.outputs
    start, taps, weights = band(height, number, q - outer * height.outputs)
    if not taps:
        clear(result, length * number)
        return 0
    if job.staged:
        size, step = number, job.row_bytes
        at = stage + (start - bottom) * step
    else:
        size, step = job.input_size, job.width.inputs * job.channels * job.input_size
        at = x + (outer * height.inputs + start) * step + left * size
    call(job.height_sum, (size, at, step, weights, taps, length, result))
    return taps


@njit
def _row(job, x, stage, bottom, q, low, high, buffer):
    """Sum the row that result row q needs, from pixel low on, over depth and height.

    Returns its address and how many inputs were summed. What follows the row there can be read,
    too, PAD numbers on.
    """
    number = job.number
    height, left = job.height, low * job.channels
    length = (high - low) * job.channels
    if not height.moves and job.staged:
        return stage + (q % height.outputs - bottom) * job.row_bytes, 1
    if not height.moves and not job.input_narrow:
        at = x + (q * job.width.inputs * job.channels + left) * number
        if at + (length + PAD) * number <= x + job.input_bytes:
            return at, 1
    taps = _sum_height(job, x, stage, bottom, q, left, length, buffer)
    return buffer, taps


@njit
def _finish_row(job, row, taps, low, j0, j1, scratch, to):
    """The width stage of one row, which stands at pixel low."""
    number, channels = job.number, job.channels
    length = (j1 - j0) * channels
    if not taps:
        clear(to, length * job.output_size)
        return
    line = scratch + job.lines_at if job.output_narrow else to
    call(job.width_stage, (job.address, row - low * channels * number, j0, j1, line))
    if job.output_narrow:
        call(job.convert, (line, length, job.output_size, to))


@njit
def _direct_block(job, x, y, scratch, bottom, first, count, j0, j1):
    """The last two stages row by row; y stands at the block's first result."""
    channels, sums = job.channels, scratch + job.sums_at
    line = job.width.outputs * channels * job.output_size
    if job.method == NO_WIDTH:
        for i in range(count):
            to = scratch + job.lines_at if job.output_narrow else y + i * line
            _sum_height(job, x, scratch + job.stage_at, bottom, first + i, j0, j1 - j0, to)
            if job.output_narrow:
                call(job.convert, (to, j1 - j0, job.output_size, y + i * line))
        return
    low, high = span(job.width, 1, j0, j1)
    # Sums that were only just stored are slow to load at another alignment: some rows ahead.
    for begin in range(0, count, job.ahead):
        end = min(begin + job.ahead, count)
        for i in range(begin, end):
            to = sums + (i - begin) * job.row_bytes
            row, taps = _row(job, x, scratch + job.stage_at, bottom, first + i, low, high, to)
            put_number(scratch + 16 * (i - begin), row)
            put_number(scratch + 16 * (i - begin) + 8, taps)
        for i in range(begin, end):
            row = integer_at(scratch + 16 * (i - begin))
            taps = integer_at(scratch + 16 * (i - begin) + 8)
            _finish_row(job, row, taps, low, j0, j1, scratch, y + i * line)


@njit
def _columns(job, x, scratch, bottom, first, count, low, high):
    """Sum the block's rows over depth and height and transpose them, from pixel low to high."""
    number, sums = job.number, scratch + job.sums_at
    length = (high - low) * job.channels
    step = job.width.inputs * job.channels * number
    rows = x + first * step + low * job.channels * number
    last = rows + (job.block - 1) * step + (length + PAD) * number
    if job.height.moves or job.staged or job.input_narrow or last > x + job.input_bytes:
        for i in range(count):
            to = sums + i * job.row_bytes
            _sum_height(
                job, x, scratch + job.stage_at, bottom, first + i, low * job.channels, length, to
            )
        rows, step = sums, job.row_bytes
    call(job.to_columns, (rows, step, length, scratch + job.columns_at))


@njit
def _transposed_block(job, x, y, scratch, bottom, first, count, j0, j1):
    """The last two stages for all rows of the block at once; y stands at its first result."""
    axis, length = job.width, (j1 - j0) * job.channels
    columns, results = scratch + job.columns_at, scratch + job.results_at
    low, high = span(axis, job.number, j0, j1)
    for c0 in range(low, max(high, low + 1), job.chunk):
        c1 = min(c0 + job.chunk, high)
        _columns(job, x, scratch, bottom, first, count, c0, c1)
        call(job.width_stage, (job.address, columns, c0, c1, j0, j1, results))
    line = axis.outputs * job.channels * job.output_size
    direct = not job.output_narrow and count == job.block and length >= job.block
    to, step = (y, line) if direct else (scratch + job.lines_at, job.line_bytes)
    call(job.to_rows, (results, length, to, step, direct))
    for i in range(count):
        taps = band(job.height, job.number, (first + i) % job.height.outputs)[1]
        if not taps:
            clear(y + i * line, length * job.output_size)
        elif not direct:
            call(job.convert, (to + i * step, length, job.output_size, y + i * line))


@njit
def _block(job, x, y, scratch, unit):
    """All stages of one block."""
    number, height, width = job.number, job.height, job.width
    block = unit // job.tiles
    j0 = (unit - block * job.tiles) * job.tile
    j1 = min(j0 + job.tile, width.outputs)
    rows, plane, bottom = job.rows, 0, 0
    if job.staged:
        plane = block // job.blocks
        rows = (plane + 1) * height.outputs
        block -= plane * job.blocks
    first = plane * height.outputs + block * job.block
    count = min(job.block, rows - first)
    size = job.channels * job.output_size
    to = y + (first * width.outputs + j0) * size
    if job.staged:
        inside = block * job.block
        bottom, top = span(height, number, inside, inside + count)
        low, high = (j0, j1) if job.method == NO_WIDTH else span(width, number, j0, j1)
        stage = scratch + job.stage_at
        if not _stage_depth(job, x, plane, bottom, top, low, high, stage):
            for i in range(count):
                clear(to + i * width.outputs * size, (j1 - j0) * size)
            return
    if job.method == COLUMNS:
        _transposed_block(job, x, to, scratch, bottom, first, count, j0, j1)
    else:
        _direct_block(job, x, to, scratch, bottom, first, count, j0, j1)


@njit(_RUN, nogil=True, cache=True)
def run(jobs, x, y, scratch, first, stop):
    """Compute blocks first .. stop - 1 of a job; x, y and scratch are addresses."""
    job = jobs[0]
    for unit in range(first, stop):
        _block(job, x, y, scratch, unit)


@njit(_ACCUMULATE, nogil=True, cache=True)
def accumulate(jobs, x, y):
    """Add the taps of every result of an accumulation on x to y; x and y are addresses."""
    job = jobs[0]
    row = job.length * job.number
    for outer in range(job.outer):
        for index in range(job.axis.outputs):
            start, taps, weights = band(job.axis, job.number, index)
            at = x + (outer * job.axis.inputs + start) * row
            to = y + (outer * job.axis.outputs + index) * row
            if taps:
                add = job.sum_onto if index < job.carried else job.sum
                call(add, (job.number, at, row, weights, taps, job.length, to))
            elif index >= job.carried:
                clear(to, row)
