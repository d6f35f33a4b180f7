"""DirectML's operators: published results, gradients to check by hand, float32 at its ends."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest

from gradwire import ops
from gradwire_server import dialects
from support.oracles.dialect_oracles import (
    DML_RULES,
    Pair,
    Tensor,
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


CENTERS = (0.5, -0.5)
CORNERS = (0.0, 0.0)

# (offsets, scale, outputs, {rule: gradient}) of 3 inputs, output gradient 1, 2, ..., outputs.
COUNTED: list[tuple[Any, ...]] = [
    (CENTERS, 2, 6, {"linear": (3.25, 7, 10.75)}),
    (CORNERS, 2, 6, {"linear": (2, 6, 13)}),
    (CORNERS, 2, 5, {"linear": (2, 6, 7)}),
    (CENTERS, 4, 6, {"linear": (10.75, 10.25, 0), "half_up": (10, 11, 0)}),
    (CENTERS, 4, 6, {"decreasing": (21, 0, 0), "increasing": (3, 18, 0)}),
    (CENTERS, 1, 5, {"linear": (1, 2, 12), "half_up": (1, 2, 12), "half_down": (1, 2, 12)}),
    (CENTERS, 1, 5, {"decreasing": (1, 2, 12), "increasing": (1, 2, 12)}),
    (CENTERS, 1.5, 5, {"decreasing": (3, 7, 5), "increasing": (1, 2, 12)}),
    (CENTERS, 1.5, 5, {"half_up": (1, 5, 9), "half_down": (3, 3, 9)}),
    (CENTERS, 1.5, 5, {"linear": (2, Fraction(25, 6), Fraction(53, 6))}),
    (CENTERS, 2, 6, {"decreasing": (6, 9, 6), "increasing": (1, 5, 15), "half_up": (3, 7, 11)}),
    (CORNERS, 2, 6, {"decreasing": (3, 7, 11), "increasing": (1, 5, 15)}),
]


COUNTED_BY_RULE = [
    pytest.param(rule, scale, offsets, outputs, gradient, id=f"{rule}-{scale}x-{offsets}-{outputs}")
    for offsets, scale, outputs, gradients in COUNTED
    for rule, gradient in gradients.items()
]


@pytest.mark.parametrize(("rule", "scale", "offsets", "outputs", "expected"), COUNTED_BY_RULE)
def test_a_gradient_gathers_what_its_element_gave(
    rule: str,
    scale: float,
    offsets: tuple[float, float],
    outputs: int,
    expected: Sequence[float | Fraction],
) -> None:
    given = np.arange(1, outputs + 1, dtype=np.float32)
    for pair in dml_operators(rule, scales=(scale,), offsets=offsets):
        result = evaluate(pair.gradient, given, (3,))
        wanted = f32([float(value) for value in expected])
        np.testing.assert_allclose(result, wanted, rtol=2**-22 if rule == "linear" else 0)


@pytest.mark.parametrize(
    ("offsets", "expected"), [(CENTERS, (2, 2, 2)), (CORNERS, (1.5, 2, 2.5))], ids=str
)
def test_a_gradient_of_ones_counts_the_readers(
    offsets: tuple[float, float], expected: Sequence[float]
) -> None:
    for pair in dml_operators("linear", scales=(2,), offsets=offsets):
        result = evaluate(pair.gradient, np.ones(6, np.float32), (3,))
        np.testing.assert_array_equal(result, f32(expected))


def assert_equal_gradients(
    pairs: list[Pair], others: list[Pair], given: Tensor, shape: tuple[int, ...]
) -> None:
    for pair, other in zip(pairs, others, strict=True):
        np.testing.assert_array_equal(
            evaluate(pair.gradient, given, shape), evaluate(other.gradient, given, shape)
        )


@pytest.mark.parametrize("rule", DML_RULES)
def test_swapped_offsets_are_the_forward_ones_exchanged(rule: str) -> None:
    given = np.arange(1, 17, dtype=np.float32)
    scales = (8 / 3,)
    own = dml_operators(rule, scales=scales, offsets=(0.25, -1.5))
    exchanged = dml_operators(
        rule, scales=scales, offsets=(-1.5, 0.25), offset_convention="swapped"
    )
    assert_equal_gradients(exchanged, own, given, (6,))


@pytest.mark.parametrize("name", ["input_pixel_offsets", "output_pixel_offsets"])
def test_defaults_fill_in_after_swapped_offsets_are_exchanged(name: str) -> None:
    given = np.arange(1, 17, dtype=np.float32)
    other = {"input_pixel_offsets": "output_pixel_offsets"}.get(name, "input_pixel_offsets")
    given_as: dict[str, Any] = {name: (0.25,), "offset_convention": "swapped"}
    meant_as: dict[str, Any] = {other: (0.25,)}
    partial, full = dml_operators("linear", **given_as), dml_operators("linear", **meant_as)
    assert_equal_gradients(partial, full, given, (6,))


def test_swapped_offsets_reproduce_the_published_example_as_tensorflow_passes_them() -> None:
    operator = ops.DmlResampleGrad(
        interpolation_mode="nearest_neighbor",
        scales=(0.5, 1.5),
        input_pixel_offsets=(0, 0),
        output_pixel_offsets=(0.5, 0.5),
        nearest_rounding="half_up",
        offset_convention="swapped",
    )
    result = evaluate(operator, f32([[4, 5, 6]]), (2, 2))
    np.testing.assert_array_equal(result, f32([[9, 6], [0, 0]]))


def test_defaults_are_pixel_centers_and_the_ratio_of_the_sizes_in_float32() -> None:
    given = np.arange(1, 14, dtype=np.float32)
    ratio = float(np.float32(13) / np.float32(7))
    full = dml_operators("linear", scales=(ratio,), offsets=CENTERS)
    assert_equal_gradients(dml_operators("linear"), full, given, (7,))


# A device's answer, reported in web-platform-tests #41811.
DEVICE_INPUT = f32(
    [
        [3.86005284, 45.18463077, 87.67153743, 98.78210347, 66.37414347, 3.41158349],
        [86.14930501, 95.9813372, 76.87126314, 16.52591355, 65.98782867, 25.47092156],
        [22.56010548, 92.08479613, 85.80876635, 92.63166027, 29.91620871, 75.40461275],
        [62.06375451, 1.77121588, 99.47231285, 11.44055014, 25.39634271, 67.02175102],
    ]
)
DEVICE_OUTPUT = f32(
    [[95.9813372, 16.52591355, 25.47092156], [1.77121588, 11.44055014, 67.02175102]]
)

Linear: Any = partial(ops.DmlResample, interpolation_mode="linear")
Nearest: Any = partial(ops.DmlResample, interpolation_mode="nearest_neighbor")
Directed: Any = partial(ops.DmlResample2, interpolation_mode="nearest_neighbor")
Ceiling: Any = partial(Directed, rounding_direction="increasing")
Floor: Any = partial(Directed, rounding_direction="decreasing")
PUBLISHED: dict[str, Any] = {"scales": (0.5, 1.5)}
AT_CORNERS: dict[str, Any] = {"input_pixel_offsets": (0, 0), "output_pixel_offsets": (0, 0)}
SHIFTED: dict[str, Any] = {"input_pixel_offsets": (1, 1), "output_pixel_offsets": (-0.5, -0.5)}

SQUARE = f32([[1, 2], [3, 4]])
ROWS_2X4 = f32([[1, 2, 3, 4], [5, 6, 7, 8]])
COUNT_4X4 = np.arange(1, 17, dtype=np.float32).reshape(4, 4)
FLOORS = [0, 0, 0, 1, 1, 2, 2, 3]
REPEATED = [
    [1, 1.5, 2, 2.5, 3, 3, 3, 3],
    [2.5, 3.25, 4, 4.75, 5.5, 5.5, 5.5, 5.5],
    [4, 5, 6, 7, 8, 8, 8, 8],
    [4, 5, 6, 7, 8, 8, 8, 8],
]
RAMP = f32([0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3])
CENTERS_OF_ROWS = f32([[0], [0], [0], [3], [9], [12], [12], [12]])

EXAMPLES: dict[str, tuple[ops.Operator, Any, Any]] = {
    "forward of the first": (Nearest(**PUBLISHED), SQUARE, [[1, 1, 2]]),
    "forward of the second": (Floor(**PUBLISHED), SQUARE, [[1, 1, 2]]),
    "ties that go up": (Nearest(nearest_rounding="half_up", **PUBLISHED), SQUARE, [[3, 4, 4]]),
    "a device's ties go up": (
        Nearest(scales=(0.5, 0.5), nearest_rounding="half_up"),
        DEVICE_INPUT,
        DEVICE_OUTPUT,
    ),
    "linear, cropped to the output": (Linear(scales=(0.5, 0.5)), ROWS_2X4, [[3.5, 5.5]]),
    "asymmetric, the last pixel again": (
        Linear(scales=(2, 4), **AT_CORNERS),
        [[1, 3], [4, 8]],
        REPEATED,
    ),
    "shifted, 0.6": (Ceiling(scales=(0.6, 0.6), **SHIFTED), ROWS_2X4, [[1, 3]]),
    "shifted, 0.5 and 0.75": (Ceiling(scales=(0.5, 0.75), **SHIFTED), ROWS_2X4, [[1, 2, 4]]),
    "tf_half_pixel nearest": (
        Ceiling(scales=(0.75, 0.5)),
        COUNT_4X4,
        [[6, 8], [10, 12], [14, 16]],
    ),
    "increasing is the ceiling": (
        Ceiling(),
        SQUARE,
        [[1, 1] + [2] * 6] * 2 + [[3, 3] + [4] * 6] * 5,
    ),
    "decreasing is the floor": (
        Floor(scales=(7 / 3, 7 / 3), **AT_CORNERS),
        COUNT_4X4,
        COUNT_4X4[FLOORS][:, FLOORS],
    ),
    "decreasing without offsets repeats": (
        Floor(scales=(2, 2), **AT_CORNERS),
        COUNT_4X4,
        COUNT_4X4.repeat(2, axis=0).repeat(2, axis=1),
    ),
    "an axis of scale 1 is resampled too": (
        Ceiling(scales=(1, 0.5), input_pixel_offsets=(0, 0), output_pixel_offsets=(-0.5, -0.5)),
        [[1, 2, 3], [4, 5, 6]],
        [[5], [5]],
    ),
    "WebNN's doubling": (
        Linear(scales=(2, 2)),
        [[0, 1, 2, 3]] * 2 + [[12, 13, 14, 15]] * 2,
        RAMP + CENTERS_OF_ROWS,
    ),
}


@pytest.mark.parametrize(("operator", "given", "expected"), EXAMPLES.values(), ids=list(EXAMPLES))
def test_published_and_reported_results_hold(
    operator: ops.Operator, given: Any, expected: Any
) -> None:
    wanted = f32(expected)
    np.testing.assert_array_equal(evaluate(operator, f32(given), wanted.shape), wanted)


@pytest.mark.parametrize(
    "operator",
    [
        ops.DmlResampleGrad(interpolation_mode="nearest_neighbor", **PUBLISHED),
        ops.DmlResampleGrad1(
            interpolation_mode="nearest_neighbor", rounding_direction="decreasing", **PUBLISHED
        ),
    ],
    ids=lambda operator: operator.name,
)
@pytest.mark.parametrize(
    ("given", "expected"),
    [([1, 2, 3], [3, 3]), ([4, 5, 6], [9, 6]), ([7, 8, 9], [15, 9]), ([10, 11, 12], [21, 12])],
    ids=str,
)
def test_the_published_gradient_and_its_four_regions_hold(
    operator: ops.Operator, given: list[int], expected: list[int]
) -> None:
    result = evaluate(operator, f32([given]), (2, 2))
    np.testing.assert_array_equal(result, f32([expected, [0, 0]]))


def test_linear_downscales_by_a_scale_that_rounds_crop_to_the_output() -> None:
    result = evaluate(Linear(scales=(0.6, 0.6)), ROWS_2X4, (1, 2))
    np.testing.assert_allclose(result, f32([[2.66666651, 4.3333331]]), rtol=2**-22)


def test_linear_align_corners_is_a_scale_without_offsets() -> None:
    result = evaluate(Linear(scales=(3, 7), **AT_CORNERS), f32([[1, 3], [4, 8]]), (4, 8))
    expected = f32([1, 1.2857143, 1.571428, 1.857142, 2.142857, 2.4285715, 2.714285, 3])
    np.testing.assert_allclose(result[0], expected, rtol=2**-21)
