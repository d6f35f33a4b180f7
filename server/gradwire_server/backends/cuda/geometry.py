"""Grids, strips and tiles of launches, and tables of maps for kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gradwire_server.backends.cuda.programs import Dim3
from gradwire_server.plans import BandedMap

Array = npt.NDArray[Any]

THREADS = 256
WARP = 32
WARPS = THREADS // WARP

# CUDA's limit of blocks along x, on every device.
_MOST_BLOCKS = 2**31 - 1
# Kernels number their jobs in 32 bits, and elements of tensors in 64.
_MOST_JOBS = 2**32 - THREADS

# Blocks of a kernel whose threads loop.
_MOST_LOOPED = 1 << 20

# Threads per multiprocessor that hide latencies: twice as many as are resident.
_THREADS_WANTED = 2 * 2048

# Longest strip: outputs along an axis of one thread or warp.
LONGEST_STRIP = 64

# contiguous_pass: elements that are staged in shared memory at once.
STAGED = 2048
# contiguous_pass: most rows of a block, so that it reads some neighbors of each.
_MOST_ROWS = 64

# Limit of indices in 32 bits, with room for a place beyond the last tile.
MOST = 2**31 - 2**16

# Kernels read records as vectors of so many bytes.
_RECORD_BYTES = 16


def blocks(jobs: int, *, per_block: int) -> Dim3:
    """Return the grid for a number of jobs, of a thread, a warp or a block each.

    Raises ValueError if one launch cannot number them.
    """
    grid = -(-jobs // per_block)
    if jobs > _MOST_JOBS or grid > _MOST_BLOCKS:
        raise ValueError(f"{jobs} jobs are too many for one launch: split the tensor")
    return (grid, 1, 1)


def blocks_of_loop(elements: int) -> Dim3:
    """Return the grid of a kernel that loops over elements: a thread each, up to a limit."""
    return (min(-(-elements // THREADS), _MOST_LOOPED), 1, 1)


def strip(outputs: int, *, threads: int, multiprocessors: int, most: int = LONGEST_STRIP) -> int:
    """Return how many outputs along an axis one thread computes, one after the other.

    threads  that compute one output each

    The strip is about as long as possible with enough threads to fill the device; longer if one
    launch could not number its threads otherwise. All strips are about as long.
    """
    length = most
    while length > 1 and threads * -(-outputs // length) < multiprocessors * _THREADS_WANTED:
        length //= 2
    while length < outputs and threads * -(-outputs // length) > _MOST_JOBS:
        length *= 2
    strips = -(-outputs // length)
    return -(-outputs // strips)


def rows_of_block(outer: int, outputs: int) -> tuple[int, int]:
    """Return the rows of a block of contiguous_pass and its outputs of each: a thread for each."""
    tile = min(outputs, THREADS)
    return max(1, min(THREADS // tile, outer, _MOST_ROWS)), tile


def step_tiles(vectors: int, *, overlap: bool) -> tuple[int, int, int]:
    """Return how march_steps splits a row of vectors, in the fewest warps: lanes, margin, tiles.

    A tile has so many lanes; where tiles overlap, a margin on both sides is its neighbors' work.
    """
    splits = list[tuple[int, int, int]]()
    for lanes in range(1, WARP + 1):
        margin = int(overlap and lanes < vectors)
        if lanes > 2 * margin:
            splits.append((lanes, margin, -(-vectors // (lanes - 2 * margin))))
    return min(splits, key=lambda one: (one[2] / (WARP // one[0]), one[2]))


def tiles(bands: BandedMap, *, most_inputs: int, most_outputs: int) -> Array | None:
    """Split outputs into tiles that read few inputs together.

    Returns int32[tiles + 1], the first output of each; None if one band alone reads too many.
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
    return np.array(begins, np.int32)


