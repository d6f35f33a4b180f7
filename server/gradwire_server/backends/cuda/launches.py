"""Launches of each kernel: tables, grids, and arguments in the kernel's order.

Kernels along one axis see tensors as [outer, axis, inner], kernels along two axes as
[outer, rows, columns, channels].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gradwire_server.backends.cuda import programs
from gradwire_server.backends.cuda.programs import Argument, Buffer, Dim3, Format, Launch, X, Y
from gradwire_server.backends.numpy_cpu import compute_dtype
from gradwire_server.plans import BandedMap

Array = npt.NDArray[Any]
Maps = tuple[BandedMap, BandedMap]

THREADS = 256
WARP = 32
WARPS = THREADS // WARP
_THREADS = (THREADS, 1, 1)
_WARPS = (WARP, WARPS, 1)

# CUDA's limit of blocks along x, on every device.
_MOST_BLOCKS = 2**31 - 1
# Kernels index jobs with 32 bits, and elements of tensors with 64.
_MOST_JOBS = 2**32 - THREADS

# Blocks of a kernel whose threads loop.
_MOST_LOOPED = 1 << 20

# Threads per multiprocessor that hide latencies: twice as many as are resident.
_THREADS_WANTED = 2 * 2048

# Longest strip: outputs along an axis of one thread or warp.
LONGEST_STRIP = 64

# contiguous_pass: most rows of a block, so that it reads at least 32 neighbors of each at once.
_MOST_ROWS = 64

# Limit of 32-bit indices, with room for one beyond the last tile.
MOST = 2**31 - 2**16

# Kernels read records as vectors of this many bytes.
_RECORD_BYTES = 16
# Outputs of a thread that shares no data between them: enough to amortize its start.
_SHORT_STRIP = 8


@dataclass(frozen=True, slots=True)
class Stage:
    """Input and output of one launch, and its program's tables.

    Tables with the same bytes are shared.

    multiprocessors  of the device
    formats          types of source and result
    fill             value of outputs without taps
    """

    multiprocessors: int
    formats: Format
    source: Buffer = X
    result: Buffer = Y
    fill: float = 0.0
    tables: dict[bytes, tuple[Buffer, Array]] = field(
        default_factory=dict[bytes, tuple[Buffer, Array]]
    )

    @property
    def compute(self) -> np.dtype[Any]:
        """Type of sums."""
        return compute_dtype(self.formats[0])

    def table(self, array: Array) -> Buffer:
        """Return the buffer of an array.

        Integers become 32 bits wide, and weights have the compute type.
        """
        narrow = {"i": np.dtype(np.int32), "f": self.compute}
        held = array.astype(narrow.get(array.dtype.kind, array.dtype))
        made = Buffer("table", len(self.tables)), held
        return self.tables.setdefault(held.tobytes(), made)[0]

    def spans(self, bands: BandedMap) -> tuple[Buffer, Buffer]:
        """Return a map's start and offset."""
        return self.table(bands.start), self.table(bands.offset)

    def bands(self, bands: BandedMap) -> tuple[Buffer, Buffer, Buffer]:
        """Return a map's start, offset and weight."""
        return *self.spans(bands), self.table(bands.weight)

    @property
    def fill_bits(self) -> np.generic:
        """The fill in the type of the result, as an unsigned integer."""
        with np.errstate(all="ignore"):
            number: Array = np.array([self.fill]).astype(self.formats[1])
        one: np.generic = number.view(programs.bits(number.dtype))[0]
        return one

    def vector(self, inner: int) -> int:
        """Return the number of neighboring elements per thread.

        It is that of a source vector if rows are whole vectors, otherwise 1.
        """
        lanes = programs.lanes(self.formats[0])
        return lanes if inner % lanes == 0 else 1

    def strips(self, outputs: int, threads: int, most: int = LONGEST_STRIP) -> tuple[int, int]:
        """Return the outputs per thread along an axis, and the jobs.

        threads  number of threads that would compute one output each
        most     the longest strip

        The strip is about as long as possible with enough threads to fill the device. All strips
        have about the same length.
        """
        wanted, length = self.multiprocessors * _THREADS_WANTED, most
        while length > 1 and threads * -(-outputs // length) < wanted:
            length //= 2
        strips = -(-outputs // length)
        strip = -(-outputs // strips)
        return strip, threads * -(-outputs // strip)

    def launch(
        self,
        kernel: str,
        jobs: int,
        *arguments: Argument | int,
        per_block: int = THREADS,
        block: Dim3 = _THREADS,
    ) -> Launch:
        """Return a launch from source to result.

        Python's integers become unsigned numbers of 32 bits.
        """
        grid = blocks(jobs, per_block=per_block)
        sized = (np.uint32(one) if isinstance(one, int) else one for one in arguments)
        return Launch(kernel, grid, block, (self.result, self.source, *sized))


def axis_pass(stage: Stage, bands: BandedMap, outer: int, inner: int) -> Launch:
    """Apply a map along the axis."""
    if inner == 1:
        marched = _march_rows(stage, (None, bands), outer, 1) if outer <= MOST else None
        return marched or _contiguous_pass(stage, bands, outer)
    vector = stage.vector(inner)
    threads = outer * (inner // vector)
    strip, jobs = stage.strips(bands.outputs, threads, _SHORT_STRIP)
    return stage.launch(
        programs.kernel("axis_pass", stage.formats, vector),
        jobs,
        *stage.bands(bands),
        *(jobs, np.int64(inner), bands.inputs, bands.outputs, strip),
        stage.fill_bits,
    )


def _contiguous_pass(stage: Stage, bands: BandedMap, outer: int) -> Launch:
    tile = min(bands.outputs, THREADS)
    rows = max(1, min(THREADS // tile, outer, _MOST_ROWS))
    jobs = -(-outer // rows) * -(-bands.outputs // tile)
    return stage.launch(
        programs.kernel("contiguous_pass", stage.formats),
        jobs,
        *(*stage.bands(bands), np.int64(outer), bands.inputs, bands.outputs, rows, tile),
        stage.fill_bits,
        per_block=1,
    )


def select(stage: Stage, maps: Sequence[BandedMap], outer: int, inner: int) -> Launch:
    """Copy one number, or the fill, to each output.

    The outputs have the form [outer, three axes, inner].
    """
    vector = stage.vector(inner)
    inputs, outputs = [one.inputs for one in maps], [one.outputs for one in maps]
    threads = outer * outputs[0] * outputs[2] * (inner // vector)
    strip, jobs = stage.strips(outputs[1], threads, _SHORT_STRIP)
    return stage.launch(
        programs.kernel("select_inputs", [programs.bits(stage.formats[0])], vector),
        jobs,
        *(stage.table(np.where(one.counts == 0, -1, one.start)) for one in maps),
        *(jobs, np.int64(inner)),
        *(*inputs, *outputs, strip),
        stage.fill_bits,
    )


def fill_bands(stage: Stage, bands: BandedMap, outer: int, inner: int) -> Launch:
    """Write the fill to all outputs without taps."""
    empty = np.flatnonzero(bands.counts == 0)
    wanted = -(-outer * len(empty) * inner // THREADS)
    numbers = np.int64(outer), np.int64(inner), np.int32(bands.outputs), np.int32(len(empty))
    return Launch(
        programs.kernel("fill_bands", [programs.bits(stage.formats[1])]),
        (min(wanted, _MOST_LOOPED), 1, 1),
        _THREADS,
        (stage.result, stage.table(empty), *numbers, stage.fill_bits),
    )


def march(stage: Stage, maps: Maps, outer: int, channels: int) -> Launch | None:
    """Apply maps of rows and columns in one launch.

    Returns None if no kernel can.
    """
    if channels > MOST:
        return None
    kinds: list[Callable[..., Launch | None]]
    if stage.formats not in programs.marching(stage.formats[1]):
        kinds = [_march_rows]
    elif channels == 1:
        kinds = [_march_steps, _gather_taps, _march_rows]
    elif stage.vector(channels) > 1:
        kinds = [_march_channels, _gather_taps, _march_rows]
    else:
        kinds = [_gather_taps, _march_rows, _march_channels]
    found = (kind(stage, maps, outer, channels) for kind in kinds)
    return next(filter(None, found), None)


def _march_steps(stage: Stage, maps: Maps, outer: int, _: int) -> Launch | None:
    """March over bands of equal even steps, in rows of whole vectors.

    The step must be the same on both axes, and there is one channel.
    """
    rows, columns = maps
    found = (one for one in programs.STEPS if all(has_steps(bands, *one) for bands in maps))
    step, halo = next(found, (0, 0))
    if not step:
        return None
    # A lane reads a vector and a step at least, a power of 2, and no less than the halo.
    widest = 1 << (halo - 1).bit_length() if halo else 0
    vector = max(programs.lanes(stage.formats[0]), step, widest)
    if columns.inputs % vector:
        return None
    lanes, margin, tiles = step_tiles(columns.inputs // vector, overlap=halo > 0)
    strip, threads = stage.strips(rows.outputs, outer * tiles * lanes)
    jobs = threads // lanes
    return stage.launch(
        programs.kernel("march_steps", stage.formats, step, halo),
        jobs,
        *(stage.table(_padded_weights(one, step, halo)) for one in maps),
        *(jobs, rows.outputs, columns.outputs, strip, lanes, margin, tiles),
        per_block=WARPS * (WARP // lanes),
        block=_WARPS,
    )


def _march_rows(
    stage: Stage, maps: tuple[BandedMap | None, BandedMap], outer: int, channels: int
) -> Launch | None:
    """March over bands of any kind.

    All channels of one band must fit a tile. Without a map of rows, all rows are those of one
    image.
    """
    rows, columns = maps
    images, lines = (1, outer) if rows is None else (outer, rows.outputs)
    longest = max(columns.inputs, columns.outputs) * channels
    each = _least(programs.EACH, -(-longest // WARP)) or programs.EACH[-1]
    widest = _most_taps(columns)
    taps = _least(programs.TAPS, widest) or 0
    row, tile = columns.inputs * channels, each * WARP
    is_wide = 1 < each <= programs.lanes(stage.formats[0]) and row % each == 0
    # Lanes read from the start of a vector, which may lie before the tile.
    inputs = (tile - (each - 1) * (is_wide and row > tile)) // channels
    # With many weights to keep, a lane computes fewer outputs of a row.
    outputs = (each // 2 if each > 1 and taps > programs.TAPS[0] else each) * WARP // channels
    # Weights by tap may take some more memory than the weights themselves.
    if not outputs or widest * columns.outputs > 4 * columns.nnz + 4096:
        return None
    begins = tile_starts(columns, most_inputs=inputs, most_outputs=outputs)
    if begins is None:
        return None
    tiles = len(begins) - 1
    strip, threads = stage.strips(lines, images * tiles * WARP)
    jobs = threads // WARP
    return stage.launch(
        programs.kernel("march_rows", stage.formats, each, taps),
        jobs,
        *((np.uint64(0),) * 3 if rows is None else stage.bands(rows)),
        *(*stage.spans(columns), stage.table(_weights_by_tap(columns)), stage.table(begins)),
        *(jobs, lines if rows is None else rows.inputs, lines),
        *(columns.inputs, columns.outputs, channels, tiles, strip, is_wide),
        stage.fill_bits,
        per_block=WARPS,
        block=_WARPS,
    )


def _march_channels(stage: Stage, maps: Maps, outer: int, channels: int) -> Launch | None:
    """March over ascending columns, each read by few outputs."""
    rows, columns = maps
    if not columns.is_increasing:
        return None
    by_input = columns.adjoint()
    most = _least(programs.OPEN, _most_taps(by_input))
    if most is None:
        return None
    vector = stage.vector(channels)
    threads = outer * rows.outputs * (channels // vector)
    strip, jobs = stage.strips(columns.outputs, threads)
    records = stage.table(_records(by_input, stage.compute, most))
    return stage.launch(
        programs.kernel("march_channels", stage.formats, vector, most),
        jobs,
        *(*stage.bands(rows), *stage.spans(columns), records, jobs),
        *(rows.inputs, rows.outputs, columns.inputs, columns.outputs, channels, strip),
        stage.fill_bits,
    )


def _gather_taps(stage: Stage, maps: Maps, outer: int, channels: int) -> Launch | None:
    """Gather the few taps of each output.

    It needs at least as many outputs as inputs.
    """
    rows, columns = maps
    in_row, out_row = columns.inputs * channels, columns.outputs * channels
    taps = _least(programs.FEW_TAPS, max(map(_most_taps, maps)))
    if taps is None or in_row > out_row or out_row > MOST:
        return None
    lanes = programs.lanes(stage.formats[1])
    vector = min(4, lanes) if taps > 1 else lanes
    if out_row % vector:
        return None
    strip, jobs = stage.strips(rows.outputs, outer * (out_row // vector))
    return stage.launch(
        programs.kernel("gather_taps", stage.formats, taps),
        jobs,
        *(*stage.bands(rows), *stage.bands(columns), jobs),
        *(rows.inputs, rows.outputs, in_row, out_row, channels, strip),
        stage.fill_bits,
    )


def blocks(jobs: int, *, per_block: int) -> Dim3:
    """Return the grid for a number of jobs.

    A job is that of a thread, a warp or a block.

    Raises ValueError if one launch cannot index them.
    """
    grid = -(-jobs // per_block)
    if jobs > _MOST_JOBS or grid > _MOST_BLOCKS:
        raise ValueError(f"{jobs} jobs are too many for one launch: split the tensor")
    return (grid, 1, 1)


def step_tiles(vectors: int, *, overlap: bool) -> tuple[int, int, int]:
    """Split a row of vectors into the fewest warps of march_steps.

    Returns lanes, margin and tiles.

    lanes is the width of a tile. If tiles overlap, neighbors compute the margin on both sides.
    """
    splits = [
        (lanes, margin, -(-vectors // (lanes - 2 * margin)))
        for lanes in range(1, WARP + 1)
        if lanes > 2 * (margin := int(overlap and lanes < vectors))
    ]
    return min(splits, key=lambda one: (one[2] / (WARP // one[0]), one[2]))


def tile_starts(bands: BandedMap, *, most_inputs: int, most_outputs: int) -> Array | None:
    """Split outputs into tiles that read few inputs together.

    Returns int64[tiles + 1], the first output of each; None if one band alone reads too many.
    """
    low, high = bands.start, bands.stop
    if not bands.is_increasing:
        low, high = -high, -low
    if int((high - low).max(initial=0)) > most_inputs:
        return None
    begins = [0]
    while begins[-1] < bands.outputs:
        first = begins[-1]
        stop = int(np.searchsorted(high, low.item(first) + most_inputs, "right"))
        begins.append(min(stop, first + most_outputs, bands.outputs))
    return np.array(begins)


def check_indices(bands: BandedMap) -> None:
    """Raise ValueError if indices of a map take more than 32 bits."""
    if max(bands.inputs, bands.outputs, bands.nnz) >= MOST:
        raise ValueError(
            f"a map has {bands.inputs} inputs, {bands.outputs} outputs and {bands.nnz} weights; "
            f"CUDA kernels index up to {MOST - 1}"
        )


def _records(by_input: BandedMap, compute: np.dtype[Any], most: int) -> Array:
    """Return a record of outputs and weights for each input.

    The map must be ascending.

    by_input  the map's adjoint, with at most `most` taps

    weight  compute[most], 0 beyond count
    first   int32, the first output that reads the input
    count   int32, the number of outputs that read it

    Records are padded to multiples of 16 bytes.
    """
    padding = -(most * compute.itemsize + 8) % _RECORD_BYTES
    numbers = ("weight", compute, most), ("first", np.int32), ("count", np.int32)
    made = np.zeros(by_input.outputs, [*numbers, ("padding", np.uint8, padding)])
    made["first"], made["count"] = by_input.start, by_input.counts
    owner, tap = _owners(by_input)
    made["weight"][owner, tap] = by_input.weight
    return made


def selects(bands: BandedMap, compute: np.dtype[Any]) -> bool:
    """Return whether every output is one input unchanged, or has no taps."""
    return _most_taps(bands) <= 1 and bool((bands.weight.astype(compute) == 1).all())


def has_steps(bands: BandedMap, step: int, halo: int) -> bool:
    """Return whether bands advance by equal steps.

    They may be cut off at the ends of the axis only. Output i reads the inputs step*i - halo ..
    step*(i+1) + halo - 1 that exist, and step * outputs == inputs.
    """
    if step * bands.outputs != bands.inputs:
        return False
    first = np.arange(bands.outputs) * step - halo
    stop = (first + step + 2 * halo).clip(max=bands.inputs)
    return bool((bands.start == first.clip(0)).all() and (bands.stop == stop).all())


def _padded_weights(bands: BandedMap, step: int, halo: int) -> Array:
    """Return the padded weights of a map with equal steps.

    The array is [outputs, step + 2 * halo]. Weights beyond the axis are -0. A tap of weight -0 on a
    +0 gives -0, which changes no sum.
    """
    made = np.full((bands.outputs, step + 2 * halo), -0.0)
    owner, tap = _owners(bands)
    missing = (bands.start - (np.arange(bands.outputs) * step - halo))[owner]
    made[owner, tap + missing] = bands.weight
    return made


def _weights_by_tap(bands: BandedMap) -> Array:
    """Return [most taps, outputs] weights, 0 beyond counts: neighboring outputs are contiguous."""
    made = np.zeros((_most_taps(bands), bands.outputs))
    owner, tap = _owners(bands)
    made[tap, owner] = bands.weight
    return made


def _most_taps(bands: BandedMap) -> int:
    return int(bands.counts.max(initial=0))


def _least(sizes: Sequence[int], needed: int) -> int | None:
    """Return the first size that is large enough, if any."""
    return next((one for one in sizes if needed <= one), None)


def _owners(bands: BandedMap) -> tuple[Array, Array]:
    """Return each weight's output, and its number among the output's taps."""
    owner = np.arange(bands.outputs).repeat(bands.counts)
    return owner, np.arange(bands.nnz) - bands.offset[owner]
