"""Every example of every dialect has the same bits however called, and an adjoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dialect_tables import EXAMPLES
from gradwire import Client, ops
from gradwire.ops._base import is_default
from gradwire_server import LocalClient
from support.clients import AWAITED
from support.command_line import run_here
from support.oracles.dialect_oracles import DTYPES, Matrix, evaluate, lowered
from support.oracles.dialect_table import Example
from support.servers import same_bits, serving

every_example = pytest.mark.parametrize("example", EXAMPLES.values(), ids=list(EXAMPLES))
every_type = pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with serving() as server:
        yield server.address


@pytest.fixture(scope="module")
def client(target: str) -> Iterator[Client]:
    with Client(target) as client:
        yield client


@pytest.fixture(scope="module")
def local() -> Iterator[LocalClient]:
    with LocalClient() as local:
        yield local


def test_every_operator_has_an_example() -> None:
    assert {example.operator.name for example in EXAMPLES.values()} == set(ops.OPERATORS)


@every_example
def test_an_example_has_the_result_that_stands_beside_it(example: Example) -> None:
    result = evaluate(example.operator, example.given(), example.result)
    if example.expected is not None:
        np.testing.assert_array_equal(result, np.array(example.expected, np.float32))


@every_type
@every_example
def test_both_clients_and_no_socket_give_the_same_bits(
    client: Client, local: LocalClient, target: str, example: Example, dtype: np.dtype[Any]
) -> None:
    given = example.given(dtype)
    expected = evaluate(example.operator, given, example.result)
    with AWAITED(target) as awaited:
        for one in (client, local, awaited):
            result = one.evaluate(example.operator, given, output_shape=example.result)
            same_bits(result, expected)
    (many,) = client.evaluate_many([(example.operator, given, example.result)])
    same_bits(many, expected)
    if not example.operator.output_required:
        same_bits(client.evaluate(example.operator, given), expected)


def assignments(operator: ops.Operator) -> list[str]:
    """Return an operator's attributes as the command line takes them."""
    options: list[str] = []
    for field in dataclasses.fields(operator):
        value: Any = getattr(operator, field.name)
        if not is_default(field, value):
            text = str(value).strip("()").replace(" ", "").removesuffix(",")
            options += ["--attr", f"{field.name}={text}"]
    return options


@every_example
def test_the_command_line_gives_the_same_bits(
    tmp_path: Path, target: str, example: Example
) -> None:
    given = example.given()
    np.save(tmp_path / "given.npy", given)
    shape = ("--output-shape", ",".join(map(str, example.result)))
    done = run_here(
        *("evaluate", tmp_path / "given.npy", tmp_path / "result.npy", "--target", target),
        *("--op", example.operator.name, *assignments(example.operator), *shape),
    )
    assert done.code == 0, done.stderr
    expected = evaluate(example.operator, given, example.result)
    same_bits(np.load(tmp_path / "result.npy"), expected)


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
