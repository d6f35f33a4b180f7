"""DirectML resampling: dml_resample, dml_resample2 and their gradients.

Along every axis, batch and channel too, output element X of the forward reads the input at

    x = (X - output_pixel_offset) / scale - input_pixel_offset

in float32, by true division and in this order. `DML_RESAMPLE1_OPERATOR_DESC` gives
OutputX = (InputX + InputPixelOffset) * Scale + OutputPixelOffset, solved here for InputX. Sizes
come from the descriptors, never from scales: elements beyond the result are cropped, and
coordinates beyond the source move to its edge ("the output edges are clamped").

Ranks 5 to 8 are an extension: DirectML takes 1 to 4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from gradwire_server.dialects.dialect import Attributes, Axes, Axis, OperatorCall, both, check_count
from gradwire_server.plans import sampling
from gradwire_server.plans.banded_map import Indices
from gradwire_server.plans.sampling import Coordinates, Rounding, Taps

# X + 0.5 is exact in float32 for every index X of an axis up to this long.
EXACT_HALF_PIXEL_AXIS: Final = 2**23

# `InputPixelOffsets` and `OutputPixelOffsets`: to resample by the center of the pixels.
DEFAULT_INPUT_OFFSET: Final = np.float32(0.5)
DEFAULT_OUTPUT_OFFSET: Final = np.float32(-0.5)

ROUNDINGS: Final[dict[str, Rounding]] = {
    # DirectML's text leaves ties open. Its published example holds with pixel-center offsets only
    # if ties go down; devices are reported to round them up.
    "half_down": sampling.half_down,
    "half_up": sampling.half_up,
    # `DML_AXIS_DIRECTION` in `DML_RESAMPLE2_OPERATOR_DESC.RoundingDirection`.
    "increasing": np.ceil,
    "decreasing": np.floor,
}


@dataclass(frozen=True, slots=True)
class DmlAxis:
    """The forward along one axis: lengths in its direction, parameters in float32."""

    inputs: int
    outputs: int
    scale: np.float32
    input_offset: np.float32
    output_offset: np.float32

    def coordinates(self, outputs: Indices) -> Coordinates:
        """Return x of some outputs in float32.

        It is infinite where it overflows, and never NaN.
        """
        x = outputs.astype(np.float32)
        # Infinities are clamped to the edge like any coordinate outside.
        with np.errstate(over="ignore"):
            return (x - self.output_offset) / self.scale - self.input_offset

    def is_identity(self) -> bool:
        """Return whether x is X exactly, by the formula.

        Then nothing is rounded or weighted.
        """
        return (
            self.inputs == self.outputs <= EXACT_HALF_PIXEL_AXIS
            and self.scale == 1
            and (float(self.input_offset), float(self.output_offset)) in {(0.5, -0.5), (0.0, 0.0)}
        )


def _nearest(line: DmlAxis, rounding: Rounding, outputs: Indices) -> Taps:
    x = line.coordinates(outputs)
    return sampling.nearest_taps(rounding(x), inputs=line.inputs, coordinates=x)


def _linear(line: DmlAxis, outputs: Indices) -> Taps:
    """Weight the two neighbors by distance.

    x is clamped first, so that no tap leaves the axis.
    """
    coordinates = line.coordinates(outputs)
    x = np.minimum(np.maximum(coordinates, 0), np.float32(line.inputs - 1))
    whole = np.floor(x)
    low = sampling.on_axis(whole, inputs=line.inputs)
    index = np.minimum(np.array([low, low + 1]), line.inputs - 1)
    return sampling.linear_taps(index, upper_weight=x - whole, coordinates=coordinates)


def _axes(attributes: Attributes, call: OperatorCall) -> Axes:
    sample: Callable[..., Taps] = _linear
    most_taps, rule = 2, tuple[Rounding, ...]()
    if attributes.interpolation_mode != "linear":
        # Each operator has one of the two attributes.
        by_tie_rule = call.operator in {"dml_resample", "dml_resample_grad"}
        field = "nearest_rounding" if by_tie_rule else "rounding_direction"
        sample, most_taps = _nearest, 1
        rule = (ROUNDINGS[getattr(attributes, field)],)
    return tuple(
        None
        if line.is_identity()
        else Axis(line.inputs, line.outputs, most_taps, sample, (line, *rule))
        for line in _lines(attributes, call)
    )


def _per_axis(attributes: Attributes, field: str, default: list[np.float32]) -> list[np.float32]:
    """Return one value per axis, by default those given."""
    check_count(attributes, field, len(default))
    return [np.float32(value) for value in getattr(attributes, field)] or default


def _lines(attributes: Attributes, call: OperatorCall) -> list[DmlAxis]:
    """Return one DmlAxis per axis, from the attributes in the forward's terms.

    With swapped offsets, as Microsoft's TensorFlow backends pass them, input_pixel_offsets holds
    the forward's output offsets and the reverse. Defaults are the forward's: they fill in after
    the exchange.
    """
    of_input, of_output = "input_pixel_offsets", "output_pixel_offsets"
    if call.gradient and attributes.offset_convention == "swapped":
        of_input, of_output = of_output, of_input
    sizes, rank = list(zip(call.source, call.result, strict=True)), len(call.source)
    ratios = [np.float32(outputs) / np.float32(inputs) for inputs, outputs in sizes]
    columns = (
        _per_axis(attributes, "scales", ratios),
        _per_axis(attributes, of_input, [DEFAULT_INPUT_OFFSET] * rank),
        _per_axis(attributes, of_output, [DEFAULT_OUTPUT_OFFSET] * rank),
    )
    return [DmlAxis(*lengths, *each) for lengths, *each in zip(sizes, *columns, strict=True)]


DIALECTS: Final = (
    *both("dml_resample_grad", "dml_resample", ranks=range(1, 9), axes=_axes),
    *both("dml_resample_grad1", "dml_resample2", ranks=range(1, 9), axes=_axes),
)
