"""Infinities, NaNs, zeros of both signs, denormals, fill and overflow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire_server.backends import Backend
from gradwire_server.plans import BandedMap, Plan
from support.kernels.backend_calls import applied
from support.oracles import oracles


def _float32(values: Sequence[object]) -> oracles.Tensor:
    return np.array(values, np.float32)


def _apply(
    backend: Backend, weight: list[list[float]], x: list[float], dtype: str = "f4"
) -> oracles.Tensor:
    """Apply a small matrix whose rows are bands as they stand."""
    table = np.array(weight)
    index = np.tile(np.arange(len(x)), (len(weight), 1))
    plan = Plan.build([BandedMap.from_taps(index, table, inputs=len(x))], (len(x),))
    return applied(backend, plan, np.array(x, dtype), dtype)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), plan=oracles.plans(), special=st.sampled_from([np.inf, -np.inf, np.nan]))
def test_an_infinity_or_nan_reaches_the_results_whose_band_covers_it_and_no_other(
    backend: Backend, data: st.DataObject, plan: Plan, special: float
) -> None:
    x = np.zeros(plan.input_shape)
    place = tuple(data.draw(st.integers(0, size - 1)) for size in x.shape)
    x[place] = special
    reached = np.zeros(plan.input_shape)
    reached[place] = 1
    bands = {one.axis: oracles.covered(one.map).astype(np.float64) for one in plan.passes}
    expected = oracles.dense_apply(bands, reached) == 1
    result = applied(backend, plan, x, np.float64)
    np.testing.assert_array_equal(~np.isfinite(result), expected)


def test_a_zero_inside_a_band_is_multiplied(backend: Backend) -> None:
    result = _apply(backend, [[1, 0, 1]], [1, np.inf, 1])
    assert np.isnan(result).all()


def test_zeros_keep_their_sign(backend: Backend) -> None:
    oracles.same_bits(_apply(backend, [[1]], [-0.0]), _float32([-0.0]))
    oracles.same_bits(_apply(backend, [[0.5]], [-0.0]), _float32([-0.0]))
    oracles.same_bits(_apply(backend, [[-0.5]], [0.0]), _float32([-0.0]))
    oracles.same_bits(_apply(backend, [[0.5, 0.5]], [-0.0, -0.0]), _float32([-0.0]))
    oracles.same_bits(_apply(backend, [[0.5, 0.5]], [-0.0, 0.0]), _float32([0.0]))


@pytest.mark.parametrize("size", [8, 160, 400])
def test_weights_that_are_zeros_of_both_signs_by_turns_keep_their_signs(
    backend: Backend, size: int
) -> None:
    taps = np.tile([1, 0.0, 1, 1, -0.0, 1], size // 2)
    start, offset = 2 * np.arange(size), 3 * np.arange(size + 1)
    bands = BandedMap(size, 2 * size + 1, start, offset, taps)
    x = np.full((4, bands.inputs), -0.0, np.float32)
    x[:, 1::2] = 5
    result = applied(backend, Plan.build([None, bands], x.shape), x, np.float32)
    oracles.same_bits(result, np.tile(_float32([0.0, -0.0]), (4, size // 2)))


def test_an_output_without_taps_is_plus_zero_even_if_others_are_not(backend: Backend) -> None:
    oracles.same_bits(
        _apply(backend, [[-1, 0], [0, 0], [0, -1]], [0, 0]), _float32([-0.0, 0.0, -0.0])
    )


@pytest.mark.parametrize("fill", [0.0, -0.0, 2.5, np.inf])
def test_an_element_without_taps_on_any_axis_is_exactly_fill(backend: Backend, fill: float) -> None:
    index, weight = np.array([[0], [0], [1]]), np.array([[-1.0], [0], [-1]])
    gap = BandedMap.from_taps(index, weight, inputs=2)
    x = _float32([[1, np.nan], [np.inf, 4]])
    result = applied(backend, Plan.build([gap, gap], (2, 2), fill=fill), x, np.float32)
    expected = [[1, fill, np.nan], [fill, fill, fill], [np.inf, fill, 4]]
    oracles.same_bits(result, _float32(expected))


def test_denormals_are_kept_in_data_weights_and_results(backend: Backend) -> None:
    little = 2.0**-149
    oracles.same_bits(_apply(backend, [[1, 1]], [little, little]), _float32([2 * little]))
    oracles.same_bits(_apply(backend, [[little]], [1]), _float32([little]))
    oracles.same_bits(_apply(backend, [[2.0**-75]], [2.0**-74]), _float32([little]))


def test_what_float16_cannot_hold_becomes_infinite_and_only_at_the_end(backend: Backend) -> None:
    result = _apply(backend, [[1, 1, 0], [1, 1, -1], [-1, -1, 0]], [6e4, 6e4, 6e4], "f2")
    oracles.same_bits(result, np.array([np.inf, 6e4, -np.inf], "f2"))


def test_weights_are_rounded_to_the_compute_type_once_before_they_multiply(
    backend: Backend,
) -> None:
    # In float64 the product would be 1 + 2**-24 and the tie would go to 1.
    weight = 1 + 2**-24 + 2**-40
    oracles.same_bits(_apply(backend, [[weight]], [1]), _float32([1 + 2**-23]))
    oracles.same_bits(_apply(backend, [[weight]], [1], "f8"), np.array([weight]))


def test_products_are_rounded_before_they_are_added(backend: Backend) -> None:
    # A fused multiply-add would leave the rounding error of the product.
    third = float(np.float32(1 / 3))
    product = np.float32(third) * np.float32(third)
    result = _apply(backend, [[1, third]], [-float(product), third])
    oracles.same_bits(result, _float32([0]))
    assert third * third != float(product)


def test_sums_are_rounded_to_the_compute_type_between_passes(backend: Backend) -> None:
    half = BandedMap.from_taps(np.array([[0, 1]]), np.array([[1.0, 1.0]]), inputs=2)
    plan = Plan.build([half, half], (2, 2))
    # Columns first: 2**24 + 1 rounds to 2**24 twice over; all at once it would be 2**24 + 2.
    x = _float32([[2**24, 0], [1, 1]])
    oracles.same_bits(applied(backend, plan, x, np.float32), _float32([[2**24]]))
