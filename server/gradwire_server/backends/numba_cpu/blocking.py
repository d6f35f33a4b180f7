"""How a job is cut into blocks, by which method it goes, and what buffers that takes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from gradwire_server.backends.numba_cpu import records
from gradwire_server.backends.numba_cpu.forms import FEW_CHANNELS, Form
from gradwire_server.backends.numba_cpu.tables import Groups, Steady, Table

_VECTOR_BYTES = 64
# Pixels that tiles are multiples of, so that they begin where groups of vectors do.
_TILE_STEP = 64
# Bytes of a row of a tile; less where whole blocks of rows are held at once.
_TILE_BYTES = 16 << 10
_STAGED_ROWS = 4
_COLUMNS_BYTES = 2 << 10
# Bytes of rows that are summed ahead of their width stage.
_AHEAD_BYTES = 16 << 10
# Most bytes of rows that the depth stage hands on.
_STAGE_BYTES = 1 << 20
# Numbers of a row that are transposed at once.
_CHUNK = 4096
# Rows shorter than this are mostly ends, which `permute` does not treat apart.
_SHORT_ROW = 32
# Taps of results that are sums of two.
_PAIR = 2
# Rows of a block of windows: as many as a tile's bytes hold.
_LEAST_ROWS, _MOST_ROWS = 16, 256
# Of shorter rows too much is their ends, which share lines with others.
_LEAST_STREAMED = 2 << 10
_BUFFERS = ("stage_at", "sums_at", "columns_at", "results_at", "lines_at", "converted_at")
# Fewer rows than this are not worth a transpose.
_FEW_ROWS = 3


@dataclass(frozen=True, eq=False)
class Blocking:
    """Decisions on one job.

    values   fields of records.JOB
    steady   results that repeat, for `steady`
    groups   description of vectors of results, for `permute`
    units    blocks of work
    scratch  bytes of all buffers
    outputs  numbers of the result
    streamed whether results are written past the caches
    """

    values: dict[str, int]
    steady: Steady | None
    groups: Groups | None
    units: int
    scratch: int
    outputs: int
    streamed: bool

    @property
    def method(self) -> int:
        """Method of the width stage."""
        return self.values["method"]

    @property
    def staged(self) -> bool:
        """Whether the depth stage runs."""
        return bool(self.values["staged"])


class _Sides(NamedTuple):
    """Lengths of a result.

    planes   of all outer slices
    heights  rows of a plane
    rows     of all planes
    """

    planes: int
    heights: int
    pixels: int
    rows: int
    outputs: int


def _sides(form: Form, axes: Sequence[Table | None]) -> _Sides:
    depths, heights, pixels = (
        length if table is None else table.outputs
        for length, table in zip(form[1:4], axes, strict=True)
    )
    planes = form.outer * depths
    rows = planes * heights
    return _Sides(planes, heights, pixels, rows, rows * pixels * form.channels)


def block(
    form: Form,
    axes: Sequence[Table | None],
    formats: tuple[np.dtype[Any], np.dtype[Any]],
    compute: np.dtype[Any],
    *,
    can_pick: bool,
    streamed_bytes: int,
) -> Blocking | None:
    """Decide; None where buffers would be too large.

    formats         of input and result
    streamed_bytes  results of so many bytes, or more, are written past the caches
    """
    sides = _sides(form, axes)
    pixels = sides.pixels
    row = pixels * form.channels * formats[1].itemsize
    streamed = sides.outputs * formats[1].itemsize >= streamed_bytes and row >= _LEAST_STREAMED
    if formats[0] == formats[1]:
        plain = (form, axes, sides, formats[0], compute)
        found = _windows(*plain, can_pick=can_pick, streamed=streamed)
        if found is not None:
            return found
    held_back = formats[1] != compute or streamed
    depth, height, width = axes
    number, lanes = compute.itemsize, _VECTOR_BYTES // compute.itemsize
    method, steady = _method(form, width, sides.rows, can_pick=can_pick)
    # Transposed blocks are square.
    block_rows = lanes if depth is None or method == records.COLUMNS else _STAGED_ROWS
    tile = _tile(form, pixels, method, number)
    span = tile if width is None else width.widest_span(tile)
    chunk = max(1, min(span, _CHUNK // form.channels)) if method == records.COLUMNS else span
    window = (
        0 if depth is None else block_rows if height is None else height.widest_span(block_rows)
    )
    row_bytes = _odd_vectors((chunk * form.channels + records.PAD) * number)
    if depth is not None and (chunk < span or window * row_bytes > _STAGE_BYTES):
        return None
    per_plane = -(-sides.heights // block_rows)
    blocks = -(-sides.rows // block_rows) if depth is None else per_plane * sides.planes
    ahead = max(1, min(block_rows, _AHEAD_BYTES // row_bytes))
    if method == records.NO_WIDTH and not held_back:
        ahead = lanes  # no row is held
    held = lanes if method == records.COLUMNS else ahead
    values = {
        "rows": sides.rows,
        "staged": int(depth is not None),
        "method": method,
        "block": block_rows,
        "ahead": ahead,
        "blocks": per_plane,
        "tile": tile,
        "tiles": -(-pixels // tile),
        "chunk": chunk,
        "row_bytes": row_bytes,
        "line_bytes": _odd_vectors((tile * form.channels + records.PAD) * number),
    }
    sizes = _buffers(form, values, window=window, held=held)
    if streamed and formats[1] != compute:
        sizes["converted_at"] = sizes["lines_at"]
    *places, scratch = itertools.accumulate(sizes.values(), initial=0)
    values |= dict(zip(sizes, places, strict=True))
    groups = width.groups(form.channels) if width and method == records.PERMUTE else None
    units = blocks * values["tiles"]
    return Blocking(values, steady, groups, units, scratch, sides.outputs, streamed)


def _windows(
    form: Form,
    axes: Sequence[Table | None],
    sides: _Sides,
    memory: np.dtype[Any],
    compute: np.dtype[Any],
    *,
    can_pick: bool,
    streamed: bool,
) -> Blocking | None:
    """Decide on a job of weights that are all 1; None where `windows` does not take it."""
    width, lanes = axes[2], _VECTOR_BYTES // compute.itemsize
    if width is None or not all(table is None or table.is_plain for table in axes):
        return None
    steady, groups = None, None
    if form.channels >= FEW_CHANNELS:
        method = records.WINDOW_CHANNELS
    elif form.channels == 1 and (steady := _pairs(width)):
        method = records.WINDOW_HALVE
    else:
        method = records.WINDOW_PERMUTE
        groups = width.groups(form.channels) if can_pick else None
        if groups is None or groups.reach >= 4 * lanes:
            return None
        groups = replace(groups, wide=groups.reach >= 2 * lanes)
    rows, pixels = sides.rows, sides.pixels
    tile = _tile(form, pixels, method, compute.itemsize)
    line = max(pixels, width.inputs) * form.channels * compute.itemsize
    together = max(_LEAST_ROWS, min(_MOST_ROWS, _TILE_BYTES // line))
    values = dict.fromkeys(_BUFFERS, 0) | {
        "rows": rows,
        "staged": 0,
        "method": method,
        "block": together,
        "ahead": together,
        "blocks": 0,
        "tile": tile,
        "tiles": -(-pixels // tile),
        "chunk": 0,
        "row_bytes": 0,
        "line_bytes": 0,
    }
    units = -(-rows // together) * values["tiles"]
    scratch = (tile * form.channels + records.PAD) * memory.itemsize if streamed else 0
    return Blocking(values, steady, groups, units, scratch, sides.outputs, streamed)


def _pairs(width: Table) -> Steady | None:
    """The results as steady ones, if each is the sum of two inputs that follow the last two."""
    steady = width.halving
    whole = steady and (steady.first, steady.stop) == (0, width.outputs)
    return steady if steady and whole and steady.phases[0].taps == _PAIR else None


def _buffers(form: Form, values: dict[str, int], *, window: int, held: int) -> dict[str, int]:
    """Bytes of each buffer, by the field for its place."""
    transposed = values["method"] == records.COLUMNS
    columns, results = (
        (values[length] * form.channels + records.PAD) * _VECTOR_BYTES if transposed else 0
        for length in ("chunk", "tile")
    )
    return {
        "stage_at": window * values["row_bytes"],
        "sums_at": held * values["row_bytes"],
        "columns_at": columns,
        "results_at": results,
        "lines_at": values["block" if transposed else "ahead"] * values["line_bytes"],
        "converted_at": 0,
    }


def _method(
    form: Form, width: Table | None, rows: int, *, can_pick: bool
) -> tuple[int, Steady | None]:
    if width is None:
        return records.NO_WIDTH, None
    if form.channels >= FEW_CHANNELS:
        return records.CHANNELS, None
    steady = _steady_method(width) if form.channels == 1 else None
    if steady and width.outputs >= _SHORT_ROW:
        return steady
    if can_pick and width.groups(form.channels) is not None:
        return records.PERMUTE, None
    few = form.channels == 1 and rows < _FEW_ROWS
    return steady or (records.HALVE if few else records.COLUMNS, None)


def _steady_method(width: Table) -> tuple[int, Steady] | None:
    """The method for bands that advance steadily over most of an axis."""
    for method, steady in ((records.HALVE, width.halving), (records.DOUBLE, width.doubling)):
        if steady and 2 * (steady.stop - steady.first) >= width.outputs:
            return method, steady
    return None


def _tile(form: Form, pixels: int, method: int, number: int) -> int:
    """Pixels of a tile: a multiple of what vectors hold, or all there are."""
    limit = _TILE_BYTES
    if method == records.COLUMNS:
        limit = _COLUMNS_BYTES
    # The longer of a row's two sides counts.
    share = 1.0 if form.width_map is None else min(1.0, pixels / form.width_map.inputs)
    tile = int(limit / (form.channels * number) * share)
    if method not in {records.CHANNELS, records.WINDOW_CHANNELS}:
        tile = max(1, tile // _TILE_STEP) * _TILE_STEP
    return min(pixels, max(tile, 1))


def _odd_vectors(size: int) -> int:
    """Round up to an odd number of vectors, so that rows do not meet in the same cache sets."""
    return (-(-size // _VECTOR_BYTES) | 1) * _VECTOR_BYTES
