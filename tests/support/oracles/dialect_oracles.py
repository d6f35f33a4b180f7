"""Oracles for the dialects: dense tables by scalar loops, exact taps, stored tables of one axis.

Matrices are of the forward, float64[outputs, inputs]; a gradient is their transposes applied.
evaluate() is the other side of every comparison: ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from gradwire import ops
from gradwire_server import dialects
from gradwire_server.backends import compute_dtype
from gradwire_server.backends.numpy_cpu import NumpyCpu
from gradwire_server.plans import Plan
from support.kernels.backend_calls import applied

Matrix = npt.NDArray[np.float64]
Tensor = npt.NDArray[Any]
Shape = tuple[int, ...]

DATA = Path(__file__).parents[2] / "data"
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


def axis_table(
    operator: ops.Operator,
    source: Shape,
    result: Shape,
    axis: int = 0,
    dtype: npt.DTypeLike = np.float32,
) -> Matrix:
    plan = lowered(operator, source, result, dtype)
    assert (plan.input_shape, plan.output_shape) == (source, result)
    found = [each.map.dense() for each in plan.passes if each.axis == axis]
    return found[0] if found else np.eye(source[axis])


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
class OnnxAxis:
    """What an ONNX Resize is told of one axis.

    kind   type of every number: float64, or float32 as in ONNX Runtime
    scale  outputs over inputs, in kind; width is scale * inputs, before it is cut
    """

    inputs: int
    outputs: int
    scale: Any
    width: Any
    roi: tuple[float, float]

    @property
    def kind(self) -> Any:
        return self.scale.dtype.type


def onnx_coordinate(axis: OnnxAxis, transformation: str, index: int) -> Any:
    """Return x_original, in the words of the specification."""
    kind, scale = axis.kind, axis.scale
    x_resized, length_original = kind(index), kind(axis.inputs)
    length_resized = kind(axis.outputs) if kind is np.float32 else axis.width
    half, one = kind(0.5), kind(1)
    start_x, end_x = kind(axis.roi[0]), kind(axis.roi[1])
    x_original = (x_resized + half) / scale - half
    if transformation == "pytorch_half_pixel" and not length_resized > 1:
        x_original = kind(0)
    elif transformation == "align_corners":
        x_original = kind(0)
        if axis.outputs > 1:
            x_original = x_resized * (length_original - one) / (length_resized - one)
    elif transformation == "asymmetric":
        x_original = x_resized / scale
    elif transformation == "tf_half_pixel_for_nn":
        x_original = (x_resized + half) / scale
    elif transformation == "half_pixel_symmetric":
        adjustment = kind(axis.outputs) / axis.width
        offset = length_original / kind(2) * (one - adjustment)
        x_original = kind(float(offset) + (index + 0.5) / float(scale) - 0.5)
    elif transformation == "tf_crop_and_resize" and length_resized > 1:
        step = x_resized * (end_x - start_x) * (length_original - one)
        x_original = start_x * (length_original - one) + step / (length_resized - one)
    elif transformation == "tf_crop_and_resize":
        x_original = kind(0.5 * float(start_x + end_x) * (axis.inputs - 1))
    return x_original


def _onnx_rounded(x: float, nearest_mode: str, *, shrinks: bool, tie: float) -> int:
    whole, part = math.floor(x), x - math.floor(x)
    if nearest_mode == "simple":
        nearest_mode = "ceil" if shrinks else "floor"
    up = {
        "round_prefer_floor": part - 0.5 > tie,
        "round_prefer_ceil": part - 0.5 >= -tie,
        "floor": False,
        "ceil": part > 0,
    }
    return whole + up[nearest_mode]


def _onnx_cubic(a: Any, x: Any, *, outside: bool) -> Any:
    """Return the cubic weight at a distance up to 1, or from 1 to 2."""
    kind = type(a)
    if outside:
        return ((a * x - kind(5) * a) * x + kind(8) * a) * x - kind(4) * a
    return ((a + kind(2)) * x - (a + kind(3))) * x * x + kind(1)


def onnx_axis(
    axis: OnnxAxis,
    transformation: str,
    mode: str,
    *,
    nearest_mode: str = "round_prefer_floor",
    a: float = -0.75,
    exclude_outside: bool = False,
) -> Matrix:
    """One axis of an ONNX Resize by the specification's formulas, one scalar at a time."""
    kind, last = axis.kind, axis.inputs - 1
    table = np.zeros((axis.outputs, axis.inputs), kind)
    for index in range(axis.outputs):
        x = onnx_coordinate(axis, transformation, index)
        if transformation == "tf_crop_and_resize" and (x < 0 or x > last):
            continue
        whole = math.floor(x)
        t = x - kind(whole)
        if mode == "nearest":
            tie = float(np.float32(1e-6)) if kind is np.float32 else 0
            shrinks = bool(axis.scale < 1)
            taps = [(_onnx_rounded(float(x), nearest_mode, shrinks=shrinks, tie=tie), kind(1))]
        elif mode == "linear":
            taps = [(whole, kind(1) - t), (whole + 1, t)]
        else:
            distances = (t + kind(1), t, kind(1) - t, kind(2) - t)
            cubic = [_onnx_cubic(kind(a), x, outside=i in {0, 3}) for i, x in enumerate(distances)]
            taps = [(whole - 1 + i, weight) for i, weight in enumerate(cubic)]
        if exclude_outside:
            taps = [tap for tap in taps if 0 <= tap[0] <= last]
            total = kind(0)
            for _, weight in taps:
                total = total + weight
            taps = [(tap, weight / total) for tap, weight in taps if total != 0]
        for tap, weight in taps:
            table[index, min(max(tap, 0), last)] += weight
    return table.astype(np.float64)


