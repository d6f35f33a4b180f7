"""ONNX's Resize along one axis, one scalar at a time: the specification's formulas as they stand.

kind is the type of every number: float64, or float32 as in ONNX Runtime. Matrices are of the
forward, [outputs, inputs]; rows outside the input with tf_crop_and_resize are zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from support.oracles.dialect_oracles import Matrix


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: what a Resize is told about it.

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


def coordinate(axis: Axis, transformation: str, index: int) -> Any:
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


def _rounded(x: float, nearest_mode: str, *, shrinks: bool, tie: float) -> int:
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


def _cubic(a: Any, x: Any, *, outside: bool) -> Any:
    """Return the cubic weight at a distance up to 1, or from 1 to 2."""
    kind = type(a)
    if outside:
        return ((a * x - kind(5) * a) * x + kind(8) * a) * x - kind(4) * a
    return ((a + kind(2)) * x - (a + kind(3))) * x * x + kind(1)


def matrix(
    axis: Axis,
    transformation: str,
    mode: str,
    *,
    nearest_mode: str = "round_prefer_floor",
    a: float = -0.75,
    exclude_outside: bool = False,
) -> Matrix:
    kind, last = axis.kind, axis.inputs - 1
    table = np.zeros((axis.outputs, axis.inputs), kind)
    for index in range(axis.outputs):
        x = coordinate(axis, transformation, index)
        if transformation == "tf_crop_and_resize" and (x < 0 or x > last):
            continue
        whole = math.floor(x)
        t = x - kind(whole)
        if mode == "nearest":
            tie = float(np.float32(1e-6)) if kind is np.float32 else 0
            shrinks = bool(axis.scale < 1)
            taps = [(_rounded(float(x), nearest_mode, shrinks=shrinks, tie=tie), kind(1))]
        elif mode == "linear":
            taps = [(whole, kind(1) - t), (whole + 1, t)]
        else:
            distances = (t + kind(1), t, kind(1) - t, kind(2) - t)
            cubic = [_cubic(kind(a), x, outside=i in {0, 3}) for i, x in enumerate(distances)]
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
