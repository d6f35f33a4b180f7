"""Resampling in JAX by a gradwire server.

Results are deterministic, with gradients of any order.

    import gradwire.jax

    with gradwire.Client() as client:
        up = lambda x: gradwire.jax.resize(x, (1, 8, 8, 3), "cubic", client=client)
        jax.jit(jax.grad(lambda x: up(x).sum()))(x)

Needs JAX (pip install "gradwire[jax]"). jit and vmap take it, reverse-mode differentiation too;
forward mode does not.

Wrong arguments raise an error when a function is called or traced. Errors of an evaluation are
raised unchanged if nothing is traced; a compiled function, or one under vmap, raises JAX's own
error, whose message ends with the name and message of ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire import ops
from gradwire._core.bridges import CLIENTS, Evaluator, as_text, check_shapes, linear, operator_for
from gradwire._wire.requests import Item
from gradwire.client import Client
from gradwire.errors import InvalidRequestError
from gradwire.ops.jax import Method
from gradwire.tensors import Shape, Sizes, data_type_of

jax: Any = import_module("jax")

Array = Any


def evaluate(
    operator: ops.Operator,
    x: Array,
    output_shape: Sizes,
    *,
    adjoint: ops.Operator | None = None,
    client: Evaluator | None = None,
) -> Array:
    """Return the operator applied to an array, differentiable any number of times.

    x             float32, float16, bfloat16 or float64
    output_shape  of the result; it determines sizes that attributes leave out
    adjoint       operator that takes the gradient of the result to that of x; None means
                  ops.adjoint() of the operator. The operator itself takes the gradient of that
                  gradient, without a constant that it adds
    client        evaluates; the caller keeps it as long as traced functions may run. None means one
                  Client() of this process

    Raises InvalidRequestError, under jax.jit too, for impossible types or shapes. Errors of
    client.evaluate() are raised unchanged if nothing is traced, otherwise as JAX converts them.
    """
    other = ops.adjoint(operator) if adjoint is None else adjoint
    x = jax.numpy.asarray(x)
    data_type_of(x.dtype)
    check_shapes(operator, x.shape, output_shape)
    shape = tuple(map(index, output_shape))
    call = _JaxCall(as_text(operator), as_text(other), shape, CLIENTS.number(client, Client))
    return _evaluate(call, x)


def resize(
    image: Array,
    shape: Sizes,
    method: Method | Any,
    antialias: bool = True,  # noqa: FBT001, FBT002
    precision: Any = None,
    *,
    client: Evaluator | None = None,
) -> Array:
    """Resize as jax.image.resize does; it can be differentiated any number of times.

    image      any axis may change its length. Integers become float32, 64-bit ones float64; nearest
               takes none
    shape      of the result
    method     a name that jax.image.resize takes, or a jax.image.ResizeMethod
    antialias  whether kernels are stretched where an axis shrinks
    precision  of no effect: the arithmetic is that of docs/dialects/jax.md
    client     as for evaluate()

    Raises InvalidRequestError, a ValueError, if an argument is wrong, and the errors of evaluate().
    """
    del precision
    name: Any = method
    if isinstance(method, jax.image.ResizeMethod):
        name = name.name.lower()
    operator = ops.JaxResize(method=name, antialias=antialias)
    image = _inexact(jax.numpy.asarray(image), operator)
    lengths = tuple(shape)
    if len(lengths) == image.ndim and 0 in lengths:
        return jax.numpy.zeros(lengths, image.dtype)
    return evaluate(operator, image, lengths, client=client)


def _inexact(image: Array, operator: ops.JaxResize) -> Array:
    """Return an image in the type that jax.image.resize converts to."""
    if jax.numpy.issubdtype(image.dtype, jax.numpy.inexact):
        return image
    if operator.method == "nearest":
        wanted = "nearest keeps the type of an image: give one of a floating type"
        raise InvalidRequestError.of("image", f"is {image.dtype}; {wanted}")
    is_long = image.dtype.itemsize == np.dtype(np.int64).itemsize
    return image.astype("float64" if is_long else "float32")


@dataclass(frozen=True, slots=True)
class _JaxCall:
    """An evaluation in a compiled graph.

    Texts and number are those of _core.bridges.
    """

    operator: str
    adjoint: str
    shape: Shape
    client: int


def _apply(call: _JaxCall, x: Array) -> Array:
    """Evaluate at once if the numbers are there.

    Errors are then raised unchanged.
    """
    if not isinstance(x, jax.core.Tracer):
        # JAX gathers an array of several devices, and cotangents may be arrays of NumPy.
        one_device = isinstance(x, jax.Array) and x.committed and len(x.devices()) == 1
        return jax.device_put(_run(call, x.ndim, x), x.sharding if one_device else None)
    made = jax.ShapeDtypeStruct(call.shape, x.dtype)
    return jax.pure_callback(partial(_run, call, x.ndim), made, x, vmap_method="broadcast_all")


def _run(call: _JaxCall, rank: int, x: Array) -> NDArray[Any]:
    """Evaluate an array.

    Under vmap, evaluate all arrays along the axes before its own.
    """
    evaluator, operator = CLIENTS.by_number(call.client), operator_for(call.operator, call.shape)
    array, batch = np.asarray(x), x.shape[: x.ndim - rank]
    if not batch:
        return evaluator.evaluate(operator, array, output_shape=call.shape)
    arrays = array.reshape(math.prod(batch), *x.shape[len(batch) :])
    results = np.empty((len(arrays), *call.shape), array.dtype)
    pairs = zip(arrays, results, strict=True)
    for _ in evaluator.evaluate_many(Item(operator, one, call.shape, out) for one, out in pairs):
        pass
    return results.reshape(*batch, *call.shape)


def _forward(call: _JaxCall, x: Array) -> tuple[Array, Shape]:
    return _evaluate(call, x), x.shape


def _backward(call: _JaxCall, shape: Shape, gradient: Array) -> tuple[Array]:
    return (_evaluate(_JaxCall(call.adjoint, linear(call.operator), shape, call.client), gradient),)


_evaluate = jax.custom_vjp(_apply, nondiff_argnums=(0,))
_evaluate.defvjp(_forward, _backward)
