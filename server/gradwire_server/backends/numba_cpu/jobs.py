"""From a plan to jobs, each of which is one call of the fused kernel.

Adjacent axes without a pass are merged. If the tensor then has the form [outer, depth, height,
width, channels], with all passes in this order on some of depth, height and width, the plan is one
job. Any other plan applies its first pass alone, then the rest, through an intermediate tensor of
the compute type.

A job states how the result is cut into blocks (blocks.py), which method the width stage has
(width.py, nearest.py), and where its buffers are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gradwire_server.backends.numba_cpu import nearest, records, rows, width
from gradwire_server.backends.numba_cpu.instructions import CAN_PICK
from gradwire_server.backends.numba_cpu.tables import Groups, Steady, Table
from gradwire_server.plans import BandedMap, Pass

Formats = tuple[np.dtype[Any], np.dtype[Any]]
Tables = Callable[[BandedMap], Table]

_VECTOR_BYTES = 64
# Fewer channels than this do not fill vectors.
_FEW_CHANNELS = 16
# Tiles are multiples of so many pixels, so that they begin where vectors of results do.
_TILE_STEP = 64
# Bytes of a tile's rows; fewer where a whole block of rows is buffered.
_TILE_BYTES = 16 << 10
_STAGED_ROWS = 4
_COLUMNS_BYTES = 2 << 10
# Bytes of rows summed before their width stage.
_AHEAD_BYTES = 16 << 10
# Most bytes of rows between the depth and the height stage.
_STAGE_BYTES = 1 << 20
# Elements of a row transposed at once.
_CHUNK = 4096
# Shorter rows are mostly ends, which PERMUTE does not compute separately.
_SHORT_ROW = 32
# Taps of results that are sums of two.
_PAIR = 2
# Rows of a block of nearest.py: as many as _TILE_BYTES hold, within these bounds.
_LEAST_ROWS, _MOST_ROWS = 16, 256
# Shorter rows are not streamed: their ends share too many cache lines with other rows.
_LEAST_STREAMED = 2 << 10
# Fewer rows are not worth a transpose.
_FEW_ROWS = 3


class Form(NamedTuple):
    """A tensor seen as [outer, depth, height, width, channels].

    axes     axes of the tensor that each of the five merges
    lengths  their lengths in the input
    maps     of depth, height and width; None without a pass
    """

    axes: tuple[range, range, range, range, range]
    lengths: tuple[int, ...]
    maps: tuple[BandedMap | None, ...]

    @property
    def channels(self) -> int:
        """Length of the last axis."""
        return self.lengths[-1]

    @property
    def inputs(self) -> int:
        """Elements of the input."""
        return math.prod(self.lengths)

    def repeats(self, shape: Sequence[int], repeated: Sequence[bool]) -> RepeatedAxes:
        """Return which of outer, depth and height repeat, given which axes of the tensor do."""
        return RepeatedAxes(
            *(
                any(repeated[axis] and shape[axis] > 1 for axis in axes)
                and all(repeated[axis] or shape[axis] == 1 for axis in axes)
                for axes in self.axes[:3]
            )
        )

    def read(self, repeats: RepeatedAxes) -> tuple[slice, ...]:
        """Return the index of the tensor without repetitions."""
        slices = [slice(None)] * self.axes[-1].stop
        for axes, is_repeated in zip(self.axes, repeats, strict=False):
            for axis in axes if is_repeated else ():
                slices[axis] = slice(1)
        return tuple(slices)

    def steps(self, size: int, repeats: RepeatedAxes) -> dict[str, int]:
        """Return the input's strides and bytes without repetitions; size is that of an element."""
        row = self.lengths[3] * self.channels * size
        plane = row * (1 if repeats.height else self.lengths[2])
        volume = plane * (1 if repeats.depth else self.lengths[1])
        return {
            "outer_step": 0 if repeats.outer else volume,
            "depth_step": 0 if repeats.depth else plane,
            "row_step": 0 if repeats.height else row,
            "input_bytes": volume * (1 if repeats.outer else self.lengths[0]),
        }


