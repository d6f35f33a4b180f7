"""Laws of banded maps, and of making them from taps: widened no more than it takes."""

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gradwire_server.plans import BandedMap
from support.examples import examples
from support.oracles import oracles


@examples(300)
@given(bands=oracles.banded_maps())
def test_any_map_and_its_adjoint_are_transposes_and_undo_each_other(bands):
    adjoint = bands.adjoint()
    assert adjoint.nnz == bands.nnz
    start, stop = bands.start.tolist(), bands.stop.tolist()
    assert bands.is_increasing == (start == sorted(start) and stop == sorted(stop))
    oracles.same_bits(adjoint.dense(), bands.dense().T.copy())
    np.testing.assert_array_equal(oracles.covered(adjoint), oracles.covered(bands).T)
    # Empty bands alone give no direction: those of a map that descends by nothing else move.
    full = bands.counts > 0
    sides = set(zip(bands.start[full].tolist(), bands.stop[full].tolist(), strict=True))
    assume(bands.is_increasing or len(sides) > 1)
    oracles.assert_same_map(adjoint.adjoint(), bands)


@examples(40)
@given(bands=oracles.banded_maps(most=5))
def test_every_window_is_a_block_of_the_matrix(bands):
    dense, inside = bands.dense(), oracles.covered(bands)
    pairs = itertools.combinations_with_replacement
    for (first, stop), (low, high) in itertools.product(
        pairs(range(bands.outputs + 1), 2), pairs(range(bands.inputs + 1), 2)
    ):
        window, block = bands.window(first, stop, low, high), dense[first:stop, low:high]
        assert window.dense().tobytes() == np.ascontiguousarray(block).tobytes()
        assert (oracles.covered(window) == inside[first:stop, low:high]).all()


def test_only_the_identity_is_the_identity():
    index, one = np.arange(4)[:, None], np.ones((4, 1))
    assert BandedMap.from_blocks([(index, one)], inputs=4).is_identity
    for taps, weight, inputs in (
        (index, one, 5),
        (index[::-1], one, 4),
        (index, one * (1 + 2**-52), 4),
        (np.zeros_like(index), one, 4),
    ):
        assert not BandedMap.from_blocks([(taps, weight)], inputs=inputs).is_identity


def test_bands_beyond_the_inputs_are_refused():
    offset, weight = np.array([0, 2, 4]), np.ones(4)
    BandedMap(2, 3, np.array([0, 1]), offset, weight)
    with pytest.raises(ValueError, match=r"cover the inputs 0 \.\. 2; there are 0 \.\. 1"):
        BandedMap(2, 2, np.array([0, 1]), offset, weight)
    with pytest.raises(ValueError, match=r"cover the inputs -1 \.\. 2"):
        BandedMap(2, 3, np.array([-1, 1]), offset, weight)


def columns_between(matrix):
    """Count what ascending bands must hold.

    That is input c at output o, if some output up to o reads c or beyond, and some output from o on
    reads c or before.
    """
    read = matrix != 0
    beyond = np.logical_or.accumulate(np.logical_or.accumulate(read[:, ::-1], 1)[:, ::-1], 0)
    before = np.logical_or.accumulate(np.logical_or.accumulate(read, 1)[::-1], 0)[::-1]
    return int(np.sum(beyond & before))


@examples(400)
@given(table=oracles.tap_tables(), data=st.data())
def test_bands_hold_exactly_what_the_taps_add_up_to_and_are_widened_by_the_least(table, data):
    outputs = len(table.index)
    cuts = sorted(data.draw(st.lists(st.integers(0, outputs), max_size=4)))
    blocks = [
        (table.index[low:high], table.weight[low:high])
        for low, high in itertools.pairwise([0, *cuts, outputs])
    ]
    with np.errstate(all="ignore"):
        matrix, bands = table.dense(), table.map()
        oracles.assert_same_map(BandedMap.from_blocks(blocks, inputs=table.inputs), bands)
    np.testing.assert_array_equal(bands.dense(), matrix)
    oracles.assert_same_map(bands.adjoint().adjoint(), bands)
    up, down = columns_between(matrix), columns_between(matrix[::-1])
    assert bands.nnz == min(up, down)
    assert bands.is_increasing or down < up


def test_a_band_runs_from_the_first_to_the_last_weight_and_keeps_the_zeros_between():
    taps = np.arange(6)[np.newaxis], np.array([[0, 2, 0, -0.0, 3, 0]])
    bands = BandedMap.from_blocks([taps], inputs=6)
    assert (bands.start.tolist(), bands.stop.tolist()) == ([1], [5])
    oracles.same_bits(bands.weight, np.array([2, 0, -0.0, 3]))


@pytest.mark.slow
def test_an_axis_of_ten_million_takes_memory_in_proportion_to_its_length():
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
