"""JAX resizing: jax_resize and jax_resize_grad, jax.image.resize and its adjoint.

Any axis may change; an axis that keeps its length is copied. With in and out the lengths of an
axis, output X reads the input around

    x = (X + 0.5) * (in / out) - 0.5

and weights element j with kernel(|x - j| / s), divided by the sum of all. s is 1, or with antialias
max(in / out, 1). Elements outside the axis have no part. nearest reads floor((X + 0.5) * in / out).

The formula is computed in float32, as in JAX, or in float64 for float64 tensors, which JAX has only
with jax_enable_x64. Source: jax/_src/image/scale.py of 0.10.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from gradwire_server.dialects.dialect import (
    FLOAT32,
    Attributes,
    Axes,
    Axis,
    OperatorCall,
    Shape,
    both,
    check_count,
    check_result,
)
from gradwire_server.plans import sampling, sines
from gradwire_server.plans.banded_map import Indices
from gradwire_server.plans.sampling import Coordinates, Kernel, Taps

# An output has no weights if their sum is at most `1000. * float(np.finfo(np.float32).eps)`.
LEAST_SUM: Final = 1000 * float(np.finfo(np.float32).eps)

# `x > 1e-3` in `_fill_lanczos_kernel`: nearer to its center the kernel is 1.
FLAT: Final = 1e-3


@dataclass(frozen=True, slots=True)
class JaxAxis:
    """The forward along one axis.

    inputs, outputs  lengths in its direction
    method           nearest, or a key of KERNELS
    antialias        whether kernels are stretched where the axis shrinks
    compute          type of the arithmetic
    """

    inputs: int
    outputs: int
    method: str
    antialias: bool
    compute: np.dtype[np.floating]

    @property
    def inverse(self) -> float:
        """Input over output, as JAX computes it."""
        return 1 / (self.outputs / self.inputs)

    @property
    def stretch(self) -> float:
        """Stretch of the kernel."""
        return max(self.inverse, 1.0) if self.antialias else 1.0

    @property
    def most_taps(self) -> int:
        """Most taps of any output."""
        _, radius = KERNELS[self.method]
        reach = radius * self.stretch
        return min(math.ceil(2 * reach) + 3, self.inputs)


def _keys(x: Coordinates) -> Coordinates:
    """Weigh as Keys (1981), with his slope of -0.5."""
    inside = ((1.5 * x - 2.5) * x) * x + 1
    outside = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return sampling.two_pieces(x, inside, outside)


def _lanczos(x: Coordinates, *, radius: int) -> Coordinates:
    kind = x.dtype.type
    turn = kind(math.pi) * x
    # Elements outside are left out below; the window is only a few elements too wide.
    sine = sines.sin_as_float32 if kind is np.float32 else sines.sin
    first, second = (sine(part.astype(np.float64)) for part in (turn, turn / kind(radius)))
    product = kind(radius) * first * second
    flat = x <= kind(FLAT)
    square = np.where(flat, kind(1), kind(math.pi**2) * (x * x))
    weight = np.where(flat, kind(1), product / square)
    return np.where(x > radius, kind(0), weight)


# Weights by distance, in its type, and the radius from which on they are 0, or just above it.
KERNELS: Final[dict[str, tuple[Kernel, int]]] = {
    "linear": (sampling.triangle, 1),
    "cubic": (_keys, 2),
    "lanczos3": (partial(_lanczos, radius=3), 3),
    "lanczos5": (partial(_lanczos, radius=5), 5),
}


def _nearest(line: JaxAxis, outputs: Indices) -> Taps:
    """Read floor((X + 0.5) * in / out) in float32.

    The quotient is in * (1 / out), and taken first: so XLA folds the formula on a CPU.
    """
    x = outputs.astype(np.float32) + np.float32(0.5)
    x = x * (np.float32(line.inputs) * (np.float32(1) / np.float32(line.outputs)))
    return sampling.nearest_taps(np.floor(x), inputs=line.inputs, coordinates=x - np.float32(0.5))


def _sample(line: JaxAxis, outputs: Indices) -> Taps:
    """Weigh the elements around x by a kernel."""
    (kernel, radius), kind, taps = KERNELS[line.method], line.compute.type, line.most_taps
    stretch = kind(line.stretch)
    at = (outputs.astype(kind) + kind(0.5)) * kind(line.inverse) - kind(0.5)
    low = np.floor(at.astype(np.float64) - radius * float(stretch)).astype(np.int64)
    # A band partly outside is moved onto the axis: it still holds all weighted elements.
    low = np.clip(low, 0, line.inputs - taps)
    first: Any = slice(None)
    alike: Any = slice(None)
    if line.compute == FLOAT32:
        # Equal distances from the first element, exact in float64, give equal weights. Long axes
        # have few distances: from 2**k on at most 2**(23 - k) between two elements.
        distance = at.astype(np.float64) - low
        _, first, alike = np.unique(distance, return_index=True, return_inverse=True)

    def weigh(index: Indices) -> Coordinates:
        return kernel(np.abs(at[first, np.newaxis] - index.astype(kind)) / stretch)

    read = sampling.weights_from(weigh, low[first], taps=taps)
    weight = _normalized(read.weight)[alike]
    weight[(at < kind(-0.5)) | (at > kind(line.inputs - 0.5))] = 0
    return Taps(low[:, np.newaxis] + np.arange(taps), weight, at)


def _normalized(weight: Coordinates) -> Coordinates:
    """Divide each output's weights by their sum.

    The sum is taken tap by tap.
    """
    total = sampling.added(np.zeros(len(weight), weight.dtype), weight)
    some = np.abs(total) > weight.dtype.type(LEAST_SUM)
    divided = weight / np.where(some, total, weight.dtype.type(1))[:, np.newaxis]
    return np.where(some[:, np.newaxis], divided, weight.dtype.type(0))


def _axes(attributes: Attributes, call: OperatorCall) -> Axes:
    check_count(attributes, "shape", len(call.result))
    # An empty shape is absent.
    shape: Shape = attributes.shape
    check_result(call, dict(enumerate(shape)), by="shape")
    method, antialias = attributes.method, attributes.antialias
    compute = FLOAT32 if method == "nearest" else call.compute
    return tuple(
        None if inputs == outputs else _axis(JaxAxis(inputs, outputs, method, antialias, compute))
        for inputs, outputs in zip(call.source, call.result, strict=True)
    )


def _axis(line: JaxAxis) -> Axis:
    sides = line.inputs, line.outputs
    if line.method == "nearest":
        return Axis(*sides, 1, _nearest, (line,))
    effort = {"linear": 1, "cubic": 2}.get(line.method, sines.EFFORT[line.compute])
    in_float32 = line.compute == FLOAT32
    return Axis(*sides, line.most_taps, _sample, (line,), in_float32, effort=effort)


def _output_shape(attributes: Attributes, input_shape: Shape) -> Shape:
    wanted = "{}, or the output's sizes"
    check_count(attributes, "shape", len(input_shape), other=(), wanted=wanted)
    return tuple(attributes.shape)


DIALECTS: Final = both(
    "jax_resize_grad",
    "jax_resize",
    ranks=range(1, 9),
    axes=_axes,
    output_shape=_output_shape,
)