class RepeatedAxes(NamedTuple):
    """Whether all indices of outer, of depth and of height hold the same values."""

    outer: bool
    depth: bool
    height: bool


_NOTHING_REPEATS = RepeatedAxes(outer=False, depth=False, height=False)


def _form_of(shape: Sequence[int], passes: Sequence[Pass]) -> Form | None:
    """Return the form of a tensor with these passes; None if it has none."""
    at = [one.axis for one in passes]
    if not at or len(at) > 3 or at != sorted(at):
        return None
    first, last = at[0], at[-1]
    inner = range(last + 1, len(shape))
    gaps = [math.prod(shape[a + 1 : b]) for a, b in itertools.pairwise(at)]
    height_end, width_end = last, last + 1
    outer, depth = range(first), range(0)
    if len(at) == 1 and math.prod(shape[last + 1 :]) >= _FEW_CHANNELS:
        height_end, width_end, inner = last + 1, len(shape), range(len(shape), len(shape))
    elif len(at) == 1:
        outer = range(0)
    elif len(at) == 2 and gaps != [1]:
        depth = range(first, first + 1)
    elif len(at) == 3:
        if gaps != [1, 1]:
            return None
        depth = range(first, at[1])
    height = range(max(outer.stop, depth.stop), height_end)
    axes = (outer, depth, height, range(height_end, width_end), inner)
    lengths = tuple(math.prod(shape[axis] for axis in some) for some in axes)
    maps = tuple(next((one.map for one in passes if one.axis in some), None) for some in axes[1:4])
    return Form(axes, lengths, maps)


@dataclass(frozen=True, eq=False)
class CompiledPass:
    """One call of the fused kernel.

    record   array of one records.JOB
    units    number of blocks, which are independent
    scratch  bytes of buffers that each thread needs
    outputs  elements of the result
    work     elements read and written
    tables   kept alive, since the record holds their addresses
    read     index of the input without repetitions
    """

    record: npt.NDArray[Any]
    units: int
    scratch: int
    outputs: int
    work: int
    tables: tuple[Table, ...]
    read: tuple[slice, ...]

    @cached_property
    def address(self) -> int:
        """Address of the record."""
        address: int = self.record["address"].item()
        return address


def jobs_of(
    shape: Sequence[int],
    passes: Sequence[Pass],
    formats: Formats,
    compute: np.dtype[Any],
    tables: Tables,
    *,
    streamed_bytes: int,
    repeated: Sequence[bool] = (),
) -> list[CompiledPass]:
    """Return the jobs that apply passes one after the other.

    formats         types of input and result; between jobs it is the compute type
    streamed_bytes  results of at least so many bytes bypass the caches
    repeated        for each axis, whether all its indices hold the same values; none if empty
    """
    form = _form_of(shape, passes)
    if form is not None:
        repeats = form.repeats(shape, repeated) if repeated else _NOTHING_REPEATS
        job = _job(form, formats, compute, tables, streamed_bytes, repeats)
        if job is not None:
            return [job]
    first, *rest = passes
    some = partial(jobs_of, compute=compute, tables=tables, streamed_bytes=streamed_bytes)
    between = (*shape[: first.axis], first.map.outputs, *shape[first.axis + 1 :])
    return [
        *some(shape, [first], (formats[0], compute), repeated=repeated),
        *some(between, rest, (compute, formats[1])),
    ]


def accumulation(
    table: Table, shape: Sequence[int], *, axis: int, carried: int
) -> npt.NDArray[Any]:
    """Return the record of a pass over x of this shape that adds to the values in place."""
    compute = table.weight.dtype
    values = {
        "axis": table.record,
        "outer": math.prod(shape[:axis]),
        "length": math.prod(shape[axis + 1 :]),
        "carried": carried,
        "itemsize": compute.itemsize,
        "sum": rows.ROW_KERNELS[compute.name].weighted.address,
        "sum_onto": rows.SUM_ONTO[compute.name].address,
    }
    return _record(records.ACCUMULATION, values)


