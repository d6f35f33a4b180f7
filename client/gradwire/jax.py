"""Resampling in JAX by a gradwire server: deterministic, with gradients of any order.

    import gradwire.jax

    with gradwire.Client() as client:
        up = lambda x: gradwire.jax.evaluate(operator, x, (1, 8, 8, 3), client=client)
        jax.jit(jax.grad(lambda x: up(x).sum()))(x)

Needs JAX (pip install "gradwire[jax]"). jit and vmap take it, reverse-mode differentiation too;
forward mode does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire import ops
from gradwire._bridges import CLIENTS, Evaluator, as_text, from_text, linear
from gradwire._many_items import Item

jax: Any = import_module("jax")

Array = Any


def evaluate(
    operator: ops.Operator,
    x: Array,
    output_shape: Sequence[int],
    *,
    adjoint: ops.Operator | None = None,
    client: Evaluator | None = None,
) -> Array:
    """Return the operator applied to an array; it can be differentiated any number of times.

    x             float32, float16, bfloat16 or float64
    output_shape  of the result
    adjoint       what takes the gradient of the result to that of x; None means ops.adjoint() of
                  the operator. Of that gradient, the operator itself takes the
                  gradient, without a constant that it adds
    client        what evaluates; kept by the caller as long as what was traced may run. None means
                  one Client() of this process

    Raises what JAX makes of errors of client.evaluate(), under jax.jit or not.
    """
    other = ops.adjoint(operator) if adjoint is None else adjoint
    x = jax.numpy.asarray(x)
    shape = tuple(int(size) for size in output_shape)
    call = _Call(as_text(operator), as_text(other), shape, CLIENTS.number(client))
    return _evaluate(call, x)


class _Call(NamedTuple):
    """What a compiled graph knows of an evaluation; texts and number as _bridges has them."""

    operator: str
    adjoint: str
    shape: tuple[int, ...]
    client: int


def _apply(call: _Call, x: Array) -> Array:
    told = jax.ShapeDtypeStruct(call.shape, x.dtype)
    return jax.pure_callback(partial(_run, call, x.ndim), told, x, vmap_method="broadcast_all")


def _run(call: _Call, rank: int, x: Array) -> NDArray[Any]:
    """Evaluate an array, or under vmap all those along the axes before its own."""
    evaluator, operator = CLIENTS.by_number(call.client), from_text(call.operator)
    array, batch = np.asarray(x), x.shape[: x.ndim - rank]
    if not batch:
        return evaluator.evaluate(operator, array, output_shape=call.shape)
    arrays = array.reshape(math.prod(batch), *x.shape[len(batch) :])
    results = np.empty((len(arrays), *call.shape), array.dtype)
    pairs = zip(arrays, results, strict=True)
    for _ in evaluator.evaluate_many(Item(operator, one, call.shape, out) for one, out in pairs):
        pass
    return results.reshape(*batch, *call.shape)


def _forward(call: _Call, x: Array) -> tuple[Array, tuple[int, ...]]:
    return _evaluate(call, x), x.shape


def _backward(call: _Call, shape: tuple[int, ...], gradient: Array) -> tuple[Array]:
    return (_evaluate(_Call(call.adjoint, linear(call.operator), shape, call.client), gradient),)


_evaluate = jax.custom_vjp(_apply, nondiff_argnums=(0,))
_evaluate.defvjp(_forward, _backward)
