"""What an ONNX Resize reads around its coordinate x along one axis, and with which weights.

    nearest  one element, x rounded by nearest_mode
    linear   floor(x) with 1 - t and floor(x) + 1 with t, where t = x - floor(x)
    cubic    floor(x) - 1 to floor(x) + 2, weighted by Keys's kernel of their distances from x

Elements beyond the edge are the edge's, or with exclude_outside weigh nothing, and the weights of
the others are divided by their sum. An output whose elements all lie beyond the edge is then 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gradwire_server.dialects.onnx_coordinates import Flags, Line, Number
from gradwire_server.plans import sampling
from gradwire_server.plans.sampling import Coordinates, Indices, Taps

Numbers = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Keys:
    """The cubic kernel of Keys (1981), equation (4), with slope a at distance 1."""

    a: Number

    def inside(self, x: Numbers) -> Numbers:
        """Return the weight at distances up to 1."""
        return ((self.a + 2) * x - (self.a + 3)) * x * x + 1

    def outside(self, x: Numbers) -> Numbers:
        """Return the weight at distances from 1 to 2."""
        a = self.a
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a


# ONNX Runtime takes for a tie what is so close to one, since its coordinates are rounded:
# https://github.com/microsoft/onnxruntime/issues/28291.
RUNTIME_TIE: Final = 1e-6


def _round_prefer_floor(x: Coordinates, line: Line) -> Coordinates:
    whole: Coordinates = np.floor(x)
    return whole + ((x - whole) - 0.5 > _tie(line))


def _round_prefer_ceil(x: Coordinates, line: Line) -> Coordinates:
    # Not floor(x + 0.5), whose sum rounds: the number below 0.5 would go to 1.
    whole: Coordinates = np.floor(x)
    return whole + ((x - whole) - 0.5 >= -_tie(line))


def _tie(line: Line) -> Number:
    return line.kind(RUNTIME_TIE if line.in_float32 else 0)


def _simple(x: Coordinates, line: Line) -> Coordinates:
    return np.ceil(x) if line.scale < 1 else np.trunc(x)


NEAREST_MODES: Final[Mapping[str, Callable[[Coordinates, Line], Coordinates]]] = {
    "round_prefer_floor": _round_prefer_floor,
    "round_prefer_ceil": _round_prefer_ceil,
    "floor": lambda x, _: sampling.floor(x),
    "ceil": lambda x, _: sampling.ceil(x),
    "simple": _simple,
}


def nearest(line: Line, nearest_mode: str) -> Taps:
    """Read one element."""
    x, reads = line.coordinates(np.arange(line.outputs))
    whole = NEAREST_MODES[nearest_mode](x, line)
    if line.exclude_outside:
        reads &= (whole >= 0) & (whole < line.inputs)
    index = sampling.on_axis(whole, inputs=line.inputs)
    weight = reads[:, np.newaxis].astype(line.kind)
    return Taps(index[:, np.newaxis], weight, line.positions(np.arange(line.outputs)))


def linear(line: Line) -> Taps:
    """Read two elements."""
    x, reads = line.coordinates(np.arange(line.outputs))
    whole = np.floor(x)
    t = x - whole
    index = whole.astype(np.int64)[:, np.newaxis] + np.arange(2)
    return _held(index, np.array([1 - t, t]).T, line, reads)


def cubic(line: Line, keys: Keys) -> Taps:
    """Read four elements."""
    x, reads = line.coordinates(np.arange(line.outputs))
    whole = np.floor(x)
    t = x - whole
    weight = [keys.outside(t + 1), keys.inside(t), keys.inside(1 - t), keys.outside(2 - t)]
    index = whole.astype(np.int64)[:, np.newaxis] + np.arange(-1, 3)
    return _held(index, np.array(weight).T, line, reads)


def _held(index: Indices, weight: Numbers, line: Line, reads: Flags) -> Taps:
    """Hold taps to the axis; outputs that read nothing get weights of 0."""
    if line.exclude_outside:
        weight = np.where((index >= 0) & (index < line.inputs), weight, line.kind(0))
        # In order, each sum rounded; cumsum adds so.
        total = np.cumsum(weight, axis=1)[:, -1:]
        weight = weight / np.where(total == 0, line.kind(1), total)
    weight = np.where(reads[:, np.newaxis], weight, line.kind(0))
    index = np.clip(index, 0, line.inputs - 1)
    return Taps(index, weight, line.positions(np.arange(line.outputs)))