def check_indices(bands: BandedMap) -> None:
    """Raise ValueError if an index of a map takes more than 32 bits."""
    if max(bands.inputs, bands.outputs, bands.nnz) >= MOST:
        raise ValueError(
            f"a map has {bands.inputs} inputs, {bands.outputs} outputs and {bands.nnz} weights; "
            f"CUDA kernels index up to {MOST - 1}"
        )


def reach(bands: BandedMap) -> int:
    """Return the most outputs that read one input, of an ascending map."""
    inputs = np.arange(bands.inputs)
    begun = np.searchsorted(bands.start, inputs, "right")
    ended = np.searchsorted(bands.stop, inputs, "right")
    return int((begun - ended).max(initial=0))


def records(bands: BandedMap, compute: np.dtype[Any], most: int) -> Array:
    """Return the outputs and weights of each input of an ascending map: a record for each input.

    weight  compute[most], 0 beyond count
    first   int32, the first output that reads the input
    count   int32, the number of outputs that read it

    Records are padded to multiples of 16 bytes.
    """
    size = most * compute.itemsize + 8
    kind = np.dtype(
        {
            "names": ["weight", "first", "count"],
            "formats": [(compute, (most,)), np.int32, np.int32],
            "offsets": [0, size - 8, size - 4],
            "itemsize": -(-size // _RECORD_BYTES) * _RECORD_BYTES,
        }
    )
    columns = bands.adjoint()
    made = np.zeros(bands.inputs, kind)
    made["first"], made["count"] = columns.start, columns.counts
    owner, tap = _owners(columns)
    made["weight"][owner, tap] = columns.weight
    return made


def selects(bands: BandedMap, compute: np.dtype[Any]) -> bool:
    """Return whether every output is one input unchanged, or has no taps."""
    most = int(bands.counts.max(initial=0))
    return most <= 1 and bool((bands.weight.astype(compute) == 1).all())


def selected(bands: BandedMap) -> Array:
    """Return the one input of each output, -1 without taps: int32[outputs]."""
    check_indices(bands)
    return np.where(bands.counts == 0, -1, bands.start).astype(np.int32)


def has_steps(bands: BandedMap, step: int, halo: int) -> bool:
    """Return whether bands advance by equal steps and are cut off at the ends of the axis only.

    Output i reads the inputs step*i - halo .. step*(i+1) + halo - 1 that exist, and
    step * outputs == inputs.
    """
    if step * bands.outputs != bands.inputs:
        return False
    first = np.arange(bands.outputs) * step - halo
    stop = (first + step + 2 * halo).clip(max=bands.inputs)
    return bool((bands.start == first.clip(0)).all() and (bands.stop == stop).all())


def padded_weights(bands: BandedMap, compute: np.dtype[Any], step: int, halo: int) -> Array:
    """Return [outputs, step + 2 * halo] weights of a map with such steps, -0 beyond the axis.

    A tap of weight -0 on a +0 gives -0, which changes no sum.
    """
    check_indices(bands)
    made = np.full((bands.outputs, step + 2 * halo), -0.0, compute)
    owner, tap = _owners(bands)
    missing = (bands.start - (np.arange(bands.outputs) * step - halo))[owner]
    made[owner, tap + missing] = bands.weight
    return made


def is_ragged(bands: BandedMap) -> bool:
    """Return whether weights by tap would take much more memory than the weights themselves."""
    return int(bands.counts.max(initial=0)) * bands.outputs > 4 * bands.nnz + 4096


def weights_by_tap(bands: BandedMap, compute: np.dtype[Any]) -> Array:
    """Return [most taps, outputs] weights, 0 beyond counts: neighbors lie side by side."""
    made = np.zeros((int(bands.counts.max(initial=0)), bands.outputs), compute)
    owner, tap = _owners(bands)
    made[tap, owner] = bands.weight
    return made


def _owners(bands: BandedMap) -> tuple[Array, Array]:
    """Return the output of each weight, and its number among the output's taps."""
    owner = np.arange(bands.outputs).repeat(bands.counts)
    return owner, np.arange(bands.nnz) - bands.offset[owner]
