"""ops.adjoint() names the transposed operator, for every dialect."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dialect_tables import EXAMPLES
from gradwire import ops
from support.oracles.dialect_oracles import Matrix, lowered
from support.oracles.dialect_table import Example


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


def without_sizes(operator: ops.Operator) -> ops.Operator:
    """Return a gradient that leaves its forward's sizes to the shapes."""
    fields = {field.name for field in dataclasses.fields(operator)}
    return dataclasses.replace(operator, **dict.fromkeys(fields & {"size", "sizes", "shape"}, ()))


GRADIENTS = {
    name: one
    for name, one in EXAMPLES.items()
    if one.operator.gradient and getattr(one.operator, "follow", "") != "backward_op"
}


@pytest.mark.parametrize("example", GRADIENTS.values(), ids=list(GRADIENTS))
def test_the_forward_of_a_gradient_without_sizes_is_told_them_by_a_shape(example: Example) -> None:
    gradient, source, result = without_sizes(example.operator), example.source, example.result
    forward = ops.adjoint(gradient).for_output(source)
    assert forward.for_output((1,) * len(source)) == forward
    back, there = bands(gradient, source, result), bands(forward, result, source)
    assert there.keys() == back.keys()
    for axis in there:
        np.testing.assert_array_equal(there[axis], back[axis].T)


def test_swapped_offsets_are_the_forwards_in_the_forward() -> None:
    gradient = ops.DmlResampleGrad(
        interpolation_mode="linear", input_pixel_offsets=(0.25,), offset_convention="swapped"
    )
    assert ops.adjoint(gradient) == ops.DmlResample(
        interpolation_mode="linear", output_pixel_offsets=(0.25,)
    )
