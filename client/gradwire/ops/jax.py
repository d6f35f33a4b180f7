"""JAX's resizing operators.

Any axis may change its length; axes that keep it are left alone. The arguments are those of
jax.image.resize, and the weights those of its formula, in float64 for float64 tensors and in
float32 for all others; docs/dialects/jax.md has the formula. A gradient is the exact adjoint of its
forward.

Source: https://docs.jax.dev/en/latest/_autosummary/jax.image.resize.html
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gradwire.ops._base import Operator, attribute, operator_class, sequence

Method = Literal["nearest", "linear", "cubic", "lanczos3", "lanczos5"]


@operator_class
class _JaxResize(Operator):
    method: Method = attribute(
        "The kernel by which an output element of the forward weighs the input.",
        synonyms={
            "bilinear": "linear",
            "trilinear": "linear",
            "triangle": "linear",
            "bicubic": "cubic",
            "tricubic": "cubic",
        },
    )
    shape: Sequence[int] = sequence(
        "Shape of the forward's output, in elements, each at least 1, one per "
        "axis; it must equal that tensor's.",
        bits=64,
    )
    antialias: bool = attribute(
        "Whether the kernel is stretched where an axis shrinks; nearest has none.", default=True
    )


@operator_class
class JaxResizeGrad(_JaxResize):
    """Gradient of JaxResize: from the result's cotangent to the image's.

        JaxResizeGrad(method="cubic")

    takes a gradient of shape (8, 56, 56, 64) to one of shape (8, 112, 112, 64), if that is the
    output shape asked for.
    """

    name = "jax_resize_grad"
    source = (
        "JAX, the transpose of jax.image.resize, "
        "https://docs.jax.dev/en/latest/_autosummary/jax.image.resize.html"
    )
    counterpart = "jax_resize"


@operator_class
class JaxResize(_JaxResize):
    """Resizes to shape."""

    name = "jax_resize"
    source = (
        "JAX jax.image.resize, https://docs.jax.dev/en/latest/_autosummary/jax.image.resize.html"
    )
    gradient = False
    counterpart = "jax_resize_grad"
    output_required = False


OPERATORS = (JaxResizeGrad, JaxResize)
