"""oneDNN Graph's interpolation operators.

Tensors have a batch axis, a channel axis and 1 to 3 spatial axes. Along each spatial axis, with src
the forward's input size and dst its output size, dst index X reads src at

    half_pixel     x = (X + 0.5) * src / dst - 0.5                       float32, in this order
    align_corners  x = X * (src - 1) / (dst - 1), and 0 where dst is 1
    nearest        one element, x rounded half away from zero
    linear         lo = max(trunc(x), 0), hi = min(ceil(x), src - 1); weight abs(x - lo) on hi

Coordinates come from the two shapes; sizes and scales only have to agree with them. linear,
bilinear and trilinear are synonyms. A gradient is the exact adjoint of its forward.

Source: https://uxlfoundation.github.io/oneDNN/dev_guide_op_interpolatebackward.html
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from gradwire.ops._base import Operator, attribute, operator_class, sequence

Mode = Literal["nearest", "linear", "bilinear", "trilinear"]
CoordinateTransformationMode = Literal["half_pixel", "align_corners"]
DataFormat = Literal["NCX", "NXC"]

MAX_SPATIAL_AXES = 3


@operator_class
class _OnednnInterpolate(Operator):
    min_rank = 3
    max_rank = 2 + MAX_SPATIAL_AXES

    mode: Mode = attribute(
        "How an output element of the forward reads the input; linear, "
        "bilinear and trilinear are synonyms."
    )
    coordinate_transformation_mode: CoordinateTransformationMode = attribute(
        "How coordinates correspond.", default="half_pixel"
    )
    sizes: Sequence[int] = sequence(
        "Spatial sizes of the forward's output, in elements, each at least 1, "
        "one per spatial axis; they must equal that tensor's.",
        most=MAX_SPATIAL_AXES,
        bits=64,
    )
    scales: Sequence[float] = sequence(
        "Spatial scales, dst over src, finite and above 0, one per spatial "
        "axis; one agrees with the shapes where abs(float32(src) * scale - dst) < 1.",
        most=MAX_SPATIAL_AXES,
        positive=True,
    )
    data_format: DataFormat = attribute(
        "The order of axes: NXC is batch, spatial axes, channel; NCX is "
        "batch, channel, spatial axes.",
        default="NXC",
    )
    sizes_tensor: Sequence[int] = sequence(
        "Values of the optional third input, the 1-D s32 tensor sizes; where "
        "the attribute sizes is given too, both must agree.",
        most=MAX_SPATIAL_AXES,
        bits=32,
    )

    def _check_together(self) -> None:
        if self.sizes and self.sizes_tensor and self.sizes != self.sizes_tensor:
            raise self._refused(
                "sizes_tensor",
                f"is {self.sizes_tensor}, sizes is {self.sizes}; give one of them, or equal ones",
            )


@operator_class
class InterpolateBackward(_OnednnInterpolate):
    """Gradient of Interpolate: takes diff_dst to diff_src.

        InterpolateBackward(mode="bilinear", sizes=(112, 112), data_format="NCX")

    takes a gradient of shape (8, 64, 112, 112) to one of shape (8, 64, 56, 56), if that is the
    output shape asked for. Without sizes and scales any two shapes will do.
    """

    name = "interpolate_backward"
    source = (
        "oneDNN Graph InterpolateBackward (InterpolateBackprop-1), "
        "https://uxlfoundation.github.io/oneDNN/dev_guide_op_interpolatebackward.html"
    )
    counterpart = "interpolate"


@operator_class
class Interpolate(_OnednnInterpolate):
    """Resamples the spatial axes of src to sizes or by scales.

    A scale gives the size int64(float32(src) * scale).
    """

    name = "interpolate"
    source = (
        "oneDNN Graph Interpolate (Interpolate-1), "
        "https://uxlfoundation.github.io/oneDNN/dev_guide_op_interpolate.html"
    )
    gradient = False
    counterpart = "interpolate_backward"
    output_required = False

    def for_output(self, output_shape: Sequence[int]) -> Interpolate:
        """Return it with sizes, if nothing else determines the output's."""
        if self.sizes or self.scales or self.sizes_tensor:
            return self
        spatial = output_shape[2:] if self.data_format == "NCX" else output_shape[1:-1]
        return dataclasses.replace(self, sizes=tuple(spatial))


OPERATORS = (InterpolateBackward, Interpolate)
