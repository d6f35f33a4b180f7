"""Conversion of a plan to jobs for the fused kernel.

Each job is one call of the kernel. Adjacent axes without a pass are merged. If the tensor then has
the form [outer, depth, height, width, channels], with all passes in this order on neighbors of
depth, height and width, the plan is one job. Any other plan applies its first pass alone, then the
rest, through an intermediate tensor of the compute type.

A job states how the result is cut into blocks (blocks.py), which method the width stage has
(width.py), and where its buffers are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gradwire_server.backends.numba_cpu import blocks, records, rows, width
from gradwire_server.backends.numba_cpu.instructions import CAN_PICK
from gradwire_server.backends.numba_cpu.tables import Table
from gradwire_server.backends.numba_cpu.vectors import VECTOR_BYTES
from gradwire_server.backends.numpy_cpu import compute_dtype
from gradwire_server.plans import BandedMap, Pass

Array = npt.NDArray[Any]
Formats = tuple[np.dtype[Any], np.dtype[Any]]
Tables = Callable[[BandedMap], Table]

# Weights of axes without a pass, by compute type.
_ONES = {name: np.ones(1, name) for name in ("float32", "float64")}
# Compiled functions have no types.
_BLOCKS: Any = blocks
_ROWS: Any = rows
# Fewer channels than this do not fill vectors.
_FEW_CHANNELS = 16
# Tiles are multiples of this number of pixels, so that they begin where vectors of results do.
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

    axes: tuple[range, ...]
    lengths: tuple[int, ...]
    maps: tuple[BandedMap | None, ...]

    def repeats(self, shape: Sequence[int], repeated: Sequence[bool]) -> list[bool]:
        """Return whether indices of outer, depth and height repeat their values.

        One result per axis: whether all its indices hold the same values.

        repeated  likewise for each axis of the tensor; none if empty
        """
        return [
            any(repeated[axis] and shape[axis] > 1 for axis in axes)
            and all(repeated[axis] or shape[axis] == 1 for axis in axes)
            for axes in self.axes[:3]
            if repeated
        ] or [False] * 3

    def read(self, repeats: Sequence[bool]) -> tuple[slice, ...]:
        """Return the index of the tensor without repetitions."""
        once = {axis for axes in itertools.compress(self.axes, repeats) for axis in axes}
        return tuple(slice(1 if axis in once else None) for axis in range(self.axes[-1].stop))

    def steps(self, size: int, repeats: Sequence[bool]) -> dict[str, int]:
        """Return the input's strides and bytes without repetitions.

        size is that of an element.
        """
        values: dict[str, int] = {}
        stride = math.prod(self.lengths[3:]) * size
        for axis, name in ((2, "row_step"), (1, "depth_step"), (0, "outer_step")):
            values[name] = 0 if repeats[axis] else stride
            stride *= 1 if repeats[axis] else self.lengths[axis]
        return values | {"input_bytes": stride}


def _form_of(shape: Sequence[int], passes: Sequence[Pass]) -> Form | None:
    """Return the form of a tensor with these passes.

    None if it has no such form.
    """
    at = [one.axis for one in passes]
    apart = any(math.prod(shape[a + 1 : b]) != 1 for a, b in itertools.pairwise(at))
    if len(at) > 3 or at != sorted(at) or apart:
        return None
    last = at[-1]
    if len(at) > 1:
        ends = at[0], at[-2], last, last + 1
    elif math.prod(shape[last + 1 :]) < _FEW_CHANNELS:
        ends = 0, 0, last, last + 1
    else:
        ends = last, last, last + 1, len(shape)
    axes = tuple(itertools.starmap(range, itertools.pairwise((0, *ends, len(shape)))))
    lengths = tuple(math.prod(shape[axis] for axis in some) for some in axes)
    maps = tuple(next((one.map for one in passes if one.axis in some), None) for some in axes[1:4])
    return Form(axes, lengths, maps)


class CompiledPass(NamedTuple):
    """One call of the fused kernel.

    record   array of one records.JOB
    address  its address
    units    number of blocks, which are independent
    scratch  bytes of buffers that each thread needs
    outputs  elements of the result
    work     elements read and written
    tables   kept alive, since the record holds their addresses
    read     index of the input without repetitions
    """

    record: Array
    address: int
    units: int
    scratch: int
    outputs: int
    work: int
    tables: tuple[Table | None, ...]
    read: tuple[slice, ...]


def jobs_of(
    shape: Sequence[int],
    passes: Sequence[Pass],
    formats: Formats,
    tables: Tables,
    *,
    streamed_bytes: int,
    repeated: Sequence[bool] = (),
) -> list[CompiledPass]:
    """Return the jobs that apply passes one after the other.

    There are none if a format has no kernels.

    formats         types of input and result; between jobs it is the compute type
    streamed_bytes  results of at least so many bytes bypass the caches
    repeated        for each axis, whether all its indices hold the same values; none if empty
    """
    if not rows.ROW_KERNELS.keys() >= {one.name for one in formats}:
        return []
    compute = compute_dtype(formats[0])
    form = _form_of(shape, passes)
    if form is not None:
        axes = tuple(None if one is None else tables(one) for one in form.maps)
        outer, *moved, channels = form.lengths
        pairs = zip(moved, axes, strict=True)
        lengths = (length if table is None else table.outputs for length, table in pairs)
        task = _Task(form, axes, formats, compute, (outer, *lengths, channels), streamed_bytes)
        job = _job(task, form.repeats(shape, repeated))
        if job is not None:
            return [job]
    first, *rest = passes
    some = partial(jobs_of, tables=tables, streamed_bytes=streamed_bytes)
    between = (*shape[: first.axis], first.map.outputs, *shape[first.axis + 1 :])
    return [
        *some(shape, [first], (formats[0], compute), repeated=repeated),
        *some(between, rest, (compute, formats[1])),
    ]


def accumulate(table: Table, x: Array, y: Array, *, axis: int, carried: int) -> None:
    """Add a pass over x to the values of y in place."""
    record, length = np.array([table.record], records.AXIS), math.prod(x.shape[axis + 1 :])
    _BLOCKS.accumulate(
        rows.ROW_KERNELS[x.dtype.name].sums.address,
        record.ctypes.data,
        table.inputs,
        table.outputs,
        math.prod(x.shape[:axis]),
        length * x.itemsize,
        length,
        carried,
        x.ctypes.data,
        y.ctypes.data,
    )


class _Task(NamedTuple):
    """Work of one job.

    axes            tables of depth, height and width; None without a pass
    formats         types of input and result
    lengths         the form's lengths in the result
    streamed_bytes  as in `jobs_of`
    """

    form: Form
    axes: tuple[Table | None, ...]
    formats: Formats
    compute: np.dtype[Any]
    lengths: tuple[int, ...]
    streamed_bytes: int

    @property
    def rows(self) -> int:
        """Rows of the result."""
        return math.prod(self.lengths[:3])

    @property
    def is_streamed(self) -> bool:
        """Whether results bypass the caches."""
        row = math.prod(self.lengths[3:]) * self.formats[1].itemsize
        return row * self.rows >= self.streamed_bytes and row >= _LEAST_STREAMED


def _job(task: _Task, repeats: Sequence[bool]) -> CompiledPass | None:
    """Return the job of a task.

    None if its buffers would be too large.
    """
    found = _blocks(task)
    if found is None:
        return None
    blocks, units, scratch = found
    form, (arriving, leaving) = task.form, task.formats
    values = {
        "itemsize": task.compute.itemsize,
        "channels": task.lengths[4],
        "rows": task.rows,
        "input_narrow": arriving != task.compute,
        "output_narrow": leaving != task.compute,
        "input_size": arriving.itemsize,
        "output_size": leaving.itemsize,
        **form.steps(arriving.itemsize, repeats),
        **_functions(task, blocks["method"]),
        **blocks,
    }
    one = _ONES[task.compute.name].ctypes.data
    names = ("depth", "height", "width")
    for name, length, table in zip(names, form.lengths[1:4], task.axes, strict=True):
        values[name] = (0, length, length, 0, 0, one, 0) if table is None else table.record
    record = np.zeros(1, records.JOB)
    address = values["address"] = record.ctypes.data
    for name, value in values.items():
        record[name] = value
    inputs, outputs = math.prod(form.lengths), math.prod(task.lengths)
    work, read = inputs + outputs, form.read(repeats)
    return CompiledPass(record, address, units, scratch, outputs, work, task.axes, read)


def _functions(task: _Task, method: int) -> dict[str, int]:
    """Return the addresses of each stage's functions."""
    kernels, compute = rows.ROW_KERNELS, task.compute.name
    arriving, leaving = (one.name for one in task.formats)
    stages = width.WIDTH_KERNELS[compute]
    return {
        "depth_sum": kernels[arriving].sums.address,
        "height_sum": kernels[arriving if task.axes[0] is None else compute].sums.address,
        "width_sum": kernels[compute].sums.address,
        "width_stage": (stages.columns if method == records.COLUMNS else stages.along_rows).address,
        "to_rows": stages.to_rows.address,
        "convert": kernels[leaving].convert.address,
        "stream": _ROWS.stream.address if task.is_streamed else 0,
    }


