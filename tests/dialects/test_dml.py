"""DirectML's operators: published results, gradients to check by hand, float32 at its ends."""

from functools import partial

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gradwire import ops
from support.oracles.dialect_oracles import (
    DML_RULES,
    axis_table,
    dml_axis,
    dml_operators,
    evaluate,
    f32,
)

EACH_RULE = pytest.mark.parametrize("rule", DML_RULES)
LARGEST = float(np.finfo(np.float32).max)
SMALLEST = float(np.finfo(np.float32).smallest_subnormal)
NEARLY_HALF = float(np.nextafter(np.float32(0.5), np.float32(0)))
LENGTHS = st.integers(1, 60)
SCALES = st.one_of(
    st.floats(2**-7, 128, width=32),
    st.tuples(LENGTHS, LENGTHS).map(lambda ratio: float(np.float32(ratio[0] / ratio[1]))),
    st.floats(min_value=0, exclude_min=True, allow_infinity=False, width=32),
)
OFFSETS = st.one_of(
    st.sampled_from([0.0, 0.5, -0.5, 1.0, -1.0]),
    st.floats(-70, 70, width=32),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
)
CENTERS = (0.5, -0.5)
CORNERS = (0.0, 0.0)


@EACH_RULE
@given(inputs=LENGTHS, outputs=LENGTHS, scale=SCALES, offsets=st.tuples(OFFSETS, OFFSETS))
@example(inputs=3, outputs=3, scale=1.0, offsets=CENTERS)
@example(inputs=3, outputs=3, scale=1.0, offsets=CORNERS)
@example(inputs=3, outputs=3, scale=1.0, offsets=(-0.5, 0.5))
@example(inputs=3, outputs=3, scale=1.0, offsets=(0.5, 0.5))
@example(inputs=4, outputs=2, scale=0.5, offsets=CENTERS)
@example(inputs=4, outputs=5, scale=SMALLEST, offsets=CENTERS)
@example(inputs=4, outputs=5, scale=1e-30, offsets=(-LARGEST, LARGEST))
@example(inputs=4, outputs=5, scale=LARGEST, offsets=(LARGEST, -LARGEST))
@example(inputs=4, outputs=5, scale=SMALLEST, offsets=(LARGEST, LARGEST))
# A result not as the scale says repeats the edge or is cropped.
@example(inputs=3, outputs=6, scale=1.0, offsets=CENTERS)
@example(inputs=5, outputs=2, scale=1.0, offsets=CENTERS)
# A reciprocal of the scale in float32, or float64, moves some element.
@example(inputs=49, outputs=147, scale=3.0, offsets=CORNERS)
# The sum of a coordinate and 0.5 rounds to 1.
@example(inputs=3, outputs=1, scale=1.0, offsets=(-NEARLY_HALF, 0.0))
def test_dml_tables_follow_the_formula(rule, inputs, outputs, scale, offsets):
    matrix = dml_axis(inputs, outputs, scale=scale, offsets=offsets, rule=rule)
    for pair in dml_operators(rule, scales=(scale,), offsets=offsets):
        np.testing.assert_array_equal(axis_table(pair.forward, (inputs,), (outputs,)), matrix)
        np.testing.assert_array_equal(axis_table(pair.gradient, (outputs,), (inputs,)), matrix.T)


@EACH_RULE
@given(inputs=LENGTHS, outputs=LENGTHS)
def test_dml_defaults_follow_the_formula(rule, inputs, outputs):
    scale = float(np.float32(outputs) / np.float32(inputs))
    matrix = dml_axis(inputs, outputs, scale=scale, offsets=CENTERS, rule=rule)
    for pair in dml_operators(rule):
        np.testing.assert_array_equal(axis_table(pair.forward, (inputs,), (outputs,)), matrix)


INPUT, OUTPUT = "input_pixel_offsets", "output_pixel_offsets"
SWAPPED = {"offset_convention": "swapped"}
RATIO = float(np.float32(16) / np.float32(6))


@pytest.mark.parametrize(
    ("rule", "words", "others"),
    [
        *(
            (rule, {INPUT: (0.25,), OUTPUT: (-1.5,)}, {INPUT: (-1.5,), OUTPUT: (0.25,), **SWAPPED})
            for rule in DML_RULES
        ),
        # Defaults fill in after they are exchanged.
        ("linear", {INPUT: (0.25,)}, {OUTPUT: (0.25,), **SWAPPED}),
        ("linear", {OUTPUT: (0.25,)}, {INPUT: (0.25,), **SWAPPED}),
        # Defaults are pixel centers and the ratio of the sizes in float32.
        ("linear", {}, {INPUT: (0.5,), OUTPUT: (-0.5,), "scales": (RATIO,)}),
    ],
)
def test_a_gradient_is_the_same_by_other_words(rule, words, others):
    g = f32(range(1, 17))
    for pair, other in zip(
        dml_operators(rule, **words), dml_operators(rule, **others), strict=True
    ):
        result = evaluate(pair.gradient, g, (6,))
        np.testing.assert_array_equal(result, evaluate(other.gradient, g, (6,)))


