"""DirectML's published examples, and results reported from devices and from its callers' tests."""

from __future__ import annotations

import numpy as np
import pytest

from gradwire import ops
from support.oracles.dialect_oracles import evaluate, f32

ROWS_2X4 = f32([[1, 2, 3, 4], [5, 6, 7, 8]])
COUNT_4X4 = np.arange(1, 17, dtype=np.float32).reshape(4, 4)
CORNERS = f32([[1, 3], [4, 8]])

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


@pytest.mark.parametrize(
    "operator",
    [
        ops.DmlResampleGrad(interpolation_mode="nearest_neighbor", scales=(0.5, 1.5)),
        ops.DmlResampleGrad1(
            interpolation_mode="nearest_neighbor",
            scales=(0.5, 1.5),
            rounding_direction="decreasing",
        ),
    ],
    ids=lambda operator: operator.name,
)
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([1, 2, 3], [[3, 3], [0, 0]]),
        ([4, 5, 6], [[9, 6], [0, 0]]),
        ([7, 8, 9], [[15, 9], [0, 0]]),
        ([10, 11, 12], [[21, 12], [0, 0]]),
    ],
    ids=str,
)
def test_the_published_gradient_and_its_four_regions_hold(
    operator: ops.Operator, given: list[int], expected: list[list[int]]
) -> None:
    result = evaluate(operator, f32([given]), (2, 2))
    np.testing.assert_array_equal(result, f32(expected))


@pytest.mark.parametrize(
    "operator",
    [
        ops.DmlResample(interpolation_mode="nearest_neighbor", scales=(0.5, 1.5)),
        ops.DmlResample2(
            interpolation_mode="nearest_neighbor",
            scales=(0.5, 1.5),
            rounding_direction="decreasing",
        ),
    ],
    ids=lambda operator: operator.name,
)
def test_the_published_forward_holds(operator: ops.Operator) -> None:
    result = evaluate(operator, f32([[1, 2], [3, 4]]), (1, 3))
    np.testing.assert_array_equal(result, f32([[1, 1, 2]]))


def test_the_published_example_needs_ties_to_go_down() -> None:
    operator = ops.DmlResample(
        interpolation_mode="nearest_neighbor", scales=(0.5, 1.5), nearest_rounding="half_up"
    )
    result = evaluate(operator, f32([[1, 2], [3, 4]]), (1, 3))
    np.testing.assert_array_equal(result, f32([[3, 4, 4]]))


def test_half_up_answers_as_the_device_did() -> None:
    operator = ops.DmlResample(
        interpolation_mode="nearest_neighbor", scales=(0.5, 0.5), nearest_rounding="half_up"
    )
    np.testing.assert_array_equal(evaluate(operator, DEVICE_INPUT, (2, 3)), DEVICE_OUTPUT)


@pytest.mark.parametrize(
    ("scales", "expected"),
    [((0.6, 0.6), [2.66666651, 4.3333331]), ((0.5, 0.5), [3.5, 5.5])],
    ids=str,
)
def test_linear_half_pixel_downscales_crop_to_the_output(
    scales: tuple[float, float], expected: list[float]
) -> None:
    operator = ops.DmlResample(interpolation_mode="linear", scales=scales)
    result = evaluate(operator, ROWS_2X4, (1, 2))
    np.testing.assert_allclose(result, f32([expected]), rtol=2**-22)


def test_linear_asymmetric_upscale_repeats_the_last_pixel() -> None:
    operator = ops.DmlResample(
        interpolation_mode="linear",
        scales=(2, 4),
        input_pixel_offsets=(0, 0),
        output_pixel_offsets=(0, 0),
    )
    expected = [
        [1, 1.5, 2, 2.5, 3, 3, 3, 3],
        [2.5, 3.25, 4, 4.75, 5.5, 5.5, 5.5, 5.5],
        [4, 5, 6, 7, 8, 8, 8, 8],
        [4, 5, 6, 7, 8, 8, 8, 8],
    ]
    np.testing.assert_array_equal(evaluate(operator, CORNERS, (4, 8)), f32(expected))


