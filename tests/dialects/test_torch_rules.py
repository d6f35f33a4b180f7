"""What PyTorch's attributes may be, what sizes they tell, and what refuses them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradwire import ops
from gradwire.errors import InvalidRequestError
from gradwire_server import dialects
from gradwire_server.errors import InvalidFieldError, TableTooLargeError
from support.oracles.dialect_oracles import evaluate

Shape = tuple[int, ...]

# Refused as a value, before any shape is known.
VALUES: list[tuple[dict[str, Any], str, str]] = [
    ({"size": 2, "scale_factor": 2}, "scale_factor", "size is (2,); give one of the two"),
    ({"size": 2, "recompute_scale_factor": True}, "recompute_scale_factor", "leave it out"),
    ({"align_corners": False}, "align_corners", "mode 'nearest' has none: leave it out"),
    ({"mode": "area", "align_corners": True}, "align_corners", "leave it out"),
    ({"mode": "linear", "antialias": True}, "antialias", "bilinear, bicubic, lanczos have"),
    ({"mode": "lanczos"}, "antialias", "mode 'lanczos' needs True"),
    (
        {"mode": "lanczos", "antialias": True, "align_corners": True},
        "align_corners",
        "mode 'lanczos' has none",
    ),
    ({"mode": "nearest_exact"}, "mode", "did you mean 'nearest-exact'?"),
    ({"antialias": "yes"}, "antialias", "is 'yes' (str); give True or False"),
    ({"antialias": 1}, "antialias", "is 1 (int); give True or False"),
    ({"antialias": None}, "antialias", "is None; give True or False"),
    ({"scale_factor": 0.0}, "scale_factor", "finite and above 0 in float64"),
    ({"scale_factor": (1.0, np.nan)}, "scale_factor[1]", "finite and above 0 in float64"),
    ({"scale_factor": True}, "scale_factor", "is True (bool)"),
    ({"size": 0}, "size", "is 0 (int); give integers, each from 1"),
    ({"size": (2, 2, 2, 2)}, "size", "more than 3 values"),
]


@pytest.mark.parametrize(("given", "field", "words"), VALUES, ids=str)
def test_a_value_is_refused_in_words(given: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        ops.TorchUpsampleBackward(**given)
    assert refused.value.field == f"operator.torch_upsample_backward.{field}"
    assert words in refused.value.description


# Refused for the shapes of the forward's input and output.
SHAPES: list[tuple[dict[str, Any], Shape, Shape, str, str]] = [
    ({"mode": "bilinear", "size": 2}, (1, 1, 4), (1, 1, 2), "mode", "for tensors of 4 axes"),
    ({"mode": "linear", "size": 2}, (1, 1, 4, 4), (1, 1, 2, 2), "mode", "for tensors of 3 axes"),
    ({"size": (2, 2)}, (1, 1, 4), (1, 1, 2), "size", "give 1, one for all, or none"),
    ({"scale_factor": (2, 2)}, (1, 1, 4), (1, 1, 8), "scale_factor", "give 1, one for all"),
    ({"size": 3}, (1, 1, 4), (1, 1, 2), "input.sizes[2]", "is 2; size makes 3 of the 4"),
    ({"scale_factor": 2}, (1, 1, 4), (1, 1, 9), "input.sizes[2]", "scale_factor 2.0 makes 8"),
    ({"scale_factor": 0.2}, (1, 1, 4), (1, 1, 1), "scale_factor[0]", "makes 0.8 of 4 elements"),
    ({}, (1, 2, 4), (1, 3, 4), "input.sizes[1]", "the channel axis is not resampled"),
]


@pytest.mark.parametrize(("given", "source", "result", "field", "words"), SHAPES, ids=str)
def test_attributes_that_do_not_fit_the_shapes_are_refused_by_field(
    given: dict[str, Any], source: Shape, result: Shape, field: str, words: str
) -> None:
    operator = ops.TorchUpsampleBackward(**given)
    with pytest.raises(InvalidFieldError) as refused:
        dialects.lower(operator.name, operator, result, source)
    expected = field if "." in field else f"operator.{operator.name}.{field}"
    assert refused.value.field == expected
    assert words in str(refused.value)


def test_a_forward_needs_a_size_and_a_gradient_does_not() -> None:
    forward, gradient = ops.TorchInterpolate(), ops.TorchUpsampleBackward()
    with pytest.raises(InvalidFieldError, match="and so is scale_factor"):
        dialects.lower(forward.name, forward, (1, 1, 4), (1, 1, 8))
    with pytest.raises(InvalidFieldError, match="and so is scale_factor"):
        dialects.output_shape(forward.name, forward, (1, 1, 4))
    assert dialects.lower(gradient.name, gradient, (1, 1, 8), (1, 1, 4)).passes


SIZES: list[tuple[dict[str, Any], Shape, Shape]] = [
    ({"size": 5}, (2, 3, 4, 7, 1), (2, 3, 5, 5, 5)),
    ({"size": (5, 6)}, (2, 3, 4, 7), (2, 3, 5, 6)),
    ({"scale_factor": 1.7}, (2, 3, 4, 7), (2, 3, 6, 11)),
    # float64, truncated: 0.29 * 100 is 28.999999999999996.
    ({"scale_factor": 0.29}, (1, 1, 100), (1, 1, 28)),
    ({"scale_factor": 0.29, "recompute_scale_factor": True}, (1, 1, 100), (1, 1, 28)),
    ({"scale_factor": 0.7, "mode": "area"}, (1, 1, 10), (1, 1, 7)),
]


@pytest.mark.parametrize(("given", "source", "result"), SIZES, ids=str)
def test_the_output_has_the_size_that_pytorch_gives_it(
    given: dict[str, Any], source: Shape, result: Shape
) -> None:
    operator = ops.TorchInterpolate(**given)
    assert dialects.output_shape(operator.name, operator, source) == result
    assert dialects.lower(operator.name, operator, source, result).output_shape == result


def test_a_scale_factor_moves_coordinates_unless_it_is_recomputed() -> None:
    x = np.arange(10, dtype=np.float32).reshape(1, 1, 10)
    shape = (1, 1, 12)
    by_size = evaluate(ops.TorchInterpolate(mode="linear", size=12), x, shape)
    given: dict[str, Any] = {"mode": "linear", "scale_factor": 1.25}
    by_factor = evaluate(ops.TorchInterpolate(**given), x, shape)
    again = evaluate(ops.TorchInterpolate(recompute_scale_factor=True, **given), x, shape)
    np.testing.assert_array_equal(again, by_size)
    assert not np.array_equal(by_factor, by_size)


def test_tables_for_float64_are_their_own_and_those_of_narrow_types_are_float32s() -> None:
    operator = ops.TorchInterpolate(mode="linear", size=7)
    single: np.dtype[np.floating] = np.dtype(np.float32)
    double: np.dtype[np.floating] = np.dtype(np.float64)
    maps = [
        dialects.lower(operator.name, operator, (1, 1, 3), (1, 1, 7), compute=kind).passes[0].map
        for kind in (single, double)
    ]
    np.testing.assert_array_equal(maps[0].weight, maps[0].weight.astype(np.float32))
    assert not np.array_equal(maps[0].weight, maps[1].weight)
    assert dialects.table_type(operator.name, double) == double
    assert dialects.table_type("interpolate", double) is None


def test_a_wide_band_counts_before_it_is_built() -> None:
    operator = ops.TorchUpsampleBackward(mode="area")
    with pytest.raises(TableTooLargeError):
        dialects.lower(operator.name, operator, (1, 1, 3), (1, 1, 2**40), max_float32_axis=2**62)


def test_a_table_of_many_blocks_is_the_table_of_one() -> None:
    operator = ops.TorchInterpolate(mode="bicubic", antialias=True, size=(90_000, 3))
    long = dialects.lower(operator.name, operator, (1, 1, 300_000, 3), (1, 1, 90_000, 3))
    bands = long.passes[0].map
    # The scale is 10 / 3 exactly: every third output reads alike, ten inputs on.
    inside = slice(300, 89_700)
    np.testing.assert_array_equal(bands.start[inside][3:], bands.start[inside][:-3] + 10)
    sums = np.add.reduceat(bands.weight, bands.offset[:-1])
    assert np.abs(sums - 1).max() < 2.0**-20
