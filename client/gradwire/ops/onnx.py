"""ONNX's Resize, opset 10 to 19, and its gradient.

Any of a tensor's 1 to 8 axes can be resized, to sizes or by scales. The attributes are those of
Resize and its inputs scales, sizes and roi. docs/dialects/onnx.md has the formulas.

Source: https://onnx.ai/onnx/operators/onnx__Resize.html
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from gradwire.ops._base import SLOPE_BITS, Operator, attribute, operator_class, sequence
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


@operator_class
class _OnnxResize(Operator):
    mode: Mode = attribute(
        "How an output element of the forward reads the input.", default="nearest"
    )
    coordinate_transformation_mode: CoordinateTransformationMode = attribute(
        "Which coordinate an output element of the forward reads.", default="half_pixel"
    )
    nearest_mode: NearestMode = attribute(
        "How mode nearest rounds a coordinate; simple is opset 10's.", default="round_prefer_floor"
    )
    cubic_coeff_a: float = attribute(
        "Slope of mode cubic's kernel at distance 1, from -2**120 to 2**120.",
        default=-0.75,
        most_bits=SLOPE_BITS,
    )
    exclude_outside: bool = attribute(
        "Whether elements beyond the edge weigh nothing, the others' weights "
        "being divided by their sum, instead of repeating the edge's.",
        default=False,
    )
    antialias: bool = attribute(
        "Whether the filter is stretched where an axis shrinks; with modes linear and cubic.",
        default=False,
    )
    axes: Sequence[int] = sequence(
        "Axes that are resized, each once, from -rank to rank - 1; scales, "
        "sizes and roi have one value per axis named here.",
        bits=64,
        least=-MAX_RANK,
        default_text="all axes in order",
    )
    keep_aspect_ratio_policy: KeepAspectRatioPolicy = attribute(
        "What sizes ask for; scales do not read it.", default="stretch"
    )
    scales: Sequence[float] = sequence(
        "Lengths of the forward's output over its input's, finite and above "
        "0; the output has floor(scale * input) elements. Not together with sizes.",
        positive=True,
    )
    sizes: Sequence[int] = sequence(
        "Lengths of the forward's output, in elements, each at least 1.",
        bits=64,
    )
    roi: Sequence[float] = sequence(
        "Where tf_crop_and_resize begins to read along each axis, then where "
        "it ends, finite, 0 being the first element and 1 the last one.",
        most=2 * MAX_RANK,
        default_text="0 to 1 along each axis",
    )
    extrapolation_value: float = attribute(
        "What an element of the forward's output is that lies outside the "
        "input with tf_crop_and_resize, finite; a gradient does not depend on it.",
        default=0.0,
    )
    arithmetic: Arithmetic = attribute(
        "Whose arithmetic coordinates and weights follow: the specification's "
        "formulas in float64, or ONNX Runtime's float32.",
        default="spec_float64",
    )

    def _check_together(self) -> None:
        if self.sizes and self.scales:
            raise self._refused(
                "scales",
                f"is {self.shown()['scales']}, sizes is {self.sizes}; give one of the two",
            )
        if self.antialias and self.mode == "nearest":
            raise self._refused(
                "antialias",
                "is True; mode 'nearest' does not support it; linear and cubic do",
            )
        antialiased = self.mode == "linear" and self.antialias
        excludes = self.arithmetic == "spec_float64" or self.mode == "cubic" or antialiased
        if self.exclude_outside and not excludes:
            raise self._refused(
                "exclude_outside",
                "is True; ONNX Runtime, whose arithmetic float32 is, takes it with mode 'cubic', "
                "or with mode 'linear' and antialias",
            )


@operator_class
class OnnxResizeGrad(_OnnxResize):
    """Gradient of OnnxResize: takes the gradient of Y to X's.

        OnnxResizeGrad(mode="linear", scales=(1, 1, 2, 2))

    Without scales and sizes any two shapes will do, as if sizes had been given.
    """

    name = "onnx_resize_grad"
    source = "the adjoint of ONNX Resize, https://onnx.ai/onnx/operators/onnx__Resize.html"
    counterpart = "onnx_resize"


@operator_class
class OnnxResize(_OnnxResize):
    """Resamples X to sizes, or to floor(scale * input) along each axis."""

    name = "onnx_resize"
    source = "ONNX Resize, opset 10 to 19, https://onnx.ai/onnx/operators/onnx__Resize.html"
    gradient = False
    counterpart = "onnx_resize_grad"
    output_required = False

    def linear(self) -> OnnxResize:
        """Return it without extrapolation_value, which is a constant term."""
        return dataclasses.replace(self, extrapolation_value=0.0)

    def for_output(self, output_shape: Sequence[int]) -> OnnxResize:
        """Return it with sizes, if nothing else determines the output's."""
        if self.sizes or self.scales or self.keep_aspect_ratio_policy != "stretch":
            return self
        axes = [axis for axis in self.axes if -len(output_shape) <= axis < len(output_shape)]
        sizes = [output_shape[axis] for axis in axes] if self.axes else output_shape
        return dataclasses.replace(self, sizes=tuple(sizes))


OPERATORS = (OnnxResizeGrad, OnnxResize)
