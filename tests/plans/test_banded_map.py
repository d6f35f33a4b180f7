"""Laws of banded maps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings

from gradwire_server.plans import BandedMap
from support.oracles import oracles

Arrays = dict[str, Any]


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


def _arrays(**changes: object) -> Arrays:
    """Two outputs over the inputs 0 .. 1 and 1 .. 2 of three."""
    arrays: Arrays = {
        "outputs": 2,
        "inputs": 3,
        "start": np.array([0, 1]),
        "offset": np.array([0, 2, 4]),
        "weight": np.ones(4),
    }
    return arrays | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"outputs": 3}, r"start is int64\[2\]; 3 outputs need int64\[3\]"),
        ({"start": np.array([0, 1], np.int32)}, r"start is int32\[2\]"),
        ({"offset": np.array([0, 4])}, r"offset is int64\[2\]; 2 outputs need int64\[3\]"),
        ({"weight": np.ones(4, np.float32)}, r"weight is float32\[4\]"),
        ({"offset": np.array([1, 2, 4])}, "offset runs from 1 to 4"),
        ({"offset": np.array([0, 2, 3])}, "offset runs from 0 to 3; .* ascend from 0 to 4"),
        ({"offset": np.array([0, 5, 4])}, "must ascend"),
        ({"inputs": 2}, r"cover the inputs 0 \.\. 2; there are 0 \.\. 1"),
        ({"start": np.array([-1, 1])}, r"cover the inputs -1 \.\. 2"),
        (
            {"start": np.array([1, 0]), "offset": np.array([0, 1, 4])},
            "neither all ascend nor all descend",
        ),
    ],
)
def test_arrays_that_make_no_banded_map_are_refused(changes: Arrays, message: str) -> None:
    BandedMap(**_arrays())
    with pytest.raises(ValueError, match=message):
        BandedMap(**_arrays(**changes))


@given(bands=oracles.banded_maps())
def test_is_increasing_means_both_sides_ascend(bands: BandedMap) -> None:
    start, stop = bands.start.tolist(), bands.stop.tolist()
    assert bands.is_increasing == (start == sorted(start) and stop == sorted(stop))
