"""JAX's resizing operators.

Any axis may change its length; those that keep it are left alone. The arguments are those of
jax.image.resize, and the weights those of its formula, in float64 for float64 tensors and in
float32 for all others; docs/dialects/jax.md has it. A gradient is the exact adjoint of its forward.

Source: https://docs.jax.dev/en/latest/_autosummary/jax.image.resize.html
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from gradwire.ops._base import Choice, Flag, Integers, Operator, attribute

Method = Literal["nearest", "linear", "cubic", "lanczos3", "lanczos5"]

MAX_AXES = 8


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _JaxResize(Operator):
    min_rank: ClassVar[int] = 1
    max_rank: ClassVar[int] = MAX_AXES

    method: Method = field(
        metadata=attribute(
            Choice(
                allowed=get_args(Method),
                synonyms=(
                    ("bilinear", "linear"),
                    ("trilinear", "linear"),
                    ("triangle", "linear"),
                    ("bicubic", "cubic"),
                    ("tricubic", "cubic"),
                ),
                description="The kernel by which an output element of the forward weighs the "
                "input.",
            )
        )
    )
    shape: Sequence[int] = field(
        default=(),
        metadata=attribute(
            Integers(
                most=MAX_AXES,
                bits=64,
                default_text="not given",
                description="Shape of the forward's output, in elements, each at least 1, one per "
                "axis; it must equal that tensor's.",
            )
        ),
    )
    antialias: bool = field(
        default=True,
        metadata=attribute(
            Flag(
                description="Whether the kernel is stretched where an axis shrinks; nearest has "
                "none.",
            )
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class JaxResizeGrad(_JaxResize):
    """Gradient of JaxResize: takes the cotangent of the result to that of the image.

        JaxResizeGrad(method="cubic")

    takes a gradient of shape (8, 56, 56, 64) to one of shape (8, 112, 112, 64), if that is the
    output shape asked for.
    """

    name: ClassVar[str] = "jax_resize_grad"
    source: ClassVar[str] = (
        "JAX, the transpose of jax.image.resize, "
        "https://docs.jax.dev/en/latest/_autosummary/jax.image.resize.html"
    )
    gradient: ClassVar[bool] = True
    counterpart: ClassVar[str] = "jax_resize"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class JaxResize(_JaxResize):
    """Resizes to shape."""

    name: ClassVar[str] = "jax_resize"
    source: ClassVar[str] = (
        "JAX jax.image.resize, https://docs.jax.dev/en/latest/_autosummary/jax.image.resize.html"
    )
    gradient: ClassVar[bool] = False
    counterpart: ClassVar[str] = "jax_resize_grad"
    output_required: ClassVar[bool] = False


OPERATORS = (JaxResizeGrad, JaxResize)