@dataclass(frozen=True, slots=True)
class ExactTaps:
    """One axis in exact arithmetic: an output reads low, and the element after it by upper.

    Coordinates are fractions of int64; the weight is the one rounding, to float64.
    """

    src: int
    low: npt.NDArray[np.int64]
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
            return cls(src, low, np.zeros(dst))
        numerator = np.clip(numerator, 0, (src - 1) * denominator)
        return cls(src, numerator // denominator, (numerator % denominator) / denominator)

    def scatter(self, gradient: Tensor, axis: int, weight_error: float = 0.0) -> Matrix:
        """Scatter a gradient along one axis, with every weight too large by an error.

        Less than 1, the error of a coordinate can also add a tap beside those of exact arithmetic.
        """
        rows = np.moveaxis(gradient.astype(np.float64), axis, 0)
        upper = self.upper.reshape(-1, *[1] * (rows.ndim - 1))
        result = np.zeros((self.src, *rows.shape[1:]))
        for shift, weight in (-1, 0.0), (0, 1 - upper), (1, upper), (2, 0.0):
            place = np.clip(self.low + shift, 0, self.src - 1)
            np.add.at(result, place, (weight + weight_error) * rows)
        return np.moveaxis(result, 0, axis)


def ulp(values: Matrix, dtype: Any) -> Matrix:
    """Return the spacing of a storage type at each value, rounded to it."""
    # Of negative powers of two NumPy gives float16's spacing toward zero.
    spacing: Matrix = np.spacing(np.abs(values).astype(dtype)).astype(np.float64)
    return spacing


@dataclass(frozen=True, slots=True)
class AxisCase:
    """Attributes of an operator, and the lengths of one axis in the forward's direction."""

    attributes: dict[str, Any]
    inputs: int
    outputs: int

    def __str__(self) -> str:
        words = (f"{name}={value}" for name, value in self.attributes.items())
        return f"{self.inputs}-to-{self.outputs}-{'-'.join(words)}"


def axis_matrix(
    operator: ops.Operator, case: AxisCase, *, rank: int, axis: int, dtype: npt.DTypeLike
) -> Matrix:
    before, after = (1,) * axis, (1,) * (rank - axis - 1)
    shapes = (*before, case.inputs, *after), (*before, case.outputs, *after)
    return axis_table(operator, *shapes, axis, dtype)


def elements_read(operator: ops.Operator, case: AxisCase) -> npt.NDArray[np.int64]:
    """Return the one element that each output reads with a weight of 1, -1 for one that reads none.

    Raises AssertionError where an output reads several, or another weight.
    """
    plan = lowered(operator, (case.inputs,), (case.outputs,))
    if not plan.passes:
        return np.arange(case.outputs)
    found = plan.passes[0].map
    counts = np.diff(found.offset)
    assert set(counts.tolist()) <= {0, 1}
    assert np.all(found.weight == 1)
    return np.where(counts == 1, found.start, -1)


def draw_sizes(generator: np.random.Generator, *, largest: int) -> tuple[int, int]:
    """Draw two lengths, short ones as likely as long ones."""
    exponents = generator.uniform(0, np.log(largest + 1), 2)
    inputs, outputs = np.exp(exponents).astype(int).tolist()
    return inputs, outputs


def normal(*shape: int) -> npt.NDArray[np.float32]:
    """Draw a float32 tensor of this shape, the same each time."""
    return np.random.default_rng(4).standard_normal(shape, np.float32)
