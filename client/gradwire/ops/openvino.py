"""OpenVINO's interpolation operators.

The attributes and inputs are those of Interpolate-11, and the weights those of OpenVINO's reference
implementation; docs/dialects/openvino.md has the formulas. OpenVINO has no gradient: ours is the
exact adjoint of that forward.

Source: https://docs.openvino.ai/2025/documentation/openvino-ir-format/operation-sets/operation-specs/image/interpolate-11.html
"""

from __future__ import annotations

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

Mode = Literal["nearest", "linear", "linear_onnx", "cubic", "bilinear_pillow", "bicubic_pillow"]
ShapeCalculationMode = Literal["sizes", "scales"]
CoordinateTransformationMode = Literal[
    "half_pixel", "pytorch_half_pixel", "asymmetric", "tf_half_pixel_for_nn", "align_corners"
]
NearestMode = Literal["round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple"]

MAX_AXES = 8


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _OpenvinoInterpolate(Operator):
    min_rank: ClassVar[int] = 1
    max_rank: ClassVar[int] = MAX_AXES

    mode: Mode = field(
        metadata=attribute(
            Choice(
                allowed=get_args(Mode),
                description="How an output element of the forward reads the padded input; the "
                "pillow modes take two axes, linear_onnx all, or all but batch and channel.",
            )
        )
    )
    shape_calculation_mode: ShapeCalculationMode = field(
        default="sizes",
        metadata=attribute(
            Choice(
                allowed=get_args(ShapeCalculationMode),
                description="Whether sizes or scales tell the lengths of the forward's output.",
            )
        ),
    )
    sizes: Sequence[int] = field(
        default=(),
        metadata=attribute(
            Integers(
                most=MAX_AXES,
                bits=64,
                default_text="not given",
                description="Lengths of the forward's output, in elements, each at least 1, one "
                "per entry of axes; with shape_calculation_mode sizes.",
            )
        ),
    )
    scales: Sequence[float] = field(
        default=(),
        metadata=attribute(
            Floats(
                most=MAX_AXES,
                positive=True,
                default_text="not given",
                description="Lengths of the forward's output over those of its padded input, "
                "finite and above 0, one per entry of axes; with shape_calculation_mode scales.",
            )
        ),
    )
    axes: Sequence[int] = field(
        default=(),
        metadata=attribute(
            Integers(
                most=MAX_AXES,
                bits=32,
                least=0,
                default_text="all",
                description="Axes that are resampled, each once, in the order of sizes or scales.",
            )
        ),
    )
    coordinate_transformation_mode: CoordinateTransformationMode = field(
        default="half_pixel",
        metadata=attribute(
            Choice(
                allowed=get_args(CoordinateTransformationMode),
                description="How coordinates correspond; the pillow modes have their own.",
            )
        ),
    )
    nearest_mode: NearestMode = field(
        default="round_prefer_floor",
        metadata=attribute(
            Choice(
                allowed=get_args(NearestMode),
                description="How coordinates are rounded, with nearest.",
            )
        ),
    )
    antialias: bool = field(
        default=False,
        metadata=attribute(
            Flag(description="Whether the triangle of linear is stretched where an axis shrinks.")
        ),
    )
    pads_begin: Sequence[int] = field(
        default=(),
        metadata=attribute(
            Integers(
                most=MAX_AXES,
                bits=32,
                least=0,
                default_text="0 on each axis",
                description="Elements of 0 put before each axis; what is not given is 0.",
            )
        ),
    )
    pads_end: Sequence[int] = field(
        default=(),
        metadata=attribute(
            Integers(
                most=MAX_AXES,
                bits=32,
                least=0,
                default_text="0 on each axis",
                description="Elements of 0 put after each axis; what is not given is 0.",
            )
        ),
    )
    cube_coeff: float = field(
        default=-0.75,
        metadata=attribute(
            Number(
                bits=64,
                most_bits=SLOPE_BITS,
                description="Slope of the kernels of cubic and bicubic_pillow, from -2**120 to "
                "2**120.",
            )
        ),
    )

    def _check_together(self) -> None:
        for name in get_args(ShapeCalculationMode):
            if getattr(self, name) and self.shape_calculation_mode != name:
                raise InvalidRequestError.of(
                    self.path(name),
                    f"is {self.shown()[name]}; shape_calculation_mode is "
                    f"{self.shape_calculation_mode!r}: give {self.shape_calculation_mode}",
                )
        if self.shape_calculation_mode == "scales" and not self.scales:
            raise InvalidRequestError.of(
                self.path("scales"), "is empty; with shape_calculation_mode 'scales' give them"
            )


_URL = (
    "https://docs.openvino.ai/2025/documentation/openvino-ir-format/operation-sets/"
    "operation-specs/image/interpolate-11.html"
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OpenvinoInterpolateGrad(_OpenvinoInterpolate):
    """Gradient of OpenvinoInterpolate, which OpenVINO itself does not have.

        OpenvinoInterpolateGrad(mode="cubic", axes=(2, 3))

    takes a gradient of shape (8, 64, 112, 112) to one of shape (8, 64, 56, 56), if that is the
    output shape asked for.
    """

    name: ClassVar[str] = "openvino_interpolate_grad"
    source: ClassVar[str] = f"OpenVINO, the adjoint of Interpolate-11, {_URL}"
    gradient: ClassVar[bool] = True
    counterpart: ClassVar[str] = "openvino_interpolate"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OpenvinoInterpolate(_OpenvinoInterpolate):
    """Pads, then resamples axes to sizes, or to int(length * (scale + 1e-6)) each."""

    name: ClassVar[str] = "openvino_interpolate"
    source: ClassVar[str] = f"OpenVINO Interpolate-11, {_URL}"
    gradient: ClassVar[bool] = False
    counterpart: ClassVar[str] = "openvino_interpolate_grad"
    output_required: ClassVar[bool] = False


OPERATORS = (OpenvinoInterpolateGrad, OpenvinoInterpolate)
