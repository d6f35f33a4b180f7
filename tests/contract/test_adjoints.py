"""ops.adjoint() names the transposed operator, for every dialect."""

from __future__ import annotations

import numpy as np
import pytest

from dialect_oracles import Matrix, lowered
from dialect_table import Example
from dialect_tables import EXAMPLES
from gradwire import ops


def bands(
    operator: ops.Operator, source: tuple[int, ...], result: tuple[int, ...]
) -> dict[int, Matrix]:
    plan = lowered(operator, source, result, np.float32)
    return {one.axis: one.map.dense() for one in plan.passes}


# What follows PyTorch's own backward need not be adjoint to its forward.
TRANSPOSED = {
    name: example
    for name, example in EXAMPLES.items()
    if getattr(example.operator, "follow", "") != "backward_op"
}


@pytest.mark.parametrize("example", TRANSPOSED.values(), ids=list(TRANSPOSED))
def test_the_tables_of_an_operator_and_its_adjoint_are_transposed(example: Example) -> None:
    operator, source, result = example.operator, example.source, example.result
    adjoint = ops.adjoint(operator)
    assert adjoint.gradient is not operator.gradient
    own, other = bands(operator, source, result), bands(adjoint, result, source)
    assert own.keys() == other.keys()
    for axis in own:
        np.testing.assert_array_equal(own[axis], other[axis].T)


def test_swapped_offsets_are_the_forwards_in_the_forward() -> None:
    gradient = ops.DmlResampleGrad(
        interpolation_mode="linear", input_pixel_offsets=(0.25,), offset_convention="swapped"
    )
    assert ops.adjoint(gradient) == ops.DmlResample(
        interpolation_mode="linear", output_pixel_offsets=(0.25,)
    )
