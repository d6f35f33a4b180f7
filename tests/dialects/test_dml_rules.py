"""DirectML's operators: cropping, clamping, and float32 at its ends."""

from __future__ import annotations

import numpy as np
import pytest

from gradwire import ops
from gradwire_server import dialects
from support.oracles.dialect_oracles import (
    DML_RULES,
    Pair,
    dml_axis,
    dml_operators,
    evaluate,
    f32,
    lowered,
)

LARGEST = float(np.finfo(np.float32).max)
SMALLEST = float(np.finfo(np.float32).smallest_subnormal)

EVERY_PAIR = [pair for rule in DML_RULES for pair in dml_operators(rule)]


@pytest.mark.parametrize("rule", DML_RULES)
def test_a_result_larger_than_the_scale_says_repeats_the_edge(rule: str) -> None:
    for pair in dml_operators(rule, scales=(1,)):
        result = evaluate(pair.forward, f32([1, 2, 3]), (6,))
        np.testing.assert_array_equal(result, f32([1, 2, 3, 3, 3, 3]))
        gradient = evaluate(pair.gradient, f32([1, 2, 4, 8, 16, 32]), (3,))
        np.testing.assert_array_equal(gradient, f32([1, 2, 60]))


@pytest.mark.parametrize("rule", DML_RULES)
def test_a_result_smaller_than_the_scale_says_is_cropped(rule: str) -> None:
    for pair in dml_operators(rule, scales=(1,)):
        result = evaluate(pair.forward, f32([1, 2, 3, 4, 5]), (2,))
        np.testing.assert_array_equal(result, f32([1, 2]))
        gradient = evaluate(pair.gradient, f32([7, 8]), (5,))
        np.testing.assert_array_equal(gradient, f32([7, 8, 0, 0, 0]))


@pytest.mark.parametrize("rule", DML_RULES)
@pytest.mark.parametrize("scale", [SMALLEST, 1e-30, LARGEST])
@pytest.mark.parametrize(
    "offsets",
    [(0.5, -0.5), (0, 0), (LARGEST, LARGEST), (-LARGEST, LARGEST), (LARGEST, -LARGEST)],
    ids=str,
)
def test_coordinates_beyond_float32_clamp_to_the_edges(
    rule: str, scale: float, offsets: tuple[float, float]
) -> None:
    for pair in dml_operators(rule, scales=(scale,), offsets=offsets):
        plan = lowered(pair.forward, (4,), (5,))
        expected = dml_axis(4, 5, scale=scale, offsets=offsets, rule=rule)
        np.testing.assert_array_equal(plan.passes[0].map.dense(), expected)
        assert np.all(expected.sum(axis=1) == 1)


def test_coordinates_are_a_float32_quotient_of_the_first_difference() -> None:
    # 7 elements to 128: scale is 128 / 7 in float32. A reciprocal, or float64, moves some element.
    operator = ops.DmlResample2(
        interpolation_mode="nearest_neighbor",
        input_pixel_offsets=(0,),
        output_pixel_offsets=(0,),
        rounding_direction="decreasing",
    )
    inputs, outputs = 49, 147
    x = np.arange(outputs, dtype=np.float32)
    scale = np.float32(outputs) / np.float32(inputs)
    plan = lowered(operator, (inputs,), (outputs,))
    np.testing.assert_array_equal(plan.passes[0].map.start, np.floor(x / scale).astype(int))


@pytest.mark.parametrize("pair", EVERY_PAIR, ids=lambda pair: repr(pair.forward))
def test_axes_that_a_formula_leaves_alone_are_not_in_the_plan(pair: Pair) -> None:
    for operator in pair:
        plan = lowered(operator, (3, 4, 5), (3, 8, 5))
        assert [each.axis for each in plan.passes] == [1]


def test_sizes_never_follow_from_scales() -> None:
    for pair in dml_operators("linear", scales=(2,)):
        for operator in pair:
            assert dialects.output_shape(operator.name, operator, (4,)) is None
