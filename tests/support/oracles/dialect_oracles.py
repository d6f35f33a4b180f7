"""Oracles for the dialects: dense tables by scalar loops, and exact taps by integer arithmetic.

Matrices are of the forward, float64[outputs, inputs]; a gradient is their transposes applied.
evaluate() is the other side of every comparison: ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from gradwire import ops
from gradwire_server import dialects
from gradwire_server.backends import compute_dtype
from gradwire_server.backends.numpy_cpu import NumpyCpu
from gradwire_server.plans import BandedMap, Plan
from support.kernels.backend_calls import applied

Matrix = npt.NDArray[np.float64]
Tensor = npt.NDArray[Any]
Shape = tuple[int, ...]

DTYPES: dict[str, np.dtype[Any]] = {
    np.dtype(each).name: np.dtype(each)
    for each in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
}
_half = np.float32(0.5)


def f32(values: object) -> npt.NDArray[np.float32]:
    return np.array(values, np.float32)


class Pair(NamedTuple):
    """An operator and its gradient."""

    forward: ops.Operator
    gradient: ops.Operator


_FIRST: Any = (ops.DmlResample, ops.DmlResampleGrad)
_SECOND: Any = (ops.DmlResample2, ops.DmlResampleGrad1)

# The rules of DirectML's four operators, and which generation says each in which words.
DML_RULES: dict[str, list[tuple[Any, dict[str, str]]]] = {
    "linear": [(_FIRST, {}), (_SECOND, {})],
    "half_down": [(_FIRST, {"nearest_rounding": "half_down"})],
    "half_up": [(_FIRST, {"nearest_rounding": "half_up"})],
    "increasing": [(_SECOND, {"rounding_direction": "increasing"})],
    "decreasing": [(_SECOND, {"rounding_direction": "decreasing"})],
}


def dml_operators(
    rule: str,
    *,
    offsets: tuple[float, float] | None = None,
    offset_convention: str = "forward",
    **arrays: Any,
) -> list[Pair]:
    """Return every pair of DirectML operators that says a rule, with arrays as given.

    offsets are those of input and output, of tensors of one axis.
    """
    if offsets is not None:
        arrays |= {"input_pixel_offsets": offsets[:1], "output_pixel_offsets": offsets[1:]}
    arrays["interpolation_mode"] = "linear" if rule == "linear" else "nearest_neighbor"
    return [
        Pair(
            forward(**words, **arrays),
            gradient(offset_convention=offset_convention, **words, **arrays),
        )
        for (forward, gradient), words in DML_RULES[rule]
    ]


def lowered(
    operator: ops.Operator,
    source: Shape,
    result: Shape,
    dtype: npt.DTypeLike = np.float32,
    **limits: Any,
) -> Plan:
    compute = compute_dtype(np.dtype(dtype))
    return dialects.forward(
        operator.name, operator, source, result, compute=compute, **limits
    ).plan()


def axis_map(
    operator: ops.Operator,
    source: Shape,
    result: Shape,
    axis: int = 0,
    dtype: npt.DTypeLike = np.float32,
) -> BandedMap | None:
    """Return what an operator does along one axis, None where it leaves that alone."""
    plan = lowered(operator, source, result, dtype)
    assert (plan.input_shape, plan.output_shape) == (source, result)
    return next((each.map for each in plan.passes if each.axis == axis), None)


def axis_table(
    operator: ops.Operator,
    source: Shape,
    result: Shape,
    axis: int = 0,
    dtype: npt.DTypeLike = np.float32,
) -> Matrix:
    found = axis_map(operator, source, result, axis, dtype)
    return np.eye(source[axis]) if found is None else found.dense()


def evaluate(operator: ops.Operator, x: Tensor, output_shape: Shape) -> Tensor:
    plan = lowered(operator, x.shape, output_shape, x.dtype)
    return applied(NumpyCpu(), plan, x, x.dtype)


# Each takes and returns a float32 that is finite.
_DML_ROUNDINGS: dict[str, Callable[[np.float32], int]] = {
    "half_down": lambda x: math.ceil(x - _half),
    "half_up": lambda x: math.floor(x + _half),
    "increasing": math.ceil,
    "decreasing": math.floor,
}


@np.errstate(over="ignore")
def dml_axis(
    inputs: int, outputs: int, *, scale: float, offsets: tuple[float, float], rule: str
) -> Matrix:
    """One axis of a DirectML resampling, one float32 scalar at a time.

    offsets are the forward's for input and output; rule is a key of DML_RULES.
    """
    matrix = np.zeros((outputs, inputs), np.float32)
    (first, second), divisor, last = f32(offsets), np.float32(scale), np.float32(inputs - 1)
    # Nothing within 1 of the axis is touched by this clamp, so rounding afterwards is safe.
    least, most = np.float32(-2), last + np.float32(2)
    for index in range(outputs):
        x = min(max((np.float32(index) - second) / divisor - first, least), most)
        if rule == "linear":
            x = min(max(x, np.float32(0)), last)
            low = math.floor(x)
            upper = x - np.float32(low)
            matrix[index, low] += np.float32(1) - upper
            matrix[index, min(low + 1, inputs - 1)] += upper
        else:
            matrix[index, min(max(_DML_ROUNDINGS[rule](x), 0), inputs - 1)] = 1
    return matrix.astype(np.float64)


def onednn_axis(src: int, dst: int, *, align_corners: bool, nearest: bool) -> Matrix:
    """One axis of a oneDNN interpolation, one float32 scalar at a time."""
    matrix = np.zeros((dst, src))
    for index in range(dst):
        if not align_corners:
            x = ((np.float32(index) + _half) * np.float32(src)) / np.float32(dst) - _half
        elif dst == 1:
            x = np.float32(0)
        else:
            x = np.float32(index) * np.float32(src - 1) / np.float32(dst - 1)
        if nearest:
            # A double holds x + 0.5 exactly, so this is half away from zero.
            away = int(math.copysign(math.floor(abs(float(x)) + 0.5), x))
            matrix[index, min(max(away, 0), src - 1)] = 1
            continue
        low, high = max(int(x), 0), min(max(math.ceil(x), 0), src - 1)
        upper = abs(x - np.float32(low))
        lower = np.float32(1) - upper
        matrix[index, high] = upper
        matrix[index, low] = lower + upper if low == high else lower
    return matrix


@dataclass(frozen=True, slots=True)
class ExactTaps:
    """One axis in exact arithmetic: output o reads low[o] and high[o], high with weight upper[o].

    Coordinates are fractions of int64; the weight is the one rounding, to float64.
    """

    src: int
    low: npt.NDArray[np.int64]
    high: npt.NDArray[np.int64]
    upper: Matrix

    @classmethod
    def of(cls, src: int, dst: int, *, align_corners: bool, nearest: bool) -> ExactTaps:
        """Take x as numerator / denominator, in integers."""
        index = np.arange(dst)
        if not align_corners:
            numerator, denominator = (2 * index + 1) * src - dst, 2 * dst
        else:
            numerator, denominator = index * (src - 1), max(dst - 1, 1)
        if nearest:
            low = np.clip((2 * numerator + denominator) // (2 * denominator), 0, src - 1)
            return cls(src, low, low, np.zeros(dst))
        numerator = np.clip(numerator, 0, (src - 1) * denominator)
        low = numerator // denominator
        high = np.minimum(low + 1, src - 1)
        return cls(src, low, high, (numerator % denominator) / denominator)

    def transpose_apply(self, gradient: Tensor, axis: int) -> Matrix:
        """Scatter a gradient along one axis without a dense matrix."""
        rows = np.moveaxis(gradient.astype(np.float64), axis, 0)
        weight = self.upper.reshape(-1, *[1] * (rows.ndim - 1))
        result = np.zeros((self.src, *rows.shape[1:]))
        np.add.at(result, self.low, (1 - weight) * rows)
        np.add.at(result, self.high, weight * rows)
        return np.moveaxis(result, 0, axis)

    def reach(self, gradient: Tensor, axis: int, *, weight_error: float) -> Matrix:
        """Scatter a gradient of no negative elements where every weight is too large by an error.

        Less than 1, the error of a coordinate can also add a tap beside those of exact arithmetic.
        """
        rows = np.moveaxis(gradient.astype(np.float64), axis, 0)
        extra = np.zeros((self.src, *rows.shape[1:]))
        for shift in (-1, 0, 1, 2):
            np.add.at(extra, np.clip(self.low + shift, 0, self.src - 1), rows)
        return self.transpose_apply(gradient, axis) + weight_error * np.moveaxis(extra, 0, axis)


def ulp(values: Matrix, dtype: Any) -> Matrix:
    """Return the spacing of a storage type at each value, rounded to it."""
    # Of negative powers of two NumPy gives float16's spacing toward zero.
    spacing: Matrix = np.spacing(np.abs(values).astype(dtype)).astype(np.float64)
    return spacing
