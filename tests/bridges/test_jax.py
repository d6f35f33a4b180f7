"""JAX arrays through a real server: gradients of any order, traced, compiled and batched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gradwire import Client, ops
from serving import serving

jax: Any = pytest.importorskip("jax", reason="bridges to JAX where it is installed")
bridge: Any = pytest.importorskip("gradwire.jax")
jnp = jax.numpy

BILINEAR = ops.Interpolate(mode="bilinear", sizes=(7, 2), data_format="NCX")
SHAPE, RESULT = (1, 2, 3, 4), (1, 2, 7, 2)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serving() as server, Client(server.address) as client:
        yield client


@pytest.fixture
def x() -> Any:
    return jnp.asarray(np.random.default_rng(1).standard_normal(SHAPE, np.float32))


def test_first_and_second_gradients_are_evaluated(client: Client, x: Any) -> None:
    def square(x: Any) -> Any:
        return (bridge.evaluate(BILINEAR, x, RESULT, client=client) ** 2).sum() / 2

    there = client.evaluate(BILINEAR, x)
    back = ops.adjoint(BILINEAR)
    expected = client.evaluate(back, there, output_shape=SHAPE)
    assert np.array_equal(jax.grad(square)(x), expected)
    # The second derivative of a square is the adjoint after the operator, whatever x is.
    direction = jnp.ones(SHAPE)
    (second,) = jax.vjp(jax.grad(square), x)[1](direction)
    once = client.evaluate(BILINEAR, direction)
    assert np.array_equal(second, client.evaluate(back, once, output_shape=SHAPE))


def test_a_compiled_function_has_the_bits_of_one_that_is_not(client: Client, x: Any) -> None:
    def loss(x: Any) -> Any:
        return bridge.evaluate(BILINEAR, x, RESULT, client=client).sum()

    assert np.array_equal(jax.jit(jax.grad(loss))(x), jax.grad(loss)(x))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_any_type_gives_the_bits_of_evaluate(client: Client, x: Any, name: str) -> None:
    given = x.astype(name)
    result = bridge.evaluate(BILINEAR, given, RESULT, client=client)
    assert result.dtype == given.dtype
    assert np.asarray(result).tobytes() == client.evaluate(BILINEAR, given).tobytes()


def test_a_batch_has_the_bits_of_each_by_itself(client: Client, x: Any) -> None:
    def square(x: Any) -> Any:
        return (bridge.evaluate(BILINEAR, x, RESULT, client=client) ** 2).sum()

    gradient = jax.grad(square)

    batch = jnp.stack([x * scale for scale in range(6)]).reshape(2, 3, *SHAPE)
    results = jax.jit(jax.vmap(jax.vmap(gradient)))(batch)
    each = [gradient(one) for one in batch.reshape(6, *SHAPE)]
    assert np.array_equal(results.reshape(6, *SHAPE), np.stack(each))


def test_errors_are_told(client: Client) -> None:
    with pytest.raises(Exception, match=r"input\.sizes"):
        bridge.evaluate(BILINEAR, jnp.ones((3, 4)), (7, 2), client=client).block_until_ready()
