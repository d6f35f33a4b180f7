"""Grids, strips and tiles."""

from __future__ import annotations

from typing import NamedTuple

from gradwire_server.backends.cuda.programs import Dim3

THREADS = 256
WARP = 32
WARPS = THREADS // WARP

# Of every CUDA device: the most blocks along x.
_MOST_BLOCKS = 2**31 - 1
# Kernels number their jobs in 32 bits; what they read and write they count in 64.
_MOST_JOBS = 2**32 - THREADS

# Blocks of a kernel whose threads loop.
_MOST_LOOPED = 1 << 20

# Threads of one multiprocessor that hide each other's waiting, a few times over.
_THREADS_WANTED = 2 * 2048

# Outputs along an axis that one thread or warp makes, at most.
LONGEST_STRIP = 64

# Of contiguous_pass: numbers of rows that are staged in shared memory at once.
STAGED = 2048
# Rows of one block, so that it reads some neighbors of each.
_MOST_ROWS = 64

# Of march_steps: lanes that a tile has where a row fills so many.
_LEAST_LANES = 8


class StepTiles(NamedTuple):
    """How march_steps splits a row: so many lanes, a power of 2, to each of so many tiles."""

    lanes: int
    tiles: int


class Rows(NamedTuple):
    """What a block of contiguous_pass does: so many rows, of each so many outputs at once."""

    rows: int
    tile: int


def blocks(jobs: int, *, per_block: int) -> Dim3:
    """Return a grid for so many jobs, of a thread, a warp or a block each.

    Raises ValueError where one launch cannot do so many.
    """
    grid = -(-jobs // per_block)
    if jobs > _MOST_JOBS or grid > _MOST_BLOCKS:
        raise ValueError(f"{jobs} jobs are too many for one launch: split the tensor")
    return (grid, 1, 1)


def blocks_of_loop(numbers: int) -> Dim3:
    """Return a grid for so many numbers, a thread each; it loops over what is beyond it."""
    return (min(-(-numbers // THREADS), _MOST_LOOPED), 1, 1)


def strip(outputs: int, *, threads: int, multiprocessors: int, most: int = LONGEST_STRIP) -> int:
    """Return how many outputs of an axis are made one after the other.

    threads  how many there are for one output

    About the most that leaves enough threads to fill the device; more where there would be more
    threads than one launch can have. All strips are about as long.
    """
    length = most
    while length > 1 and threads * -(-outputs // length) < multiprocessors * _THREADS_WANTED:
        length //= 2
    while length < outputs and threads * -(-outputs // length) > _MOST_JOBS:
        length *= 2
    strips = -(-outputs // length)
    return -(-outputs // strips)


def rows_of_block(outer: int, outputs: int) -> Rows:
    """Return how a block of contiguous_pass shares its threads: one for each result."""
    tile = min(outputs, THREADS)
    return Rows(max(1, min(THREADS // tile, outer, _MOST_ROWS)), tile)


def step_tiles(vectors: int) -> StepTiles:
    """Return how march_steps splits a row of so many vectors: with the fewest lanes idle."""
    if vectors <= _LEAST_LANES:
        return StepTiles(1 << (vectors - 1).bit_length(), 1)
    widths = [WARP >> n for n in range(3)]
    lanes = min(widths, key=lambda lanes: -vectors % lanes)
    return StepTiles(lanes, -(-vectors // lanes))
