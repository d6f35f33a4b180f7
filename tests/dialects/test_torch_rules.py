"""PyTorch's operators: sizes, coordinates, and tables of each type and length."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gradwire import ops
from gradwire_server import dialects
from gradwire_server.errors import TableTooLargeError
from support.oracles.dialect_oracles import evaluate, lowered

Shape = tuple[int, ...]


def test_a_gradient_needs_no_size() -> None:
    gradient = ops.TorchUpsampleBackward()
    assert lowered(gradient, (1, 1, 8), (1, 1, 4)).passes


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
    assert lowered(operator, source, result).output_shape == result


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
        lowered(operator, (1, 1, 3), (1, 1, 7), kind).passes[0].map for kind in (single, double)
    ]
    np.testing.assert_array_equal(maps[0].weight, maps[0].weight.astype(np.float32))
    assert not np.array_equal(maps[0].weight, maps[1].weight)
    assert dialects.table_type(operator.name, double) == double
    assert dialects.table_type("interpolate", double) is None


def test_a_wide_band_counts_before_it_is_built() -> None:
    operator = ops.TorchUpsampleBackward(mode="area")
    with pytest.raises(TableTooLargeError):
        lowered(operator, (1, 1, 3), (1, 1, 2**40), max_float32_axis=2**62)


def test_a_table_of_many_blocks_is_the_table_of_one() -> None:
    operator = ops.TorchInterpolate(mode="bicubic", antialias=True, size=(90_000, 3))
    long = lowered(operator, (1, 1, 300_000, 3), (1, 1, 90_000, 3))
    bands = long.passes[0].map
    # The scale is 10 / 3 exactly: every third output reads alike, ten inputs on.
    inside = slice(300, 89_700)
    np.testing.assert_array_equal(bands.start[inside][3:], bands.start[inside][:-3] + 10)
    sums = np.add.reduceat(bands.weight, bands.offset[:-1])
    assert np.abs(sums - 1).max() < 2.0**-20


def test_the_gradient_of_area_is_added_in_float32_whatever_the_type() -> None:
    ones = np.ones((1, 1, 96, 96), ml_dtypes.bfloat16)
    result = evaluate(ops.TorchUpsampleBackward(mode="area"), ones, (1, 1, 2, 2))
    assert float(result.astype(np.float64).sum()) == 96 * 96
