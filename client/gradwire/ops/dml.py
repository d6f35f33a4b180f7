"""DirectML's resampling operators.

Along each axis, output element X of the forward operator reads its input at

    x = (X - output_pixel_offset) / scale - input_pixel_offset      float32, in this order

clamped to the edges:

    linear            i = floor(x); weights 1 - (x - i) on i and x - i on i + 1
    nearest_neighbor  one element, see nearest_rounding and rounding_direction

Sizes come from the shapes, never from scales. A gradient is the exact adjoint of its forward, and
its scales and offsets are the forward's.

Source: DML_RESAMPLE_GRAD_OPERATOR_DESC and its kin, https://learn.microsoft.com/windows/win32/api/directml/
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from gradwire.ops._base import Operator, attribute, operator_class, sequence

InterpolationMode = Literal["nearest_neighbor", "linear"]
NearestRounding = Literal["half_down", "half_up"]
RoundingDirection = Literal["increasing", "decreasing"]
OffsetConvention = Literal["forward", "swapped"]

_OFFSET_CONVENTION = (
    "Whose offsets the descriptor holds: 'forward' as documented, 'swapped' as "
    "Microsoft's TensorFlow backends pass them, input for output and the reverse."
)


# DirectML documents 1 to 4 axes; 5 to 8 are gradwire's extension.
@operator_class
class _Resample(Operator):
    interpolation_mode: InterpolationMode | Literal["nearest"] = attribute(
        "How an output element of the forward reads the input.",
        synonyms={"nearest": "nearest_neighbor"},
    )
    scales: Sequence[float] = sequence(
        "Forward scale of each axis, output over input, finite and above 0; one per axis.",
        positive=True,
        default_text="the forward's output size over its input size, in float32",
    )
    input_pixel_offsets: Sequence[float] = sequence(
        "Added to an input coordinate before scaling, in elements, finite; one per axis.",
        default_text="0.5 on each axis",
    )
    output_pixel_offsets: Sequence[float] = sequence(
        "Added to an output coordinate after scaling, in elements, finite; one per axis.",
        default_text="-0.5 on each axis",
    )

    def for_counterpart(self) -> dict[str, Any]:
        """Return attributes as the counterpart means them: with the forward's own offsets."""
        attributes = Operator.for_counterpart(self)
        if attributes["offset_convention"] == "swapped":
            attributes |= {
                "offset_convention": "forward",
                "input_pixel_offsets": self.output_pixel_offsets,
                "output_pixel_offsets": self.input_pixel_offsets,
            }
        return attributes


@operator_class
class _Resample1(_Resample):
    nearest_rounding: NearestRounding = attribute(
        "Which way a tie between two elements goes, with nearest_neighbor: "
        "'half_down' is ceil(x - 0.5), 'half_up' is floor(x + 0.5).",
        default="half_down",
    )


@operator_class
class _Resample2(_Resample):
    rounding_direction: RoundingDirection | None = attribute(
        "Direction in which a fractional coordinate is rounded: 'increasing' "
        "is ceil(x), 'decreasing' is floor(x).",
        default=None,
        default_text="not given; required with nearest_neighbor, not read by linear",
    )

    def _check_together(self) -> None:
        if self.interpolation_mode == "nearest_neighbor" and self.rounding_direction is None:
            raise self._refused(
                "rounding_direction",
                "is missing; with interpolation_mode 'nearest_neighbor' give 'increasing' or "
                "'decreasing'",
            )


@operator_class
class DmlResampleGrad(_Resample1):
    """Gradient of DML_RESAMPLE1: scatters an output gradient back over the input.

    The published example, a 2x2 input scaled by 0.5 and 1.5, takes [[4, 5, 6]] to [[9, 6], [0, 0]]:

        DmlResampleGrad(interpolation_mode="nearest_neighbor", scales=(0.5, 1.5))

    holds with the default nearest_rounding "half_down"; real devices are reported to answer as
    "half_up" does.
    """

    name = "dml_resample_grad"
    source = (
        "DML_OPERATOR_RESAMPLE_GRAD, https://learn.microsoft.com/windows/win32/api/directml/"
        "ns-directml-dml_resample_grad_operator_desc"
    )
    counterpart = "dml_resample"

    offset_convention: OffsetConvention = attribute(_OFFSET_CONVENTION, default="forward")


@operator_class
class DmlResampleGrad1(_Resample2):
    """Gradient of DML_RESAMPLE2, with a rounding direction instead of a tie rule.

    Otherwise it is like DmlResampleGrad.
    """

    name = "dml_resample_grad1"
    source = (
        "DML_OPERATOR_RESAMPLE_GRAD1, https://learn.microsoft.com/windows/ai/directml/api/"
        "ns-directml-dml_resample_grad1_operator_desc"
    )
    counterpart = "dml_resample2"

    offset_convention: OffsetConvention = attribute(_OFFSET_CONVENTION, default="forward")


@operator_class
class DmlResample(_Resample1):
    """DML_RESAMPLE1: resamples every axis; with offsets left out it is DML_RESAMPLE."""

    name = "dml_resample"
    source = (
        "DML_OPERATOR_RESAMPLE1, https://learn.microsoft.com/windows/win32/api/directml/"
        "ns-directml-dml_resample1_operator_desc"
    )
    gradient = False
    counterpart = "dml_resample_grad"
    fixed = (("offset_convention", "forward"),)


@operator_class
class DmlResample2(_Resample2):
    """DML_RESAMPLE2: DmlResample with a rounding direction instead of a tie rule."""

    name = "dml_resample2"
    source = (
        "DML_OPERATOR_RESAMPLE2, https://learn.microsoft.com/windows/ai/directml/api/"
        "ns-directml-dml_resample2_operator_desc"
    )
    gradient = False
    counterpart = "dml_resample_grad1"
    fixed = (("offset_convention", "forward"),)


OPERATORS = (DmlResampleGrad, DmlResampleGrad1, DmlResample, DmlResample2)
