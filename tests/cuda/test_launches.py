"""Grids, strips and tiles of the CUDA kernels' launches."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_server.backends.cuda import launches
from gradwire_server.backends.cuda.launches import Stage
from gradwire_server.plans import BandedMap
from support.oracles import oracles

SINGLE = np.dtype(np.float32)
STAGE = Stage(132, (SINGLE, SINGLE))

LENGTHS = st.one_of(st.integers(1, 300), st.integers(1, 2**33))


@given(jobs=LENGTHS, per_block=st.sampled_from([1, 8, 16, 256]))
def test_a_grid_holds_every_job_and_no_idle_block(jobs: int, per_block: int) -> None:
    try:
        x, y, z = launches.blocks(jobs, per_block=per_block)
    except ValueError:
        # Threads must be able to number jobs in 32 bits, also those of the last block.
        assert jobs > 2**32 - 256 or jobs > per_block * (2**31 - 1)
        return
    assert (y, z) == (1, 1)
    assert 1 <= x <= 2**31 - 1
    assert (x - 1) * per_block < jobs <= x * per_block
    assert x * per_block <= 2**32


@given(numbers=st.integers(1, 2**40))
def test_threads_that_loop_have_a_grid_of_any_device(numbers: int) -> None:
    gaps = BandedMap(2, 1, np.array([0, 0]), np.array([0, 1, 1]), np.array([1.0]))
    x, y, z = launches.fill_bands(STAGE, gaps, outer=numbers, inner=1).grid
    assert (y, z) == (1, 1)
    assert 1 <= x <= min(-(-numbers // launches.THREADS), 2**31 - 1)


@given(outputs=LENGTHS, threads=LENGTHS, multiprocessors=st.integers(1, 300))
def test_strips_cover_an_axis_in_about_equal_parts(
    outputs: int, threads: int, multiprocessors: int
) -> None:
    strip, jobs = Stage(multiprocessors, (SINGLE, SINGLE)).strips(outputs, threads=threads)
    strips = -(-outputs // strip)
    assert jobs == threads * strips
    assert 1 <= strip <= outputs
    # No strip is empty, and no split into as many has shorter ones.
    assert (strips - 1) * strip < outputs <= strips * strip
    assert (strip - 1) * strips < outputs


@given(outputs=LENGTHS, threads=st.integers(1, 2**31))
def test_strips_are_long_enough_to_be_numbered_in_32_bits(outputs: int, threads: int) -> None:
    assert STAGE.strips(outputs, threads=threads)[1] <= 2**32 - 256


def test_many_threads_take_long_strips_and_few_take_short_ones() -> None:
    assert STAGE.strips(512, threads=2**22)[0] == launches.LONGEST_STRIP
    assert STAGE.strips(512, threads=100)[0] == 1


@given(vectors=st.integers(1, 2**29), overlap=st.booleans())
def test_tiles_of_a_row_cover_it_and_overlap_where_they_read_their_neighbors(
    *, vectors: int, overlap: bool
) -> None:
    lanes, margin, tiles = launches.step_tiles(vectors, overlap=overlap)
    assert 1 <= lanes <= launches.WARP
    assert margin == int(overlap and lanes < vectors)
    written = lanes - 2 * margin
    assert (tiles - 1) * written < vectors <= tiles * written
    assert tiles == 1 or margin == int(overlap)


@pytest.mark.parametrize(
    ("vectors", "split"),
    [
        (1, (1, 0, 1)),
        (7, (7, 0, 1)),
        (14, (14, 0, 1)),
        (32, (32, 0, 1)),
        (33, (13, 1, 3)),
        (240, (32, 1, 8)),
    ],
)
def test_tiles_of_a_row_leave_few_lanes_idle(vectors: int, split: tuple[int, int, int]) -> None:
    assert launches.step_tiles(vectors, overlap=True) == split


def test_tiles_without_a_halo_do_not_overlap() -> None:
    assert launches.step_tiles(33, overlap=False) == (1, 0, 33)


@given(
    bands=oracles.banded_maps(), step=st.sampled_from([1, 2, 4]), halo=st.sampled_from([0, 1, 2])
)
def test_a_map_has_steps_if_it_reads_all_that_they_say_and_nothing_else(
    bands: BandedMap, step: int, halo: int
) -> None:
    expected = step * bands.outputs == bands.inputs and all(
        [
            one
            for one in range(step * output - halo, step * (output + 1) + halo)
            if 0 <= one < bands.inputs
        ]
        == list(range(bands.start[output], bands.stop[output]))
        for output in range(bands.outputs)
    )
    assert launches.has_steps(bands, step, halo) == expected


@given(bands=oracles.banded_maps(), inputs=st.integers(1, 12), outputs=st.integers(1, 5))
def test_tiles_split_the_outputs_and_read_few_inputs(
    bands: BandedMap, inputs: int, outputs: int
) -> None:
    begins = launches.tile_starts(bands, most_inputs=inputs, most_outputs=outputs)
    widest = int(bands.counts.max(initial=0))
    assert (begins is None) == (widest > inputs)
    if begins is None:
        return
    assert begins[0] == 0
    assert begins[-1] == bands.outputs
    for first, stop in pairwise(begins):
        assert 1 <= stop - first <= outputs
        low, high = bands.start[first:stop].min(), bands.stop[first:stop].max()
        assert high - low <= inputs
