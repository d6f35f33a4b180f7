"""One spatial axis of a PyTorch interpolation, and the cubic kernel as PyTorch rounds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gradwire_server.dialects.dialect import Axis
from gradwire_server.plans.plan import fma
from gradwire_server.plans.sampling import ComputedTaps, Coordinates, Taps
from gradwire_server.plans.sines import EFFORT

Numbers = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class TorchAxis:
    """The forward along one axis.

    inputs, outputs  lengths in its direction
    scale_factor     the user's, output over input; None where coordinates come from the lengths
    align_corners    whether the corner elements correspond, which scale_factor then has no part in
    compute          type of the arithmetic: float32 or float64
    """

    inputs: int
    outputs: int
    scale_factor: float | None
    align_corners: bool
    compute: np.dtype[np.floating]

    @property
    def stays(self) -> bool:
        """Whether the length stays."""
        return self.inputs == self.outputs

    def scale(self, kind: np.dtype[np.floating] | None = None) -> np.floating[Any]:
        """Return input over output in the type of the arithmetic, or in another.

        The reciprocal of scale_factor is taken in float64 and then rounded.
        """
        as_type = (kind or self.compute).type
        if self.align_corners:
            last = as_type(max(self.outputs - 1, 1))
            return as_type(as_type(self.inputs - 1) / last if self.outputs > 1 else 0)
        if self.scale_factor is not None:
            return as_type(1 / self.scale_factor)
        return as_type(as_type(self.inputs) / as_type(self.outputs))

    def indices(self) -> Coordinates:
        """Return X of each output."""
        return np.arange(self.outputs).astype(self.compute)

    def coordinates(self, *, fused: bool) -> Coordinates:
        """Return where each output reads, not clamped; fused or rounded after the product."""
        scale, x = np.asarray(self.scale()), self.indices()
        if self.align_corners:
            return scale * x
        half = self.compute.type(0.5)
        return fma(scale, x + half, np.asarray(-half)) if fused else scale * (x + half) - half


@dataclass(frozen=True, slots=True)
class Filter:
    """A way of reading along an axis.

    sample     computes the taps of all outputs
    most_taps  the most any output may have
    skips      whether an axis whose length stays is left alone, whatever its scale_factor
    sines      whether weights are made of sines
    """

    sample: Callable[[TorchAxis], Taps | ComputedTaps]
    most_taps: Callable[[TorchAxis], int]
    skips: bool = False
    sines: bool = False

    def axis(self, line: TorchAxis) -> Axis:
        """Return an axis that is read in this way."""
        effort = EFFORT[line.compute] if self.sines else 1
        sides = line.inputs, line.outputs
        return Axis(*sides, self.most_taps(line), self.sample, (line,), effort=effort)

    def skipping(self) -> Filter:
        """Return the filter that leaves axes alone whose length stays."""
        return replace(self, skips=True)


@dataclass(frozen=True, slots=True)
class TorchKeysFilter:
    """The cubic kernel of Keys (1981) with a slope at 1, its roundings as some build has them.

    fused  whether the products before each sum are rounded
    last   whether that of the last sum is not rounded either
    """

    slope: float
    fused: bool
    last: bool

    def inside(self, x: Numbers) -> Numbers:
        """Return the weight at distances up to 1: ((a + 2) x - (a + 3)) x x + 1."""
        a = self.slope
        part = self._sum(a + 2, x, -(a + 3), fused=self.fused) * x
        return self._sum(part, x, 1, fused=self.last)

    def outside(self, x: Numbers) -> Numbers:
        """Return the weight at distances from 1 to 2: ((a x - 5 a) x + 8 a) x - 4 a."""
        a = self.slope
        part = self._sum(a, x, -5 * a, fused=self.fused)
        part = self._sum(part, x, 8 * a, fused=self.fused)
        return self._sum(part, x, -4 * a, fused=self.last)

    @staticmethod
    def _sum(a: Numbers | float, x: Numbers, c: float, *, fused: bool) -> Numbers:
        first, last = np.asarray(a, x.dtype), np.asarray(c, x.dtype)
        return fma(first, x, last) if fused else first * x + last