def _job(
    form: Form,
    formats: Formats,
    compute: np.dtype[Any],
    tables: Tables,
    streamed_bytes: int,
    repeats: RepeatedAxes,
) -> CompiledPass | None:
    """Return the job of a form; None if its buffers would be too large."""
    axes = tuple(None if one is None else tables(one) for one in form.maps)
    blocking = _blocking(form, axes, formats, compute, streamed_bytes)
    if blocking is None:
        return None
    method = blocking.values["method"]
    if method >= records.WINDOW_CHANNELS:
        # Its loops end by addresses, which need steps.
        repeats = RepeatedAxes(repeats.outer, depth=False, height=False)
    plain = tuple(table is None or table.is_plain for table in axes)
    values = {
        "itemsize": compute.itemsize,
        "channels": form.channels,
        "input_narrow": formats[0] != compute,
        "output_narrow": formats[1] != compute,
        "input_size": formats[0].itemsize,
        "output_size": formats[1].itemsize,
        **form.steps(formats[0].itemsize, repeats),
        **_axes(form, axes),
        **_functions(plain, formats, compute, method=method, staged=axes[0] is not None),
        **blocking.values,
        **_steadiness(blocking.steady),
    }
    if blocking.groups:
        values["groups"] = blocking.groups.record
    if blocking.streamed:
        stream, stream_zeros = rows.STREAM_KERNELS
        values |= {"stream": stream.address, "stream_zeros": stream_zeros.address}
    return CompiledPass(
        record=_record(records.JOB, values),
        units=blocking.units,
        scratch=blocking.scratch,
        outputs=blocking.outputs,
        work=form.inputs + blocking.outputs,
        tables=tuple(table for table in axes if table is not None),
        read=form.read(repeats),
    )


