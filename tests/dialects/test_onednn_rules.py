"""oneDNN's operators: arithmetic, layouts, sizes and scales."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradwire import ops
from gradwire_server import dialects
from support.oracles.dialect_oracles import evaluate, f32, lowered, onednn_axis


def backward(mode: Any = "linear", **attributes: Any) -> ops.InterpolateBackward:
    return ops.InterpolateBackward(mode=mode, data_format="NCX", **attributes)


def interpolate(mode: Any = "linear", **attributes: Any) -> ops.Interpolate:
    return ops.Interpolate(mode=mode, data_format="NCX", **attributes)


def inferred(operator: ops.Operator, input_shape: tuple[int, ...]) -> tuple[int, ...] | None:
    return dialects.output_shape(operator.name, operator, input_shape)


@pytest.mark.parametrize("transformation", ["half_pixel", "align_corners"])
@pytest.mark.parametrize(
    ("mode", "expected"), [("nearest", [[0, 3], [9, 24]]), ("bilinear", [[3, 6], [12, 15]])]
)
def test_the_numbers_of_the_library_s_unit_tests_hold(
    transformation: Any, mode: str, expected: list[list[int]]
) -> None:
    operator = backward(mode, coordinate_transformation_mode=transformation)
    given = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
    result = evaluate(operator, given, (1, 1, 2, 2))
    np.testing.assert_allclose(result, f32([[expected]]), rtol=2**-22)


def test_linear_bilinear_and_trilinear_are_synonyms_on_any_rank() -> None:
    given = np.random.default_rng(2).standard_normal((2, 3, 7, 5), np.float32)
    expected = evaluate(backward("linear"), given, (2, 3, 4, 9))
    for synonym in ("bilinear", "trilinear"):
        np.testing.assert_array_equal(evaluate(backward(synonym), given, (2, 3, 4, 9)), expected)


def test_nxc_is_ncx_with_the_channel_last() -> None:
    given = np.random.default_rng(3).standard_normal((2, 3, 7, 5), np.float32)
    last = ops.InterpolateBackward(mode="linear")
    assert last.data_format == "NXC"
    np.testing.assert_array_equal(
        evaluate(last, np.moveaxis(given, 1, -1), (2, 4, 9, 3)),
        np.moveaxis(evaluate(backward(), given, (2, 3, 4, 9)), 1, -1),
    )


def test_half_pixel_multiplies_before_it_divides_in_float32() -> None:
    # Dividing first, or exact integers, reads another element for one output: seen in the library.
    src, dst = 3619, 3912
    plan = lowered(interpolate("nearest", sizes=(dst,)), (1, 1, src), (1, 1, dst))
    (only,) = plan.passes
    exact = ((2 * np.arange(dst) + 1) * src) // (2 * dst)
    assert np.count_nonzero(only.map.start != exact) == 1
    rows = np.flatnonzero(onednn_axis(src, dst, align_corners=False, nearest=True))
    np.testing.assert_array_equal(only.map.start, rows % src)


@pytest.mark.parametrize("transformation", ["half_pixel", "align_corners"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("size", [1, 2, 7, 100, 2896, 2897, 4097, 4100])
def test_equal_sizes_follow_the_formula_too(transformation: Any, mode: str, size: int) -> None:
    # x is not always X again: at 2897 elements the product of half_pixel rounds once.
    operator = interpolate(mode, coordinate_transformation_mode=transformation, sizes=(size,))
    plan = lowered(operator, (1, 1, size), (1, 1, size))
    matrix = onednn_axis(
        size, size, align_corners=transformation == "align_corners", nearest=mode == "nearest"
    )
    assert (plan.passes == ()) == np.array_equal(matrix, np.eye(size))
    for each in plan.passes:
        np.testing.assert_array_equal(each.map.dense(), matrix)


def test_batch_and_channel_of_any_length_need_no_table() -> None:
    shape = (2**40, 2**41, 4)
    plan = lowered(backward(), shape, (2**40, 2**41, 2))
    assert [each.axis for each in plan.passes] == [2]


@pytest.mark.parametrize(
    "attributes",
    [
        {"sizes": (6, 9)},
        {"sizes_tensor": (6, 9)},
        {"sizes": (6, 9), "sizes_tensor": (6, 9)},
        {"scales": (1.5, 1.5)},
        {"scales": (1.6, 1.4)},
        {"sizes": (6, 9), "scales": (1.5, 1.5)},
        {"sizes_tensor": (6, 9), "scales": (1.66, 1.6)},
    ],
    ids=str,
)
def test_sizes_and_scales_that_agree_change_nothing(attributes: dict[str, Any]) -> None:
    given = np.random.default_rng(4).standard_normal((1, 2, 6, 9), np.float32)
    expected = evaluate(backward(), given, (1, 2, 4, 6))
    np.testing.assert_array_equal(evaluate(backward(**attributes), given, (1, 2, 4, 6)), expected)
    forward = evaluate(interpolate(**attributes), expected, (1, 2, 6, 9))
    assert forward.shape == (1, 2, 6, 9)


@pytest.mark.parametrize(
    ("scale", "src", "dst"),
    [(0.7, 10, 7), (0.29, 100, 29), (1.6666666, 3, 5), (2, 5, 10), (0.583333, 12, 6), (0.1, 10, 1)],
)
def test_the_forward_cuts_the_float32_product_to_its_size(scale: float, src: int, dst: int) -> None:
    # In float64 10 * 0.7f would be 6.99..., and 100 * 0.29f would be 28.99....
    assert inferred(interpolate(scales=(scale,)), (2, 3, src)) == (2, 3, dst)


def test_sizes_win_over_the_product_of_agreeing_scales() -> None:
    assert inferred(interpolate(scales=(0.583333,), sizes=(7,)), (2, 3, 12)) == (2, 3, 7)
    assert inferred(interpolate(sizes_tensor=(7,)), (2, 3, 12)) == (2, 3, 7)


def test_inferred_sizes_take_their_place_in_the_format() -> None:
    last = ops.Interpolate(mode="linear", sizes=(5, 6))
    assert inferred(last, (2, 3, 4, 7)) == (2, 5, 6, 7)
    assert inferred(interpolate(sizes=(5, 6)), (2, 7, 3, 4)) == (2, 7, 5, 6)


def test_a_gradient_never_infers_its_output() -> None:
    assert inferred(backward(sizes=(8,)), (1, 1, 8)) is None
