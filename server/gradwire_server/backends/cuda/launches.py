"""Launches of each kernel: tables, grid, and arguments in the kernel's order.

Kernels along one axis see tensors as [outer, axis, inner], kernels along two axes as
[outer, rows, columns, channels].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gradwire_server.backends.cuda import geometry, kernels
from gradwire_server.backends.cuda.kernels import Format
from gradwire_server.backends.cuda.programs import Argument, Buffer, Dim3, Kernel, Launch
from gradwire_server.plans import BandedMap

Maps = tuple[BandedMap, BandedMap]

_THREADS = (geometry.THREADS, 1, 1)
_WARPS = (geometry.WARP, geometry.WARPS, 1)

# Outputs of a thread that shares nothing between them: enough to pay for its start.
_SHORT_STRIP = 8


@dataclass(slots=True)
class ProgramBuilder:
    """Tables of the launches of one program; equal tables are shared.

    compute          type of sums
    multiprocessors  of the device
    """

    compute: np.dtype[Any]
    multiprocessors: int
    tables: list[npt.NDArray[Any]] = field(default_factory=list[npt.NDArray[Any]])
    _known: dict[tuple[object, ...], Buffer] = field(
        default_factory=dict[tuple[object, ...], Buffer]
    )

    def table(self, key: tuple[object, ...], make: Callable[[], npt.NDArray[Any]]) -> Buffer:
        """Return the buffer of the array with this key, which is made at most once."""
        if key not in self._known:
            self._known[key] = Buffer("table", len(self.tables))
            self.tables.append(make())
        return self._known[key]

    def spans(self, bands: BandedMap) -> tuple[Buffer, Buffer]:
        """Return a map's start and offset."""
        geometry.check_indices(bands)
        return (
            self.table((bands, "start"), partial(bands.start.astype, np.int32)),
            self.table((bands, "offset"), partial(bands.offset.astype, np.int32)),
        )

    def bands(self, bands: BandedMap) -> tuple[Buffer, Buffer, Buffer]:
        """Return a map's start, offset and weight."""
        weight = partial(bands.weight.astype, self.compute)
        return *self.spans(bands), self.table((bands, "weight"), weight)

    def strip(self, outputs: int, *, threads: int, most: int = geometry.LONGEST_STRIP) -> int:
        """Return the outputs of one thread, as `geometry.strip` does."""
        return geometry.strip(
            outputs, threads=threads, multiprocessors=self.multiprocessors, most=most
        )


@dataclass(frozen=True, slots=True)
class Stage:
    """Input and output of one launch.

    formats  types of source and result
    fill     value of outputs without taps
    """

    builder: ProgramBuilder
    formats: Format
    source: Buffer
    result: Buffer
    fill: float

    @property
    def fill_bits(self) -> np.generic:
        """The fill in the type of the result, as an unsigned integer."""
        with np.errstate(all="ignore"):
            number: npt.NDArray[Any] = np.array([self.fill]).astype(self.formats[1])
        one: np.generic = number.view(kernels.bits(number.dtype))[0]
        return one

    def vector(self, inner: int) -> int:
        """Return the neighbors of a thread: a vector of the source, if rows are whole vectors."""
        lanes = kernels.lanes(self.formats[0])
        return lanes if inner % lanes == 0 else 1

    def launch(
        self,
        kernel: Kernel,
        jobs: int,
        tables: Iterable[Argument],
        *numbers: np.generic,
        per_block: int = geometry.THREADS,
        block: Dim3 = _THREADS,
    ) -> Launch:
        """Return a launch of so many jobs, which the kernel takes between tables and numbers."""
        grid = geometry.blocks(jobs, per_block=per_block)
        arguments = (self.result, self.source, *tables, np.uint32(jobs), *numbers)
        return Launch(kernel, grid, block, arguments)