def test_linear_align_corners_is_a_scale_without_offsets() -> None:
    operator = ops.DmlResample(
        interpolation_mode="linear",
        scales=(3, 7),
        input_pixel_offsets=(0, 0),
        output_pixel_offsets=(0, 0),
    )
    expected = f32([1, 1.2857143, 1.571428, 1.857142, 2.142857, 2.4285715, 2.714285, 3])
    np.testing.assert_allclose(evaluate(operator, CORNERS, (4, 8))[0], expected, rtol=2**-21)


@pytest.mark.parametrize(
    ("scales", "output_shape", "expected"),
    [((0.6, 0.6), (1, 2), [1, 3]), ((0.5, 0.75), (1, 3), [1, 2, 4])],
    ids=str,
)
def test_increasing_with_a_shifted_offset_prefers_the_floor(
    scales: tuple[float, float], output_shape: tuple[int, int], expected: list[int]
) -> None:
    operator = ops.DmlResample2(
        interpolation_mode="nearest_neighbor",
        scales=scales,
        input_pixel_offsets=(1, 1),
        output_pixel_offsets=(-0.5, -0.5),
        rounding_direction="increasing",
    )
    result = evaluate(operator, ROWS_2X4, output_shape)
    np.testing.assert_array_equal(result, f32([expected]))


def test_increasing_reads_tf_half_pixel_nearest() -> None:
    operator = ops.DmlResample2(
        interpolation_mode="nearest_neighbor",
        scales=(0.75, 0.5),
        rounding_direction="increasing",
    )
    result = evaluate(operator, COUNT_4X4, (3, 2))
    np.testing.assert_array_equal(result, f32([[6, 8], [10, 12], [14, 16]]))


def test_increasing_is_the_ceiling() -> None:
    operator = ops.DmlResample2(
        interpolation_mode="nearest_neighbor", rounding_direction="increasing"
    )
    result = evaluate(operator, f32([[1, 2], [3, 4]]), (7, 8))
    upper, lower = [1, 1] + [2] * 6, [3, 3] + [4] * 6
    np.testing.assert_array_equal(result, f32([upper] * 2 + [lower] * 5))


def test_decreasing_is_the_floor() -> None:
    operator = ops.DmlResample2(
        interpolation_mode="nearest_neighbor",
        scales=(7 / 3, 7 / 3),
        input_pixel_offsets=(0, 0),
        output_pixel_offsets=(0, 0),
        rounding_direction="decreasing",
    )
    result = evaluate(operator, COUNT_4X4, (8, 8))
    np.testing.assert_array_equal(result[0], f32([1, 1, 1, 2, 2, 3, 3, 4]))
    np.testing.assert_array_equal(result[:, 0], f32([1, 1, 1, 5, 5, 9, 9, 13]))


def test_an_axis_of_scale_one_is_resampled_like_any_other() -> None:
    operator = ops.DmlResample2(
        interpolation_mode="nearest_neighbor",
        scales=(1, 0.5),
        input_pixel_offsets=(0, 0),
        output_pixel_offsets=(-0.5, -0.5),
        rounding_direction="increasing",
    )
    result = evaluate(operator, f32([[1, 2, 3], [4, 5, 6]]), (2, 1))
    np.testing.assert_array_equal(result, f32([[5], [5]]))


def test_decreasing_without_offsets_repeats() -> None:
    operator = ops.DmlResample2(
        interpolation_mode="nearest_neighbor",
        scales=(2, 2),
        input_pixel_offsets=(0, 0),
        output_pixel_offsets=(0, 0),
        rounding_direction="decreasing",
    )
    expected = COUNT_4X4.repeat(2, axis=0).repeat(2, axis=1)
    np.testing.assert_array_equal(evaluate(operator, COUNT_4X4, (8, 8)), expected)


def test_linear_half_pixel_doubles_as_the_webnn_text_says() -> None:
    source = f32([[0, 1, 2, 3]] * 2 + [[12, 13, 14, 15]] * 2)
    ramp = f32([0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3])
    result = evaluate(ops.DmlResample(interpolation_mode="linear", scales=(2, 2)), source, (8, 8))
    for row, start in ((0, 0), (3, 3), (4, 9), (7, 12)):
        np.testing.assert_array_equal(result[row], ramp + np.float32(start))
