"""OpenVINO's interpolation operators.

The attributes and inputs are those of Interpolate-11, and the weights those of OpenVINO's reference
implementation; docs/dialects/openvino.md has the formulas. OpenVINO has no gradient: ours is the
exact adjoint of that forward.

Source: https://docs.openvino.ai/2025/documentation/openvino-ir-format/operation-sets/operation-specs/image/interpolate-11.html
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from gradwire.ops._base import SLOPE_BITS, Operator, attribute, operator_class, sequence

Mode = Literal["nearest", "linear", "linear_onnx", "cubic", "bilinear_pillow", "bicubic_pillow"]
ShapeCalculationMode = Literal["sizes", "scales"]
CoordinateTransformationMode = Literal[
    "half_pixel", "pytorch_half_pixel", "asymmetric", "tf_half_pixel_for_nn", "align_corners"
]
NearestMode = Literal["round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple"]


@operator_class
class _OpenvinoInterpolate(Operator):
    mode: Mode = attribute(
        "How an output element of the forward reads the padded input; the "
        "pillow modes take two axes, linear_onnx all, or all but batch and channel."
    )
    shape_calculation_mode: ShapeCalculationMode = attribute(
        "Whether sizes or scales tell the lengths of the forward's output.", default="sizes"
    )
    sizes: Sequence[int] = sequence(
        "Lengths of the forward's output, in elements, each at least 1, one "
        "per entry of axes; with shape_calculation_mode sizes.",
        bits=64,
    )
    scales: Sequence[float] = sequence(
        "Lengths of the forward's output over those of its padded input, "
        "finite and above 0, one per entry of axes; with shape_calculation_mode scales.",
        positive=True,
    )
    axes: Sequence[int] = sequence(
        "Axes that are resampled, each once, in the order of sizes or scales.",
        bits=32,
        least=0,
        default_text="all",
    )
    coordinate_transformation_mode: CoordinateTransformationMode = attribute(
        "How coordinates correspond; the pillow modes have their own.", default="half_pixel"
    )
    nearest_mode: NearestMode = attribute(
        "How coordinates are rounded, with nearest.", default="round_prefer_floor"
    )
    antialias: bool = attribute(
        "Whether the triangle of linear is stretched where an axis shrinks.", default=False
    )
    pads_begin: Sequence[int] = sequence(
        "Elements of 0 put before each axis; what is not given is 0.",
        bits=32,
        least=0,
        default_text="0 on each axis",
    )
    pads_end: Sequence[int] = sequence(
        "Elements of 0 put after each axis; what is not given is 0.",
        bits=32,
        least=0,
        default_text="0 on each axis",
    )
    cube_coeff: float = attribute(
        "Slope of the kernels of cubic and bicubic_pillow, from -2**120 to 2**120.",
        default=-0.75,
        bits=64,
        most_bits=SLOPE_BITS,
    )

    def _check_together(self) -> None:
        for name in get_args(ShapeCalculationMode):
            if getattr(self, name) and self.shape_calculation_mode != name:
                raise self._refused(
                    name,
                    f"is {self.shown()[name]}; shape_calculation_mode is "
                    f"{self.shape_calculation_mode!r}: give {self.shape_calculation_mode}",
                )
        if self.shape_calculation_mode == "scales" and not self.scales:
            raise self._refused(
                "scales", "is empty; with shape_calculation_mode 'scales' give them"
            )


_URL = (
    "https://docs.openvino.ai/2025/documentation/openvino-ir-format/operation-sets/"
    "operation-specs/image/interpolate-11.html"
)


@operator_class
class OpenvinoInterpolateGrad(_OpenvinoInterpolate):
    """Gradient of OpenvinoInterpolate, which OpenVINO itself does not have.

        OpenvinoInterpolateGrad(mode="cubic", axes=(2, 3))

    takes a gradient of shape (8, 64, 112, 112) to one of shape (8, 64, 56, 56), if that is the
    output shape asked for.
    """

    name = "openvino_interpolate_grad"
    source = f"OpenVINO, the adjoint of Interpolate-11, {_URL}"
    counterpart = "openvino_interpolate"


@operator_class
class OpenvinoInterpolate(_OpenvinoInterpolate):
    """Pads, then resamples axes to sizes or by scales.

    A scale gives the size int(length * (scale + 1e-6)).
    """

    name = "openvino_interpolate"
    source = f"OpenVINO Interpolate-11, {_URL}"
    gradient = False
    counterpart = "openvino_interpolate_grad"
    output_required = False


OPERATORS = (OpenvinoInterpolateGrad, OpenvinoInterpolate)