def _record(kind: np.dtype[Any], values: dict[str, Any]) -> npt.NDArray[Any]:
    """Make a record that holds its own address; fields that are absent are 0."""
    fields: Any = kind.fields
    numbers = [0] * (kind.itemsize // 8)
    for name, value in values.items():
        place = fields[name][1] // 8
        if isinstance(value, int):
            numbers[place] = value
        else:
            numbers[place : place + len(value)] = value
    # A view takes a fraction of the time of an array of nested tuples.
    record = np.array(numbers, np.int64)
    record[fields["address"][1] // 8] = record.ctypes.data
    return record.view(kind)


def _axes(form: Form, axes: Sequence[Table | None]) -> dict[str, Any]:
    return {
        name: (0, length, length) if table is None else table.record
        for name, length, table in zip(
            ("depth", "height", "width"), form.lengths[1:4], axes, strict=True
        )
    }


@cache
def _functions(
    plain: tuple[bool, ...],
    formats: Formats,
    compute: np.dtype[Any],
    *,
    method: int,
    staged: bool,
) -> dict[str, int]:
    """Return the addresses of each stage's functions; plain: by axis, whether weights are 1."""
    arriving, arrived, computed, leaving = (
        rows.ROW_KERNELS[one.name]
        for one in (formats[0], compute if staged else formats[0], compute, formats[1])
    )
    stages = width.WIDTH_KERNELS[compute.name]
    functions = {
        "depth_sum": arriving.plain if plain[0] else arriving.weighted,
        "height_sum": arrived.plain if plain[1] else arrived.weighted,
        "width_sum": computed.plain if plain[2] else computed.weighted,
        "to_columns": stages.to_columns,
        "to_rows": stages.to_rows,
        "convert": leaving.convert,
    }
    if method >= records.WINDOW_CHANNELS:
        functions["width_stage"] = nearest.NEAREST_KERNELS[formats[0].name]
    elif method >= records.COLUMNS:
        by_method = (stages.columns, stages.halve, stages.double, stages.permute)
        functions["width_stage"] = by_method[method - records.COLUMNS]
    return {name: int(function.address) for name, function in functions.items()}


def _steadiness(steady: Steady | None) -> dict[str, Any]:
    if steady is None:
        return {}
    phases = dict(zip(("even", "odd"), steady.phases, strict=False))
    return {"steady_first": steady.first, "steady_stop": steady.stop, **phases}


class _Blocking(NamedTuple):
    """How a job is cut into blocks, and by which method it is computed.

    values    fields of records.JOB
    steady    results that HALVE or DOUBLE computes
    groups    vectors of results that PERMUTE computes
    units     number of blocks
    scratch   bytes of all buffers
    outputs   elements of the result
    streamed  whether results bypass the caches
    """

    values: dict[str, int]
    steady: Steady | None
    groups: Groups | None
    units: int
    scratch: int
    outputs: int
    streamed: bool


class _Sides(NamedTuple):
    """Lengths of a result.

    planes   planes of all outer indices
    heights  rows of a plane
    rows     rows of all planes
    """

    planes: int
    heights: int
    pixels: int
    rows: int
    outputs: int


def _sides(form: Form, axes: Sequence[Table | None]) -> _Sides:
    depths, heights, pixels = (
        length if table is None else table.outputs
        for length, table in zip(form.lengths[1:4], axes, strict=True)
    )
    planes = form.lengths[0] * depths
    rows = planes * heights
    return _Sides(planes, heights, pixels, rows, rows * pixels * form.channels)


def _blocking(
    form: Form,
    axes: Sequence[Table | None],
    formats: Formats,
    compute: np.dtype[Any],
    streamed_bytes: int,
) -> _Blocking | None:
    """Choose a method and blocks; None if buffers would be too large."""
    sides = _sides(form, axes)
    pixels = sides.pixels
    row = pixels * form.channels * formats[1].itemsize
    streamed = sides.outputs * formats[1].itemsize >= streamed_bytes and row >= _LEAST_STREAMED
    if formats[0] == formats[1]:
        found = _windows(form, axes, sides, formats[0], compute, streamed=streamed)
        if found is not None:
            return found
    held_back = formats[1] != compute or streamed
    depth, height, width = axes
    itemsize, lanes = compute.itemsize, _VECTOR_BYTES // compute.itemsize
    method, steady = _method(form, width, sides.rows)
    # Transposed blocks are square.
    block_rows = lanes if depth is None or method == records.COLUMNS else _STAGED_ROWS
    tile = _tile(form, pixels, method, itemsize)
    span = tile if width is None else width.widest_span(tile)
    chunk = max(1, min(span, _CHUNK // form.channels)) if method == records.COLUMNS else span
    window = (
        0 if depth is None else block_rows if height is None else height.widest_span(block_rows)
    )
    row_bytes = _odd_vectors((chunk * form.channels + records.PAD) * itemsize)
    if depth is not None and (chunk < span or window * row_bytes > _STAGE_BYTES):
        return None
    per_plane = -(-sides.heights // block_rows)
    blocks = -(-sides.rows // block_rows) if depth is None else per_plane * sides.planes
    ahead = max(1, min(block_rows, _AHEAD_BYTES // row_bytes))
    if method == records.NO_WIDTH and not held_back:
        ahead = lanes  # no rows are buffered
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
        "line_bytes": _odd_vectors((tile * form.channels + records.PAD) * itemsize),
    }
    sizes = _buffers(form, values, window=window, held=held)
    if streamed and formats[1] != compute:
        sizes["converted_at"] = sizes["lines_at"]
    *places, scratch = itertools.accumulate(sizes.values(), initial=0)
    values |= dict(zip(sizes, places, strict=True))
    groups = width.groups(form.channels) if width and method == records.PERMUTE else None
    units = blocks * values["tiles"]
    return _Blocking(values, steady, groups, units, scratch, sides.outputs, streamed)


def _windows(
    form: Form,
    axes: Sequence[Table | None],
    sides: _Sides,
    memory: np.dtype[Any],
    compute: np.dtype[Any],
    *,
    streamed: bool,
) -> _Blocking | None:
    """Choose a method of nearest.py, and blocks; None if none applies."""
    width, lanes = axes[2], _VECTOR_BYTES // compute.itemsize
    if width is None or not all(table is None or table.is_plain for table in axes):
        return None
    steady, groups = None, None
    if form.channels >= _FEW_CHANNELS:
        method = records.WINDOW_CHANNELS
    elif form.channels == 1 and (steady := _pairs(width)):
        method = records.WINDOW_HALVE
    else:
        method = records.WINDOW_PERMUTE
        groups = width.groups(form.channels) if CAN_PICK else None
        if groups is None or groups.reach >= 4 * lanes:
            return None
        groups = replace(groups, wide=groups.reach >= 2 * lanes)
    tile = _tile(form, sides.pixels, method, compute.itemsize)
    line = max(sides.pixels, width.inputs) * form.channels * compute.itemsize
    together = max(_LEAST_ROWS, min(_MOST_ROWS, _TILE_BYTES // line))
    tiles = -(-sides.pixels // tile)
    values = {
        "rows": sides.rows,
        "method": method,
        "block": together,
        "ahead": together,
        "tile": tile,
        "tiles": tiles,
    }
    units = -(-sides.rows // together) * tiles
    scratch = (tile * form.channels + records.PAD) * memory.itemsize if streamed else 0
    return _Blocking(values, steady, groups, units, scratch, sides.outputs, streamed)


def _pairs(width: Table) -> Steady | None:
    """Return all results as steady ones if each is the sum of the next two inputs."""
    steady = width.halving
    whole = steady and (steady.first, steady.stop) == (0, width.outputs)
    return steady if steady and whole and steady.phases[0].taps == _PAIR else None


def _buffers(form: Form, values: dict[str, int], *, window: int, held: int) -> dict[str, int]:
    """Return the bytes of each buffer, by the field of its offset."""
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


def _method(form: Form, width: Table | None, rows: int) -> tuple[int, Steady | None]:
    if width is None:
        return records.NO_WIDTH, None
    if form.channels >= _FEW_CHANNELS:
        return records.CHANNELS, None
    steady = _steady_method(width) if form.channels == 1 else None
    if steady and width.outputs >= _SHORT_ROW:
        return steady
    if CAN_PICK and width.groups(form.channels) is not None:
        return records.PERMUTE, None
    few = form.channels == 1 and rows < _FEW_ROWS
    return steady or (records.HALVE if few else records.COLUMNS, None)


def _steady_method(width: Table) -> tuple[int, Steady] | None:
    """Return HALVE or DOUBLE if most of the axis allows it."""
    for method, steady in ((records.HALVE, width.halving), (records.DOUBLE, width.doubling)):
        if steady and 2 * (steady.stop - steady.first) >= width.outputs:
            return method, steady
    return None


def _tile(form: Form, pixels: int, method: int, itemsize: int) -> int:
    """Return the pixels of a tile: all, or a multiple of those of whole vectors."""
    limit = _COLUMNS_BYTES if method == records.COLUMNS else _TILE_BYTES
    # The longer of a row's two sides counts.
    width_map = form.maps[2]
    share = 1.0 if width_map is None else min(1.0, pixels / width_map.inputs)
    tile = int(limit / (form.channels * itemsize) * share)
    if method not in {records.CHANNELS, records.WINDOW_CHANNELS}:
        tile = max(1, tile // _TILE_STEP) * _TILE_STEP
    return min(pixels, max(tile, 1))


def _odd_vectors(size: int) -> int:
    """Round up to an odd number of vectors, so that rows do not share cache sets."""
    return (-(-size // _VECTOR_BYTES) | 1) * _VECTOR_BYTES
