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


FORWARDS = {name: one for name, one in EXAMPLES.items() if not one.operator.gradient}


@pytest.mark.parametrize("example", FORWARDS.values(), ids=list(FORWARDS))
def test_the_tables_of_an_operator_and_its_adjoint_are_transposed(example: Example) -> None:
    forward, source, result = example.operator, example.source, example.result
    gradient = ops.adjoint(forward)
    assert gradient.name == forward.counterpart
    there, back = bands(forward, source, result), bands(gradient, result, source)
    again = bands(ops.adjoint(gradient), source, result)
    assert there.keys() == back.keys() == again.keys()
    for axis in there:
        np.testing.assert_array_equal(there[axis], back[axis].T)
        np.testing.assert_array_equal(there[axis], again[axis])


def test_swapped_offsets_are_the_forwards_in_the_forward() -> None:
    gradient = ops.DmlResampleGrad(
        interpolation_mode="linear", input_pixel_offsets=(0.25,), offset_convention="swapped"
    )
    assert ops.adjoint(gradient) == ops.DmlResample(
        interpolation_mode="linear", output_pixel_offsets=(0.25,)
    )