# A device's answer, reported in web-platform-tests #41811.
DEVICE_INPUT = f32(
    [
        [3.86005284, 45.18463077, 87.67153743, 98.78210347, 66.37414347, 3.41158349],
        [86.14930501, 95.9813372, 76.87126314, 16.52591355, 65.98782867, 25.47092156],
        [22.56010548, 92.08479613, 85.80876635, 92.63166027, 29.91620871, 75.40461275],
        [62.06375451, 1.77121588, 99.47231285, 11.44055014, 25.39634271, 67.02175102],
    ]
)
NEAREST = {"interpolation_mode": "nearest_neighbor"}
Linear = partial(ops.DmlResample, interpolation_mode="linear")
Nearest = partial(ops.DmlResample, **NEAREST)
Ceiling = partial(ops.DmlResample2, rounding_direction="increasing", **NEAREST)
Floor = partial(Ceiling, rounding_direction="decreasing")
Grad = partial(ops.DmlResampleGrad, **NEAREST)
FloorGrad = partial(ops.DmlResampleGrad1, rounding_direction="decreasing", **NEAREST)
PUBLISHED = {"scales": (0.5, 1.5)}
AT_CORNERS = {INPUT: (0, 0), OUTPUT: (0, 0)}
SHIFTED = {INPUT: (1, 1), OUTPUT: (-0.5, -0.5)}
# As TensorFlow passes them.
EXCHANGED = {INPUT: (0, 0), OUTPUT: (0.5, 0.5), **SWAPPED}

SQUARE = [[1, 2], [3, 4]]
ROWS_2X4 = [[1, 2, 3, 4], [5, 6, 7, 8]]
COUNT_4X4 = np.arange(1, 17, dtype=np.float32).reshape(4, 4)
FLOORS = [0, 0, 0, 1, 1, 2, 2, 3]
REPEATED = [
    [1, 1.5, 2, 2.5, 3, 3, 3, 3],
    [2.5, 3.25, 4, 4.75, 5.5, 5.5, 5.5, 5.5],
    *([[4, 5, 6, 7, 8, 8, 8, 8]] * 2),
]
RAMP = f32([0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3])
CENTERS_OF_ROWS = f32([[0], [0], [0], [3], [9], [12], [12], [12]])
CEILINGS = [[1, 1] + [2] * 6] * 2 + [[3, 3] + [4] * 6] * 5

EXAMPLES = {
    "forward of the first": (Nearest(**PUBLISHED), SQUARE, [[1, 1, 2]]),
    "forward of the second": (Floor(**PUBLISHED), SQUARE, [[1, 1, 2]]),
    "ties that go up": (Nearest(nearest_rounding="half_up", **PUBLISHED), SQUARE, [[3, 4, 4]]),
    "a device's ties go up": (
        *(Nearest(scales=(0.5, 0.5), nearest_rounding="half_up"), DEVICE_INPUT),
        [[95.9813372, 16.52591355, 25.47092156], [1.77121588, 11.44055014, 67.02175102]],
    ),
    "linear, cropped to the output": (Linear(scales=(0.5, 0.5)), ROWS_2X4, [[3.5, 5.5]]),
    "the last pixel again": (Linear(scales=(2, 4), **AT_CORNERS), [[1, 3], [4, 8]], REPEATED),
    "shifted, 0.6": (Ceiling(scales=(0.6, 0.6), **SHIFTED), ROWS_2X4, [[1, 3]]),
    "shifted, 0.5 and 0.75": (Ceiling(scales=(0.5, 0.75), **SHIFTED), ROWS_2X4, [[1, 2, 4]]),
    "tf_half_pixel": (Ceiling(scales=(0.75, 0.5)), COUNT_4X4, [[6, 8], [10, 12], [14, 16]]),
    "increasing is the ceiling": (Ceiling(), SQUARE, CEILINGS),
    "decreasing is the floor": (
        *(Floor(scales=(7 / 3, 7 / 3), **AT_CORNERS), COUNT_4X4, COUNT_4X4[FLOORS][:, FLOORS]),
    ),
    "decreasing without offsets repeats": (
        Floor(scales=(2, 2), **AT_CORNERS),
        *(COUNT_4X4, COUNT_4X4.repeat(2, axis=0).repeat(2, axis=1)),
    ),
    "an axis of scale 1 is resampled too": (
        Ceiling(scales=(1, 0.5), **{INPUT: (0, 0), OUTPUT: (-0.5, -0.5)}),
        *([[1, 2, 3], [4, 5, 6]], [[5], [5]]),
    ),
    "WebNN's doubling": (
        *(Linear(scales=(2, 2)), [[0, 1, 2, 3]] * 2 + [[12, 13, 14, 15]] * 2),
        RAMP + CENTERS_OF_ROWS,
    ),
    "the published gradient, swapped": (
        *(Grad(nearest_rounding="half_up", **PUBLISHED, **EXCHANGED), [[4, 5, 6]]),
        [[9, 6], [0, 0]],
    ),
    **{
        f"the published gradient and its regions, {made(**PUBLISHED).name} {x}": (
            *(made(**PUBLISHED), [x], [result, [0, 0]]),
        )
        for made in (Grad, FloorGrad)
        for x, result in (
            *(([1, 2, 3], [3, 3]), ([4, 5, 6], [9, 6])),
            *(([7, 8, 9], [15, 9]), ([10, 11, 12], [21, 12])),
        )
    },
}


@pytest.mark.parametrize(("operator", "x", "expected"), EXAMPLES.values(), ids=list(EXAMPLES))
def test_published_and_reported_results_hold(operator, x, expected):
    wanted = f32(expected)
    np.testing.assert_array_equal(evaluate(operator, f32(x), wanted.shape), wanted)


def test_published_results_of_linear_hold_to_rounding():
    result = evaluate(Linear(scales=(0.6, 0.6)), f32(ROWS_2X4), (1, 2))
    np.testing.assert_allclose(result, f32([[2.66666651, 4.3333331]]), rtol=2**-22)
    result = evaluate(Linear(scales=(3, 7), **AT_CORNERS), f32([[1, 3], [4, 8]]), (4, 8))
    expected = f32([1, 1.2857143, 1.571428, 1.857142, 2.142857, 2.4285715, 2.714285, 3])
    np.testing.assert_allclose(result[0], expected, rtol=2**-21)
