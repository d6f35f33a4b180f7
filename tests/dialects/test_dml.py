"""DirectML's operators: published results, and swapped offsets."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from gradwire import ops
from support.oracles.dialect_oracles import (
    DML_RULES,
    dml_operators,
    evaluate,
    f32,
)

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
    "the published gradient as TensorFlow passes its offsets": (
        ops.DmlResampleGrad(
            interpolation_mode="nearest_neighbor",
            input_pixel_offsets=(0, 0),
            output_pixel_offsets=(0.5, 0.5),
            nearest_rounding="half_up",
            offset_convention="swapped",
            **PUBLISHED,
        ),
        [[4, 5, 6]],
        [[9, 6], [0, 0]],
    ),
    **{
        f"the published {operator.name} of {given}": (operator, [given], [expected, [0, 0]])
        for operator in (
            ops.DmlResampleGrad(interpolation_mode="nearest_neighbor", **PUBLISHED),
            ops.DmlResampleGrad1(
                interpolation_mode="nearest_neighbor", rounding_direction="decreasing", **PUBLISHED
            ),
        )
        for given, expected in (
            ([1, 2, 3], [3, 3]),
            ([4, 5, 6], [9, 6]),
            ([7, 8, 9], [15, 9]),
            ([10, 11, 12], [21, 12]),
        )
    },
}


ROUNDED: dict[str, tuple[ops.Operator, Any, Any, float]] = {
    "linear by a scale that rounds, cropped": (
        Linear(scales=(0.6, 0.6)),
        ROWS_2X4,
        [[2.66666651, 4.3333331]],
        2**-22,
    ),
    "linear align_corners": (
        Linear(scales=(3, 7), **AT_CORNERS),
        [[1, 3]],
        [[1, 1.2857143, 1.571428, 1.857142, 2.142857, 2.4285715, 2.714285, 3]] * 3,
        2**-21,
    ),
}


@pytest.mark.parametrize(
    ("operator", "given", "expected", "far"),
    [*((*row, 0) for row in EXAMPLES.values()), *ROUNDED.values()],
    ids=[*EXAMPLES, *ROUNDED],
)
def test_published_and_reported_results_hold(
    operator: ops.Operator, given: Any, expected: Any, far: float
) -> None:
    wanted = f32(expected)
    np.testing.assert_allclose(evaluate(operator, f32(given), wanted.shape), wanted, rtol=far)


@pytest.mark.parametrize(
    ("swapped", "forward"),
    [
        (
            {"input_pixel_offsets": (-1.5,), "output_pixel_offsets": (0.25,), "scales": (8 / 3,)},
            {"input_pixel_offsets": (0.25,), "output_pixel_offsets": (-1.5,), "scales": (8 / 3,)},
        ),
        ({"input_pixel_offsets": (0.25,)}, {"output_pixel_offsets": (0.25,)}),
        ({"output_pixel_offsets": (0.25,)}, {"input_pixel_offsets": (0.25,)}),
    ],
    ids=["both", "input alone", "output alone"],
)
@pytest.mark.parametrize("rule", DML_RULES)
def test_swapped_offsets_are_exchanged_before_defaults_fill_in(
    rule: str, swapped: dict[str, Any], forward: dict[str, Any]
) -> None:
    given = np.arange(1, 17, dtype=np.float32)
    exchanged = dml_operators(rule, offset_convention="swapped", **swapped)
    for pair, other in zip(exchanged, dml_operators(rule, **forward), strict=True):
        ours, theirs = (evaluate(each.gradient, given, (6,)) for each in (pair, other))
        np.testing.assert_array_equal(ours, theirs)
