"""Laws of banded maps, and of making them from taps: widened no more than it takes."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gradwire_server.plans import BandedMap
from support.oracles import oracles


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


@settings(max_examples=40, deadline=None)
@given(bands=oracles.banded_maps(most=5))
def test_every_window_is_a_block_of_the_matrix(bands: BandedMap) -> None:
    dense, inside = bands.dense(), oracles.covered(bands)
    outputs, inputs = bands.outputs, bands.inputs
    for first in range(outputs + 1):
        for stop in range(first, outputs + 1):
            for low in range(inputs + 1):
                for high in range(low, inputs + 1):
                    window = bands.window(first, stop, low, high)
                    block = dense[first:stop, low:high]
                    oracles.same_bits(window.dense(), np.ascontiguousarray(block))
                    covered = inside[first:stop, low:high]
                    np.testing.assert_array_equal(oracles.covered(window), covered)


def test_a_window_that_cuts_no_band_shares_its_weights() -> None:
    bands = oracles.linear_taps(100, 50).map()
    low, high = int(bands.start[10]), int(bands.stop[19])
    window = bands.window(10, 20, low, high)
    assert np.shares_memory(window.weight, bands.weight)
    assert window.nnz == 20


def test_only_the_identity_is_the_identity() -> None:
    index = np.arange(4)[:, None]
    one = np.ones((4, 1))
    assert BandedMap.from_taps(index, one, inputs=4).is_identity
    assert not BandedMap.from_taps(index, one, inputs=5).is_identity
    assert not BandedMap.from_taps(index[::-1], one, inputs=4).is_identity
    assert not BandedMap.from_taps(index, one * (1 + 2**-52), inputs=4).is_identity
    assert not BandedMap.from_taps(np.zeros_like(index), one, inputs=4).is_identity


@pytest.mark.parametrize(
    ("start", "inputs", "message"),
    [
        ([0, 1], 2, r"cover the inputs 0 \.\. 2; there are 0 \.\. 1"),
        ([-1, 1], 3, r"cover the inputs -1 \.\. 2"),
    ],
)
def test_bands_beyond_the_inputs_are_refused(start: list[int], inputs: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BandedMap(2, inputs, np.array(start), np.array([0, 2, 4]), np.ones(4))


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
        whole = table.map()
        parts = BandedMap.from_blocks(blocks, inputs=table.inputs)
    oracles.assert_same_map(parts, whole)


def test_a_band_runs_from_the_first_to_the_last_weight_and_keeps_the_zeros_between() -> None:
    index = np.arange(6)[None]
    bands = BandedMap.from_taps(index, np.array([[0, 2, 0, -0.0, 3, 0]], np.float32), inputs=6)
    assert (bands.start.tolist(), bands.stop.tolist()) == ([1], [5])
    oracles.same_bits(bands.weight, np.array([2, 0, -0.0, 3]))


def _columns_between(matrix: oracles.Matrix) -> int:
    """Count what ascending bands must hold.

    That is input c at output o, if some output up to o reads c or beyond, and some output from o on
    reads c or before.
    """
    outputs, inputs = matrix.shape
    beyond = [[matrix[: o + 1, c:].any() for c in range(inputs)] for o in range(outputs)]
    before = [[matrix[o:, : c + 1].any() for c in range(inputs)] for o in range(outputs)]
    return int(np.sum(np.array(beyond) & np.array(before)))


@settings(max_examples=300, deadline=None)
@given(table=oracles.tap_tables(most=6))
def test_bands_are_widened_by_the_least_that_either_direction_takes(
    table: oracles.TapTable,
) -> None:
    with np.errstate(all="ignore"):
        matrix, bands = table.dense(), table.map()
    up, down = _columns_between(matrix), _columns_between(matrix[::-1])
    assert bands.nnz == min(up, down)
    assert bands.is_increasing or down < up


@pytest.mark.slow
def test_an_axis_of_ten_million_takes_memory_in_proportion_to_its_length() -> None:
    outputs, inputs = 5_000_000, 10_000_000
    index = np.arange(inputs).reshape(outputs, 2)
    weight = np.full((outputs, 2), np.float32(0.5))
    tracemalloc.start()
    try:
        bands = BandedMap.from_taps(index, weight, inputs=inputs).adjoint()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (bands.outputs, bands.nnz) == (inputs, inputs)
    assert peak < 100 * (inputs + outputs)
