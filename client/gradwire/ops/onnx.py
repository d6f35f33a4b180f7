"""ONNX's Resize, opset 10 to 19, and its gradient.

Any of a tensor's 1 to 8 axes are resized, to sizes or by scales. The attributes are those of Resize
and its inputs scales, sizes and roi. docs/dialects/onnx.md has the formulas.

Source: https://onnx.ai/onnx/operators/onnx__Resize.html
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from gradwire.errors import InvalidRequestError
from gradwire.ops._base import (
    SLOPE_BITS,
    Choice,
    Flag,
    Floats,
    Integers,
    Number,
    Operator,
    attribute,
)
from gradwire.tensors import MAX_RANK

Mode = Literal["nearest", "linear", "cubic"]
CoordinateTransformationMode = Literal[
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
]
NearestMode = Literal["round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple"]
KeepAspectRatioPolicy = Literal["stretch", "not_larger", "not_smaller"]
Arithmetic = Literal["spec_float64", "float32"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _OnnxResize(Operator):
    min_rank: ClassVar[int] = 1
    max_rank: ClassVar[int] = MAX_RANK

    mode: Mode = field(
        default="nearest",
        metadata=attribute(
            Choice(
                allowed=get_args(Mode),
                description="How an output element of the forward reads the input.",
            )
        ),
    )
    coordinate_transformation_mode: CoordinateTransformationMode = field(
        default="half_pixel",
        metadata=attribute(
            Choice(
                allowed=get_args(CoordinateTransformationMode),
                description="Which coordinate an output element of the forward reads.",
            )
        ),
    )
    nearest_mode: NearestMode = field(
        default="round_prefer_floor",
        metadata=attribute(
            Choice(
                allowed=get_args(NearestMode),
                description="How mode nearest rounds a coordinate; simple is opset 10's.",
            )
        ),
    )
    cubic_coeff_a: float = field(
        default=-0.75,
        metadata=attribute(
            Number(
                bits=32,
                most_bits=SLOPE_BITS,
                description="Slope of mode cubic's kernel at distance 1, from -2**120 to 2**120.",
            )
        ),
    )
    exclude_outside: bool = field(
        default=False,
        metadata=attribute(
            Flag(
                description="Whether elements beyond the edge weigh nothing, the others' weights "
                "being divided by their sum, instead of repeating the edge's.",
            )
        ),
    )
    antialias: bool = field(
        default=False,
        metadata=attribute(
            Flag(
                description="Whether the filter is stretched where an axis shrinks; with modes "
                "linear and cubic.",
            )
        ),
    )
    axes: Sequence[int] = field(
        default=(),
        metadata=attribute(
            Integers(
                most=MAX_RANK,
                bits=64,
                least=-MAX_RANK,
                default_text="all axes in order",
                description="Axes that are resized, each once, from -rank to rank - 1; scales, "
                "sizes and roi have one value per axis named here.",
            )
        ),
    )
    keep_aspect_ratio_policy: KeepAspectRatioPolicy = field(
        default="stretch",
        metadata=attribute(
            Choice(
                allowed=get_args(KeepAspectRatioPolicy),
                description="What sizes ask for; scales do not read it.",
            )
        ),
    )
    scales: Sequence[float] = field(
        default=(),
        metadata=attribute(
            Floats(
                most=MAX_RANK,
                positive=True,
                default_text="not given",
                description="Lengths of the forward's output over its input's, finite and above "
                "0; the output has floor(scale * input) elements. Not together with sizes.",
            )
        ),
    )
    sizes: Sequence[int] = field(
        default=(),
        metadata=attribute(
            Integers(
                most=MAX_RANK,
                bits=64,
                default_text="not given",
                description="Lengths of the forward's output, in elements, each at least 1.",
            )
        ),
    )
    roi: Sequence[float] = field(
        default=(),
        metadata=attribute(
            Floats(
                most=2 * MAX_RANK,
                positive=False,
                default_text="0 to 1 along each axis",
                description="Where tf_crop_and_resize begins to read along each axis, then where "
                "it ends, finite, 0 being the first element and 1 the last one.",
            )
        ),
    )
    extrapolation_value: float = field(
        default=0.0,
        metadata=attribute(
            Number(
                bits=32,
                description="What an element of the forward's output is that lies outside the "
                "input with tf_crop_and_resize, finite; a gradient does not depend on it.",
            )
        ),
    )
    arithmetic: Arithmetic = field(
        default="spec_float64",
        metadata=attribute(
            Choice(
                allowed=get_args(Arithmetic),
                description="Whose arithmetic coordinates and weights follow: the specification's "
                "formulas in float64, or ONNX Runtime's float32.",
            )
        ),
    )

    def _check_together(self) -> None:
        if self.sizes and self.scales:
            raise InvalidRequestError.of(
                self.path("scales"),
                f"is {self.shown()['scales']}, sizes is {self.sizes}; give one of the two",
            )
        if self.antialias and self.mode == "nearest":
            raise InvalidRequestError.of(
                self.path("antialias"), "is True; mode 'nearest' has none, linear and cubic have"
            )
        if self.exclude_outside and not self._excludes_outside():
            raise InvalidRequestError.of(
                self.path("exclude_outside"),
                "is True; ONNX Runtime, whose arithmetic float32 is, takes it with mode 'cubic', "
                "or with mode 'linear' and antialias",
            )

    def _excludes_outside(self) -> bool:
        antialiased = self.mode == "linear" and self.antialias
        return self.arithmetic == "spec_float64" or self.mode == "cubic" or antialiased


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OnnxResizeGrad(_OnnxResize):
    """Gradient of OnnxResize: takes the gradient of Y, of Y's shape, to that of X.

        OnnxResizeGrad(mode="linear", scales=(1, 1, 2, 2))

    Without scales and sizes any two shapes will do, as if sizes had been given.
    """

    name: ClassVar[str] = "onnx_resize_grad"
    source: ClassVar[str] = (
        "the adjoint of ONNX Resize, https://onnx.ai/onnx/operators/onnx__Resize.html"
    )
    gradient: ClassVar[bool] = True
    counterpart: ClassVar[str] = "onnx_resize"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OnnxResize(_OnnxResize):
    """Resamples X to sizes, or to floor(scale * input) along each axis."""

    name: ClassVar[str] = "onnx_resize"
    source: ClassVar[str] = (
        "ONNX Resize, opset 10 to 19, https://onnx.ai/onnx/operators/onnx__Resize.html"
    )
    gradient: ClassVar[bool] = False
    counterpart: ClassVar[str] = "onnx_resize_grad"
    output_required: ClassVar[bool] = False

    def linear(self) -> OnnxResize:
        """Return it without extrapolation_value, which is added whatever the input is."""
        return dataclasses.replace(self, extrapolation_value=0.0)

    def for_output(self, output_shape: Sequence[int]) -> OnnxResize:
        """Return it with sizes, where nothing else tells the output's."""
        if self.sizes or self.scales or self.keep_aspect_ratio_policy != "stretch":
            return self
        axes = [axis for axis in self.axes if -len(output_shape) <= axis < len(output_shape)]
        sizes = [output_shape[axis] for axis in axes] if self.axes else output_shape
        return dataclasses.replace(self, sizes=tuple(sizes))


OPERATORS = (OnnxResizeGrad, OnnxResize)
