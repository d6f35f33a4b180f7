"""DirectML gradients of one axis that a reader can check by hand, and whose offsets are meant."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from gradwire import ops
from support.oracles.dialect_oracles import DML_RULES, Pair, Tensor, dml_operators, evaluate, f32

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
