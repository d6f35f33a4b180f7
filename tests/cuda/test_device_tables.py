"""Maps as the CUDA kernels read them: each form holds the matrix of the map, and nothing else."""

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
from gradwire_server.backends.cuda import kernels, tables
from gradwire_server.plans import BandedMap

DOUBLE = np.dtype(np.float64)
SINGLE = np.dtype(np.float32)

Kind = Callable[[int, int], BandedMap]
Matrix = npt.NDArray[np.float64]


@given(bands=oracles.banded_maps())
def test_weights_by_tap_are_the_map(bands: BandedMap) -> None:
    weight = tables.weights_by_tap(bands, DOUBLE)
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
    most = tables.reach(bands)
    assume(most)
    matrix = np.zeros((bands.outputs, bands.inputs))
    records = tables.records(bands, DOUBLE, most)
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
    assert tables.has_steps(bands, step, halo)
    weight = tables.padded_weights(bands, DOUBLE, step, halo)
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
    assert tables.has_steps(bands, step, halo) == expected


@given(bands=oracles.banded_maps(), inputs=st.integers(1, 12), outputs=st.integers(1, 5))
def test_tiles_split_the_outputs_and_read_few_inputs(
    bands: BandedMap, inputs: int, outputs: int
) -> None:
    begins = tables.tiles(bands, most_inputs=inputs, most_outputs=outputs)
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
    assert tables.reach(bands) == int(bands.adjoint().counts.max(initial=0))


def test_a_map_selects_where_each_output_is_an_input_or_nothing() -> None:
    grown, shrunk = maps.nearest(5, 10), maps.nearest(10, 5).adjoint()
    assert tables.selects(grown, SINGLE)
    assert tables.selected(grown).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert tables.selects(shrunk, SINGLE)
    assert tables.selected(shrunk).tolist() == [-1, 0, -1, 1, -1, 2, -1, 3, -1, 4]
    assert not tables.selects(maps.nearest(5, 10).adjoint(), SINGLE)
    # A weight is 1 if it is so once it is rounded.
    nearly = maps.reweighted(grown, 1 + 2.0**-30)
    assert tables.selects(nearly, SINGLE)
    assert not tables.selects(nearly, DOUBLE)
