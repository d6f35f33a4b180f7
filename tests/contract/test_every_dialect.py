"""Every example of every dialect has the same bits whichever way it is called."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dialect_tables import EXAMPLES
from gradwire import AsyncClient, Client, ops
from gradwire.ops._base import is_default
from gradwire_server import LocalClient
from support.command_line import run_here
from support.oracles.dialect_oracles import Tensor, evaluate
from support.oracles.dialect_table import Example
from support.servers import serving

DTYPES = [np.dtype(t) for t in (np.float32, np.float16, ml_dtypes.bfloat16, np.float64)]
every_example = pytest.mark.parametrize("example", EXAMPLES.values(), ids=list(EXAMPLES))
every_type = pytest.mark.parametrize("dtype", DTYPES, ids=str)


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


def same_bits(result: Tensor, expected: Tensor) -> None:
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    assert result.tobytes() == expected.tobytes()


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

    async def awaited() -> Tensor:
        async with AsyncClient(target) as other:
            return await other.evaluate(example.operator, given, output_shape=example.result)

    same_bits(client.evaluate(example.operator, given, output_shape=example.result), expected)
    same_bits(local.evaluate(example.operator, given, output_shape=example.result), expected)
    same_bits(asyncio.run(awaited()), expected)
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