def _blocks(task: _Task) -> tuple[dict[str, Any], int, int] | None:
    """Choose a method of width.py, and blocks.

    Returns fields of the record, the number of blocks, and the bytes of all buffers; None if
    buffers would be too large.
    """
    depth, height, width = task.axes
    itemsize, (outer, planes, height_rows, pixels, channels) = task.compute.itemsize, task.lengths
    lanes = VECTOR_BYTES // itemsize
    described = _method(task)
    method = described["method"]
    transposed = method == records.COLUMNS
    # Transposed blocks are square.
    block = lanes if depth is None or transposed else _STAGED_ROWS
    tile = _tile(task, method)
    span = tile if width is None else width.widest_span(tile)
    chunk = max(1, min(span, _CHUNK // channels)) if transposed else span
    window = 0 if depth is None or height is None else height.widest_span(block)
    row_bytes, line_bytes = (
        _odd_vectors((some * channels + records.PAD) * itemsize) for some in (chunk, tile)
    )
    if depth is not None and (chunk < span or window * row_bytes > _STAGE_BYTES):
        return None
    narrow = task.formats[1] != task.compute
    ahead = max(1, min(block, _AHEAD_BYTES // row_bytes))
    if method == records.NO_WIDTH and not narrow and not task.is_streamed:
        ahead = lanes  # no rows are buffered
    lines = (block if transposed else ahead) * line_bytes
    sizes = {
        "stage_at": window * row_bytes,
        "sums_at": (lanes if transposed else ahead) * row_bytes,
        "columns_at": (chunk * channels + records.PAD) * VECTOR_BYTES * transposed,
        "results_at": (tile * channels + records.PAD) * VECTOR_BYTES * transposed,
        "lines_at": lines,
        "converted_at": lines if narrow and task.is_streamed else 0,
    }
    *places, scratch = itertools.accumulate(sizes.values(), initial=0)
    per_plane, tiles = -(-height_rows // block), -(-pixels // tile)
    count = -(-task.rows // block) if depth is None else per_plane * planes * outer
    values = {
        "block": block,
        "ahead": ahead,
        "blocks": per_plane,
        "tile": tile,
        "tiles": tiles,
        "chunk": chunk,
        "row_bytes": row_bytes,
        "line_bytes": line_bytes,
        **dict(zip(sizes, places, strict=True)),
    }
    return described | values, count * tiles, scratch


def _method(task: _Task) -> dict[str, Any]:
    """Choose a method of width.py; return the fields that describe it."""
    width, channels = task.axes[2], task.lengths[4]
    if width is None:
        return {"method": records.NO_WIDTH}
    if channels >= _FEW_CHANNELS:
        return {"method": records.CHANNELS}
    steady = width.steady if channels == 1 else None
    if steady and width.outputs >= _SHORT_ROW:
        return steady
    groups = width.groups(channels) if CAN_PICK else None
    if groups is not None:
        return {"method": records.PERMUTE, "groups": groups.record}
    few = channels == 1 and task.rows < _FEW_ROWS
    return steady or {"method": records.HALVE if few else records.COLUMNS}


def _tile(task: _Task, method: int) -> int:
    """Return the pixels of a tile.

    They are all pixels, or a multiple of the pixels of whole vectors.
    """
    limit = _COLUMNS_BYTES if method == records.COLUMNS else _TILE_BYTES
    pixels, channels = task.lengths[3:]
    # The longer of a row's two sides counts.
    longer = max(task.form.lengths[3], pixels)
    tile = limit * pixels // (channels * task.compute.itemsize * longer)
    if method != records.CHANNELS:
        tile = max(1, tile // _TILE_STEP) * _TILE_STEP
    return min(pixels, max(tile, 1))


def _odd_vectors(size: int) -> int:
    """Round up to an odd number of vectors.

    Rows of an even number would share cache sets.
    """
    return (-(-size // VECTOR_BYTES) | 1) * VECTOR_BYTES
