"""Grids, strips and tiles of the CUDA kernels, and their tables of maps."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import kernel_maps as maps
import oracles
from gradwire_server.backends.cuda import geometry, kernels
from gradwire_server.plans import BandedMap

DOUBLE = np.dtype(np.float64)
SINGLE = np.dtype(np.float32)

Kind = Callable[[int, int], BandedMap]
Matrix = npt.NDArray[np.float64]

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


@given(vectors=st.integers(1, 2**29), overlap=st.booleans())
def test_tiles_of_a_row_cover_it_and_overlap_where_they_read_their_neighbors(
    *, vectors: int, overlap: bool
) -> None:
    lanes, margin, tiles = geometry.step_tiles(vectors, overlap=overlap)
    assert 1 <= lanes <= geometry.WARP
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
    assert geometry.step_tiles(vectors, overlap=True) == split


def test_tiles_without_a_halo_do_not_overlap() -> None:
    assert geometry.step_tiles(33, overlap=False) == (1, 0, 33)


@given(bands=oracles.banded_maps())
def test_weights_by_tap_are_the_map(bands: BandedMap) -> None:
    weight = geometry.weights_by_tap(bands, DOUBLE)
    matrix = np.zeros((bands.outputs, bands.inputs))
    for output in range(bands.outputs):
        for tap in range(bands.counts[output]):
            matrix[output, bands.start[output] + tap] = weight[tap, output]
    np.testing.assert_array_equal(matrix, bands.dense())


# Most maps do not march: Hypothesis takes a few more tries for those that do.
@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(bands=oracles.banded_maps())
def test_records_of_inputs_are_the_map_by_columns(bands: BandedMap) -> None:
    assume(bands.is_increasing)
    most = geometry.reach(bands)
    assume(most)
    matrix = np.zeros((bands.outputs, bands.inputs))
    records = geometry.records(bands, DOUBLE, most)
    assert records.itemsize % 16 == 0
    for column, record in enumerate(records):
        assert record["count"] <= most
        for tap in range(record["count"]):
            matrix[record["first"] + tap, column] = record["weight"][tap]
    np.testing.assert_array_equal(matrix, bands.dense())
    # A thread that marches meets the outputs in their order.
    assert (np.diff(records["first"]) >= 0).all()


def _of_steps(weight: Matrix, step: int, halo: int) -> Matrix:
    """Return the matrix that march_steps applies."""
    outputs, taps = weight.shape
    matrix = np.zeros((outputs, step * outputs))
    for output in range(outputs):
        for tap in range(taps):
            column = step * output - halo + tap
            if 0 <= column < step * outputs:
                matrix[output, column] = weight[output, tap]
            else:
                assert weight[output, tap] == 0
                assert np.signbit(weight[output, tap])
    return matrix


UPSAMPLINGS = [(maps.nearest, 2, 0), (maps.linear, 2, 1), (maps.cubic, 2, 3), (maps.linear, 4, 2)]


@pytest.mark.parametrize("outputs", [1, 2, 3, 5, 64])
@pytest.mark.parametrize(("kind", "step", "halo"), UPSAMPLINGS)
def test_weights_by_step_are_the_map(kind: Kind, step: int, halo: int, outputs: int) -> None:
    bands = kind(outputs, step * outputs).adjoint()
    assert (step, halo) in kernels.STEPS
    assert geometry.has_steps(bands, step, halo)
    weight = geometry.padded_weights(bands, DOUBLE, step, halo)
    np.testing.assert_array_equal(_of_steps(weight, step, halo), bands.dense())


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
    assert geometry.has_steps(bands, step, halo) == expected


@given(bands=oracles.banded_maps(), inputs=st.integers(1, 12), outputs=st.integers(1, 5))
def test_tiles_split_the_outputs_and_read_few_inputs(
    bands: BandedMap, inputs: int, outputs: int
) -> None:
    begins = geometry.tiles(bands, most_inputs=inputs, most_outputs=outputs)
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


@given(bands=oracles.banded_maps())
def test_the_reach_of_a_map_is_its_widest_column(bands: BandedMap) -> None:
    assume(bands.is_increasing)
    assert geometry.reach(bands) == int(bands.adjoint().counts.max(initial=0))


def test_a_map_selects_where_each_output_is_an_input_or_nothing() -> None:
    grown, shrunk = maps.nearest(5, 10), maps.nearest(10, 5).adjoint()
    assert geometry.selects(grown, SINGLE)
    assert geometry.selected(grown).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert geometry.selects(shrunk, SINGLE)
    assert geometry.selected(shrunk).tolist() == [-1, 0, -1, 1, -1, 2, -1, 3, -1, 4]
    assert not geometry.selects(maps.nearest(5, 10).adjoint(), SINGLE)
    # A weight is 1 if it is so once it is rounded.
    nearly = maps.reweighted(grown, 1 + 2.0**-30)
    assert geometry.selects(nearly, SINGLE)
    assert not geometry.selects(nearly, DOUBLE)
