"""Grids, strips and tiles of the CUDA kernels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_server.backends.cuda import geometry

LENGTHS = st.one_of(st.integers(1, 300), st.integers(1, 2**33))
MULTIPROCESSORS = st.integers(1, 300)


@given(jobs=LENGTHS, per_block=st.sampled_from([1, 8, 16, 256]))
def test_a_grid_holds_every_job_and_no_idle_block(jobs: int, per_block: int) -> None:
    try:
        x, y, z = geometry.blocks(jobs, per_block=per_block)
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
    x, y, z = geometry.blocks_of_loop(numbers)
    assert (y, z) == (1, 1)
    assert 1 <= x <= min(-(-numbers // geometry.THREADS), 2**31 - 1)


@given(outputs=LENGTHS, threads=LENGTHS, multiprocessors=MULTIPROCESSORS)
def test_strips_cover_an_axis_in_about_equal_parts(
    outputs: int, threads: int, multiprocessors: int
) -> None:
    strip = geometry.strip(outputs, threads=threads, multiprocessors=multiprocessors)
    strips = -(-outputs // strip)
    assert 1 <= strip <= outputs
    # No strip is empty, and no split into as many has shorter ones.
    assert (strips - 1) * strip < outputs <= strips * strip
    assert (strip - 1) * strips < outputs


@given(outputs=LENGTHS, threads=st.integers(1, 2**31))
def test_strips_are_long_enough_to_be_numbered_in_32_bits(outputs: int, threads: int) -> None:
    strip = geometry.strip(outputs, threads=threads, multiprocessors=132)
    assert threads * -(-outputs // strip) <= 2**32 - 256


def test_many_threads_take_long_strips_and_few_take_short_ones() -> None:
    assert geometry.strip(512, threads=2**22, multiprocessors=132) == geometry.LONGEST_STRIP
    assert geometry.strip(512, threads=100, multiprocessors=132) == 1


@given(outer=LENGTHS, outputs=LENGTHS)
def test_a_block_has_a_thread_for_each_result_of_its_rows(outer: int, outputs: int) -> None:
    rows, tile = geometry.rows_of_block(outer, outputs)
    assert 1 <= rows <= outer
    assert 1 <= tile <= outputs
    assert rows * tile <= geometry.THREADS
    assert rows == 1 or tile == outputs
    assert geometry.STAGED // rows >= geometry.WARP


@given(vectors=st.integers(1, 2**29))
def test_tiles_of_a_row_waste_less_than_one_of_them(vectors: int) -> None:
    lanes, tiles = geometry.step_tiles(vectors)
    assert geometry.WARP % lanes == 0
    assert (tiles - 1) * lanes < vectors <= tiles * lanes


@pytest.mark.parametrize(
    ("vectors", "lanes", "tiles"), [(1, 1, 1), (7, 8, 1), (8, 8, 1), (33, 8, 5), (64, 32, 2)]
)
def test_tiles_of_a_row_leave_few_lanes_idle(vectors: int, lanes: int, tiles: int) -> None:
    assert geometry.step_tiles(vectors) == (lanes, tiles)