def axis_pass(
    stage: Stage, bands: BandedMap, *, outer: int, inner: int, carried: int | None = None
) -> Launch:
    """Apply a map along the axis.

    carried  number of outputs, from the first, that are added to the result's own values; None if
             outputs without taps are to be filled
    """
    if inner == 1:
        return _contiguous_pass(stage, bands, outer=outer, carried=carried)
    vector = stage.vector(inner)
    threads = outer * (inner // vector)
    strip = stage.builder.strip(bands.outputs, threads=threads, most=_SHORT_STRIP)
    jobs = threads * -(-bands.outputs // strip)
    return stage.launch(
        kernels.kernel("axis_pass", stage.formats, vector),
        jobs,
        stage.builder.bands(bands),
        np.int64(inner),
        *map(np.int32, (bands.inputs, bands.outputs, strip, carried or 0)),
        stage.fill_bits,
    )


def _contiguous_pass(stage: Stage, bands: BandedMap, *, outer: int, carried: int | None) -> Launch:
    rows, tile = geometry.rows_of_block(outer, bands.outputs)
    jobs = -(-outer // rows) * -(-bands.outputs // tile)
    return Launch(
        kernels.kernel("contiguous_pass", stage.formats),
        geometry.blocks(jobs, per_block=1),
        _THREADS,
        (
            *(stage.result, stage.source, *stage.builder.bands(bands)),
            np.int64(outer),
            *map(np.int32, (bands.inputs, bands.outputs, rows, tile, carried or 0)),
            stage.fill_bits,
        ),
    )


def select(
    stage: Stage,
    maps: Sequence[BandedMap | None],
    lengths: Sequence[int],
    *,
    outer: int,
    inner: int,
) -> Launch:
    """Copy one number, or the fill, to each output of [outer, three axes, inner].

    maps     of the axes; None for an axis that stays as it is
    lengths  of the axes of the input
    """
    vector = stage.vector(inner)
    sizes = list(zip(maps, lengths, strict=True))
    indices = [stage.builder.table(("selected", *one), partial(_selected, *one)) for one in sizes]
    outputs = [length if one is None else one.outputs for one, length in sizes]
    threads = outer * outputs[0] * outputs[2] * (inner // vector)
    strip = stage.builder.strip(outputs[1], threads=threads, most=_SHORT_STRIP)
    jobs = threads * -(-outputs[1] // strip)
    return stage.launch(
        kernels.kernel("select_inputs", [kernels.bits(stage.formats[0])], vector),
        jobs,
        indices,
        np.int64(inner),
        *map(np.int32, (*lengths, *outputs, strip)),
        stage.fill_bits,
    )


def _selected(bands: BandedMap | None, length: int) -> geometry.Array:
    return np.arange(length, dtype=np.int32) if bands is None else geometry.selected(bands)


def convert(stage: Stage, *, count: int) -> Launch:
    """Convert numbers from the type of the source to that of the result."""
    return Launch(
        kernels.kernel("convert", stage.formats),
        geometry.blocks_of_loop(count),
        _THREADS,
        (stage.result, stage.source, np.int64(count)),
    )


def fill_bands(stage: Stage, bands: BandedMap, *, outer: int, inner: int) -> Launch:
    """Write the fill to all outputs without taps."""
    empty = np.flatnonzero(bands.counts == 0).astype(np.int32)
    index = stage.builder.table((bands, "empty"), lambda: empty)
    return Launch(
        kernels.kernel("fill_bands", [kernels.bits(stage.formats[1])]),
        geometry.blocks_of_loop(outer * len(empty) * inner),
        _THREADS,
        (
            *(stage.result, index),
            *map(np.int64, (outer, inner)),
            *map(np.int32, (bands.outputs, len(empty))),
            stage.fill_bits,
        ),
    )


def march(stage: Stage, maps: Maps, *, outer: int, channels: int) -> Launch | None:
    """Apply two maps, of rows and of columns, in one launch; None if no kernel can."""
    rows, columns = maps
    if channels > geometry.MOST:
        return None
    along_rows = partial(
        _march_rows, stage, rows, columns, outer=outer, lines=rows.outputs, channels=channels
    )
    if stage.formats not in kernels.marching(stage.formats[1]):
        return along_rows()
    gather = partial(_gather_taps, stage, maps, outer=outer, channels=channels)
    if channels == 1:
        return _march_steps(stage, maps, outer=outer) or gather() or along_rows()
    by_channels = partial(_march_channels, stage, maps, outer=outer, channels=channels)
    if stage.vector(channels) > 1:
        return by_channels() or gather() or along_rows()
    return gather() or along_rows() or by_channels()


def march_along(stage: Stage, columns: BandedMap, *, outer: int) -> Launch | None:
    """Apply one map to the rows of [outer, columns]; None if its bands are too wide."""
    if outer > geometry.MOST:
        return None
    return _march_rows(stage, None, columns, outer=1, lines=outer, channels=1)


def _march_steps(stage: Stage, maps: Maps, *, outer: int) -> Launch | None:
    """March over bands with the same even step on both axes, in rows of whole vectors."""
    rows, columns = maps
    found = (one for one in kernels.STEPS if all(geometry.has_steps(m, *one) for m in maps))
    step, halo = next(found, (0, 0))
    if not step:
        return None
    # A lane reads a vector and a step at least, a power of 2, and no less than the halo.
    widest = 1 << (halo - 1).bit_length() if halo else 0
    vector = max(kernels.lanes(stage.formats[0]), step, widest)
    if columns.inputs % vector:
        return None
    lanes, margin, tiles = geometry.step_tiles(columns.inputs // vector, overlap=halo > 0)
    strip = stage.builder.strip(rows.outputs, threads=outer * tiles * lanes)
    jobs = outer * tiles * -(-rows.outputs // strip)
    compute = stage.builder.compute
    weights = [
        stage.builder.table(
            (one, "by step", step, halo),
            partial(geometry.padded_weights, one, compute, step, halo),
        )
        for one in maps
    ]
    return stage.launch(
        kernels.kernel("march_steps", stage.formats, step, halo),
        jobs,
        weights,
        *map(np.int32, (rows.outputs, columns.outputs, strip, lanes, margin, tiles)),
        per_block=geometry.WARPS * (geometry.WARP // lanes),
        block=_WARPS,
    )


def _march_rows(
    stage: Stage,
    rows: BandedMap | None,
    columns: BandedMap,
    *,
    outer: int,
    lines: int,
    channels: int,
) -> Launch | None:
    """March over bands of any kind, if all channels of one band fit a tile.

    lines  output rows of an image
    """
    longest = max(columns.inputs, columns.outputs) * channels
    each = next((n for n in kernels.EACH if longest <= n * geometry.WARP), kernels.EACH[-1])
    widest = int(columns.counts.max(initial=0))
    taps = next((n for n in kernels.TAPS if widest <= n), 0)
    row, tile = columns.inputs * channels, each * geometry.WARP
    is_wide = 1 < each <= kernels.lanes(stage.formats[0]) and row % each == 0
    # Lanes read from a vector's start on, before that of the tile.
    inputs = (tile - (each - 1) * (is_wide and row > tile)) // channels
    outputs = kernels.row_outputs(each, taps) * geometry.WARP // channels
    if not outputs or geometry.is_ragged(columns):
        return None
    begins = geometry.tiles(columns, most_inputs=inputs, most_outputs=outputs)
    if begins is None:
        return None
    tiles = len(begins) - 1
    builder = stage.builder
    strip = builder.strip(lines, threads=outer * tiles * geometry.WARP)
    jobs = outer * tiles * -(-lines // strip)
    weights = partial(geometry.weights_by_tap, columns, builder.compute)
    tables = (
        *((np.uint64(0),) * 3 if rows is None else builder.bands(rows)),
        *builder.spans(columns),
        builder.table((columns, "by tap"), weights),
        builder.table((columns, "tiles", inputs, outputs), lambda: begins),
    )
    return stage.launch(
        kernels.kernel("march_rows", stage.formats, each, taps),
        jobs,
        tables,
        *map(np.int32, (lines if rows is None else rows.inputs, lines)),
        *map(np.int32, (columns.inputs, columns.outputs, channels, tiles, strip, is_wide)),
        stage.fill_bits,
        per_block=geometry.WARPS,
        block=_WARPS,
    )


def _march_channels(stage: Stage, maps: Maps, *, outer: int, channels: int) -> Launch | None:
    """March over ascending columns that few outputs read each."""
    rows, columns = maps
    if not columns.is_increasing:
        return None
    reach = geometry.reach(columns)
    most = next((one for one in kernels.OPEN if reach <= one), None)
    if most is None:
        return None
    vector = stage.vector(channels)
    threads = outer * rows.outputs * (channels // vector)
    builder = stage.builder
    strip = builder.strip(columns.outputs, threads=threads)
    jobs = threads * -(-columns.outputs // strip)
    records = builder.table(
        (columns, "records", most), partial(geometry.records, columns, builder.compute, most)
    )
    return stage.launch(
        kernels.kernel("march_channels", stage.formats, vector, most),
        jobs,
        (*builder.bands(rows), *builder.spans(columns), records),
        *map(np.int32, (rows.inputs, rows.outputs, columns.inputs, columns.outputs)),
        *map(np.int32, (channels, strip)),
        stage.fill_bits,
    )


def _gather_taps(stage: Stage, maps: Maps, *, outer: int, channels: int) -> Launch | None:
    """Gather the few taps of each output, where there are no fewer outputs than inputs."""
    rows, columns = maps
    in_row, out_row = columns.inputs * channels, columns.outputs * channels
    most = max(int(one.counts.max(initial=0)) for one in maps)
    taps = next((one for one in kernels.FEW_TAPS if most <= one), None)
    if taps is None or in_row > out_row or out_row > geometry.MOST:
        return None
    vector = kernels.gather_vector(stage.formats[1], taps)
    if out_row % vector:
        return None
    threads = outer * (out_row // vector)
    builder = stage.builder
    strip = builder.strip(rows.outputs, threads=threads)
    jobs = threads * -(-rows.outputs // strip)
    return stage.launch(
        kernels.kernel("gather_taps", stage.formats, taps),
        jobs,
        (*builder.bands(rows), *builder.bands(columns)),
        *map(np.int32, (rows.inputs, rows.outputs, in_row, out_row, channels, strip)),
        stage.fill_bits,
    )
