"""Laws of banded maps, and of making them from taps: widened no more than it takes."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gradwire_server.plans import BandedMap
from support.oracles import oracles


def of_taps(index: Any, weight: Any, inputs: int) -> BandedMap:
    return BandedMap.from_blocks([(np.array(index), np.array(weight, np.float32))], inputs=inputs)


@given(table=oracles.tap_tables())
def test_the_adjoint_of_the_adjoint_has_the_same_bits(table: oracles.TapTable) -> None:
    with np.errstate(all="ignore"):
        bands = table.map()
    oracles.assert_same_map(bands.adjoint().adjoint(), bands)


@settings(max_examples=300)
@given(bands=oracles.banded_maps())
def test_any_map_and_its_adjoint_are_transposes_and_undo_each_other(bands: BandedMap) -> None:
    adjoint = bands.adjoint()
    assert adjoint.nnz == bands.nnz
    oracles.same_bits(adjoint.dense(), bands.dense().T.copy())
    np.testing.assert_array_equal(oracles.covered(adjoint), oracles.covered(bands).T)
    # Empty bands alone give no direction: those of a map that descends by nothing else move.
    full = bands.counts > 0
    sides = set(zip(bands.start[full].tolist(), bands.stop[full].tolist(), strict=True))
    assume(bands.is_increasing or len(sides) > 1)
    oracles.assert_same_map(adjoint.adjoint(), bands)


def test_adjoints_of_shrinking_growing_and_equal_axes_are_transposes() -> None:
    for inputs, outputs in [(1, 9), (9, 1), (7, 20), (20, 7), (8, 16), (16, 8), (5, 5)]:
        table = oracles.linear_taps(inputs, outputs)
        np.testing.assert_array_equal(table.map().adjoint().dense(), table.dense().T)


@settings(max_examples=40, deadline=None)
@given(bands=oracles.banded_maps(most=5))
def test_every_window_is_a_block_of_the_matrix(bands: BandedMap) -> None:
    dense, inside = bands.dense(), oracles.covered(bands)
    pairs = itertools.combinations_with_replacement
    for (first, stop), (low, high) in itertools.product(
        pairs(range(bands.outputs + 1), 2), pairs(range(bands.inputs + 1), 2)
    ):
        window, block = bands.window(first, stop, low, high), dense[first:stop, low:high]
        assert window.dense().tobytes() == np.ascontiguousarray(block).tobytes()
        assert (oracles.covered(window) == inside[first:stop, low:high]).all()


def test_a_window_that_cuts_no_band_shares_its_weights() -> None:
    bands = oracles.linear_taps(100, 50).map()
    window = bands.window(10, 20, int(bands.start[10]), int(bands.stop[19]))
    assert np.shares_memory(window.weight, bands.weight)
    assert window.nnz == 20


def test_only_the_identity_is_the_identity() -> None:
    index, one = np.arange(4)[:, None], np.ones((4, 1))
    assert BandedMap.from_blocks([(index, one)], inputs=4).is_identity
    for taps, weight, inputs in (
        (index, one, 5),
        (index[::-1], one, 4),
        (index, one * (1 + 2**-52), 4),
        (np.zeros_like(index), one, 4),
    ):
        assert not BandedMap.from_blocks([(taps, weight)], inputs=inputs).is_identity


@pytest.mark.parametrize(
    ("start", "inputs", "message"),
    [
        ([0, 1], 2, r"cover the inputs 0 \.\. 2; there are 0 \.\. 1"),
        ([-1, 1], 3, r"cover the inputs -1 \.\. 2"),
    ],
)
def test_bands_beyond_the_inputs_are_refused(start: list[int], inputs: int, message: str) -> None:
    offset, weight = np.array([0, 2, 4]), np.ones(4)
    BandedMap(2, 3, np.array([0, 1]), offset, weight)
    with pytest.raises(ValueError, match=message):
        BandedMap(2, inputs, np.array(start), offset, weight)


@given(bands=oracles.banded_maps())
def test_is_increasing_means_both_sides_ascend(bands: BandedMap) -> None:
    start, stop = bands.start.tolist(), bands.stop.tolist()
    assert bands.is_increasing == (start == sorted(start) and stop == sorted(stop))


@settings(max_examples=300, deadline=None)
@given(table=oracles.tap_tables())
def test_bands_hold_exactly_what_the_taps_add_up_to(table: oracles.TapTable) -> None:
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(table.map().dense(), table.dense())


@settings(max_examples=300, deadline=None)
@given(table=oracles.tap_tables(), data=st.data())
def test_blocks_of_outputs_give_the_map_of_all_of_them(
    table: oracles.TapTable, data: st.DataObject
) -> None:
    outputs = len(table.index)
    cuts = sorted(data.draw(st.lists(st.integers(0, outputs), max_size=4)))
    blocks = [
        (table.index[low:high], table.weight[low:high])
        for low, high in itertools.pairwise([0, *cuts, outputs])
    ]
    with np.errstate(all="ignore"):
        parts = BandedMap.from_blocks(blocks, inputs=table.inputs)
        oracles.assert_same_map(parts, table.map())


def test_taps_on_one_input_are_added_in_their_order_in_their_own_type() -> None:
    big = 2**24
    bands = of_taps([[1, 0, 1, 1], [1, 1, 0, 1]], [[big, 5, 1, 1], [1, 1, 5, big]], 2)
    np.testing.assert_array_equal(bands.dense(), [[5, 2**24], [5, 2**24 + 2]])


def test_weights_are_widened_and_never_rounded() -> None:
    weight = np.array([[1 / 3], [1 / 3]])
    for kind in (np.float32, np.float64):
        bands = BandedMap.from_blocks([(np.array([[0], [1]]), weight.astype(kind))], inputs=2)
        np.testing.assert_array_equal(bands.weight, weight.astype(kind)[:, 0].astype(np.float64))


def test_taps_that_cancel_leave_no_band() -> None:
    assert of_taps([[2, 2]], [[0.5, -0.5]], 5).nnz == 0


def test_a_band_runs_from_the_first_to_the_last_weight_and_keeps_the_zeros_between() -> None:
    bands = of_taps([range(6)], [[0, 2, 0, -0.0, 3, 0]], 6)
    assert (bands.start.tolist(), bands.stop.tolist()) == ([1], [5])
    oracles.same_bits(bands.weight, np.array([2, 0, -0.0, 3]))


def test_a_trimmed_row_between_two_wide_ones_is_widened_with_zeros() -> None:
    index = [[0, 1, 2, 3], [1, 1, 1, 1], [0, 1, 2, 3]]
    bands = of_taps(index, [[1, 2, 3, 4], [1, 0, 0, 0], [5, 6, 7, 8]], 4)
    assert bands.counts.tolist() == [4, 4, 4]
    assert bands.weight[4:8].tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("firsts", "starts", "stops"),
    [
        ([None, 0, 2], [0, 0, 2], [0, 2, 4]),
        ([0, 2, None], [0, 2, 4], [2, 4, 4]),
        ([0, None, 2], [0, 2, 2], [2, 2, 4]),
        ([0, None, 1], [0, 1, 1], [2, 2, 3]),
        ([None, None], [0, 0], [0, 0]),
    ],
    ids=["before", "after", "between apart", "between overlapping", "alone"],
)
def test_an_output_without_weights_stays_empty_unless_its_neighbors_overlap(
    firsts: list[int | None], starts: list[int], stops: list[int]
) -> None:
    index = [[first or 0, (first or 0) + 1] for first in firsts]
    bands = of_taps(index, [[first is not None] * 2 for first in firsts], 4)
    assert (bands.start.tolist(), bands.stop.tolist()) == (starts, stops)


@pytest.mark.parametrize("outputs", range(1, 12))
@pytest.mark.parametrize("inputs", range(1, 12))
def test_cubic_rows_with_zeros_inside_keep_their_matrix_and_its_adjoint(
    inputs: int, outputs: int
) -> None:
    table = oracles.cubic_taps(inputs, outputs)
    bands = table.map()
    np.testing.assert_array_equal(bands.dense(), table.dense())
    np.testing.assert_array_equal(bands.adjoint().dense(), table.dense().T)
    oracles.assert_same_map(bands.adjoint().adjoint(), bands)


def test_cubic_tables_do_need_widening() -> None:
    # Three taps of a whole coordinate are 0, between neighbors of four.
    assert (oracles.cubic_taps(9, 15).map().weight == 0).any()


def columns_between(matrix: oracles.Matrix) -> int:
    """Count what ascending bands must hold.

    That is input c at output o, if some output up to o reads c or beyond, and some output from o on
    reads c or before.
    """
    read = matrix != 0
    beyond = np.logical_or.accumulate(np.logical_or.accumulate(read[:, ::-1], 1)[:, ::-1], 0)
    before = np.logical_or.accumulate(np.logical_or.accumulate(read, 1)[::-1], 0)[::-1]
    return int(np.sum(beyond & before))


@settings(max_examples=300, deadline=None)
@given(table=oracles.tap_tables(most=6))
def test_bands_are_widened_by_the_least_that_either_direction_takes(
    table: oracles.TapTable,
) -> None:
    with np.errstate(all="ignore"):
        matrix, bands = table.dense(), table.map()
    up, down = columns_between(matrix), columns_between(matrix[::-1])
    assert bands.nnz == min(up, down)
    assert bands.is_increasing or down < up


def test_a_reversed_axis_descends_without_added_weights() -> None:
    table = oracles.linear_taps(5, 9)
    bands = BandedMap.from_blocks([(table.index[::-1], table.weight[::-1])], inputs=5)
    assert not bands.is_increasing
    assert bands.nnz == table.map().nnz
    np.testing.assert_array_equal(bands.dense(), table.dense()[::-1])


@pytest.mark.slow
def test_an_axis_of_ten_million_takes_memory_in_proportion_to_its_length() -> None:
    outputs, inputs = 5_000_000, 10_000_000
    index = np.arange(inputs).reshape(outputs, 2)
    weight = np.full((outputs, 2), np.float32(0.5))
    tracemalloc.start()
    try:
        bands = BandedMap.from_blocks([(index, weight)], inputs=inputs).adjoint()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (bands.outputs, bands.nnz) == (inputs, inputs)
    assert peak < 100 * (inputs + outputs)
