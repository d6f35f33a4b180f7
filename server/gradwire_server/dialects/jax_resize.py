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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from gradwire_server.dialects.dialect import FLOAT32, Axes, Axis, Dialect, OperatorCall, Shape
from gradwire_server.errors import InvalidFieldError, counted
from gradwire_server.plans import sampling, sines
from gradwire_server.plans.sampling import ComputedTaps, Coordinates, Taps

# An output has no weights if their sum is at most `1000. * float(np.finfo(np.float32).eps)`.
LEAST_SUM: Final = 1000 * float(np.finfo(np.float32).eps)

# `x > 1e-3` in `_fill_lanczos_kernel`: nearer to its center the kernel is 1.
FLAT: Final = 1e-3


class JaxAttributes(Protocol):
    """Attributes of both operators.

    method     either nearest or a key of KERNELS
    shape      shape of the forward's output, or nothing
    antialias  whether kernels are stretched where an axis shrinks
    """

    method: str
    shape: Sequence[int]
    antialias: bool


@dataclass(frozen=True, slots=True)
class JaxAxis:
    """The forward along one axis.

    It holds lengths in its direction, and the type of the arithmetic.
    """

    inputs: int
    outputs: int
    compute: np.dtype[np.floating]


_Rows: TypeAlias = npt.NDArray[np.int64] | slice


@dataclass(frozen=True, slots=True)
class ResizeKernel:
    """Weights by distance, in the type of the distances.

    They are 0 from radius on, or just above it.
    """

    radius: int
    weigh: Callable[[Coordinates], Coordinates]


def _triangle(x: Coordinates) -> Coordinates:
    return np.maximum(1 - x, x.dtype.type(0))


def _keys(x: Coordinates) -> Coordinates:
    """Weigh as Keys (1981), with his slope of -0.5."""
    inside = ((1.5 * x - 2.5) * x) * x + 1
    outside = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, inside, np.where(x < 2, outside, x.dtype.type(0)))  # noqa: PLR2004


def _lanczos(radius: int) -> ResizeKernel:
    def weigh(x: Coordinates) -> Coordinates:
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

    return ResizeKernel(radius, weigh)


KERNELS: Final[dict[str, ResizeKernel]] = {
    "linear": ResizeKernel(1, _triangle),
    "cubic": ResizeKernel(2, _keys),
    "lanczos3": _lanczos(3),
    "lanczos5": _lanczos(5),
}


def _nearest(line: JaxAxis) -> Taps:
    """Read floor((X + 0.5) * in / out) in float32.

    The quotient is in * (1 / out), and taken first: so XLA folds the formula on a CPU.
    """
    x = np.arange(line.outputs).astype(np.float32) + np.float32(0.5)
    ratio = np.float32(line.inputs) * (np.float32(1) / np.float32(line.outputs))
    x = x * ratio
    return sampling.nearest_taps(np.floor(x), inputs=line.inputs, coordinates=x - np.float32(0.5))


def _stretch(line: JaxAxis, *, antialias: bool) -> float:
    return max(1 / (line.outputs / line.inputs), 1.0) if antialias else 1.0


def _most_taps(line: JaxAxis, kernel: ResizeKernel, *, antialias: bool) -> int:
    reach = kernel.radius * _stretch(line, antialias=antialias)
    return min(math.ceil(2 * reach) + 3, line.inputs)


def _sample(line: JaxAxis, method: str, antialias: bool) -> ComputedTaps:  # noqa: FBT001 - an Axis's argument
    """Weigh blocks of outputs: temporaries take several times the taps' memory."""
    kernel, kind = KERNELS[method], line.compute.type
    taps = _most_taps(line, kernel, antialias=antialias)
    inverse = kind(1 / (line.outputs / line.inputs))
    stretch = kind(_stretch(line, antialias=antialias))
    coordinates = (np.arange(line.outputs).astype(kind) + kind(0.5)) * inverse - kind(0.5)

    def block(x: npt.NDArray[np.int64]) -> Taps:
        at = coordinates[x]
        reach = kernel.radius * float(stretch)
        low = np.floor(at.astype(np.float64) - reach).astype(np.int64)
        # A band partly outside is moved onto the axis: it still holds all weighted elements.
        low = np.clip(low, 0, line.inputs - taps)

        first, alike = _alike(at, low)

        def weigh(index: npt.NDArray[np.int64]) -> Coordinates:
            return kernel.weigh(np.abs(at[first, np.newaxis] - index.astype(kind)) / stretch)

        read = sampling.weights_from(weigh, low[first], taps=taps)
        weight = _normalized(read.weight)[alike]
        outside = (at < kind(-0.5)) | (at > kind(line.inputs - 0.5))
        weight[outside] = 0
        return Taps(low[:, np.newaxis] + np.arange(taps), weight)

    return sampling.in_blocks(block, outputs=line.outputs, taps=taps, coordinates=coordinates)


def _alike(at: Coordinates, low: npt.NDArray[np.int64]) -> tuple[_Rows, _Rows]:
    """Return outputs with distinct weights, and each output's equal among them.

    The equal is given by its position. Equal distances from the first element give equal weights,
    since differences are rounded once. Long axes have few distances in float32: from 2**k on at
    most 2**(23 - k) between two elements.
    """
    if at.dtype != FLOAT32:
        return slice(None), slice(None)
    distance = at.astype(np.float64) - low
    _, first, alike = np.unique(distance, return_index=True, return_inverse=True)
    return first, alike


def _normalized(weight: Coordinates) -> Coordinates:
    """Divide each output's weights by their sum.

    The sum is taken tap by tap.
    """
    total = sampling.added(np.zeros(len(weight), weight.dtype), weight)
    some = np.abs(total) > weight.dtype.type(LEAST_SUM)
    divided = weight / np.where(some, total, weight.dtype.type(1))[:, np.newaxis]
    return np.where(some[:, np.newaxis], divided, weight.dtype.type(0))


def _axes(attributes: JaxAttributes, call: OperatorCall) -> Axes:
    _check_shape(attributes, call)
    return tuple(
        None if inputs == outputs else _axis(attributes, JaxAxis(inputs, outputs, call.compute))
        for inputs, outputs in zip(call.source, call.result, strict=True)
    )


def _axis(attributes: JaxAttributes, line: JaxAxis) -> Axis:
    if attributes.method == "nearest":
        line = JaxAxis(line.inputs, line.outputs, FLOAT32)
        return Axis(line.inputs, line.outputs, 1, _nearest, (line,))
    arguments = (line, attributes.method, attributes.antialias)
    most_taps = _most_taps(line, KERNELS[attributes.method], antialias=attributes.antialias)
    in_float32 = line.compute == FLOAT32
    effort = {"linear": 1, "cubic": 2}.get(attributes.method, sines.EFFORT[line.compute])
    sides = line.inputs, line.outputs
    return Axis(*sides, most_taps, _sample, arguments, in_float32, effort=effort)


def _check_shape(attributes: JaxAttributes, call: OperatorCall) -> None:
    if not attributes.shape:
        return
    if len(attributes.shape) != len(call.result):
        raise InvalidFieldError(
            call.attribute("shape"),
            f"has {counted(len(attributes.shape), 'value')} for tensors of "
            f"{counted(len(call.result), 'axis')}; give "
            f"{len(call.result)}, or none",
            came=len(attributes.shape),
            expected=len(call.result),
        )
    for axis, (expected, came) in enumerate(zip(attributes.shape, call.result, strict=True)):
        if expected != came:
            raise InvalidFieldError(
                f"{call.result_sizes}[{axis}]",
                f"is {came}, but shape has {expected} for this axis; give {expected}, or leave "
                f"shape empty",
                came=came,
                expected=expected,
            )


def _output_shape(attributes: JaxAttributes, input_shape: Shape) -> Shape:
    if len(attributes.shape) != len(input_shape):
        raise InvalidFieldError(
            "operator.jax_resize.shape",
            f"has {counted(len(attributes.shape), 'value')} for a tensor of "
            f"{counted(len(input_shape), 'axis')}; give "
            f"{len(input_shape)}, or the output's sizes",
            came=len(attributes.shape),
            expected=len(input_shape),
        )
    return tuple(attributes.shape)


def _operator(name: str, *, gradient: bool, **rest: Any) -> Dialect:
    return Dialect(name, gradient=gradient, ranks=range(1, 9), axes=_axes, by_compute=True, **rest)


DIALECTS: Final = (
    _operator("jax_resize_grad", gradient=True),
    _operator("jax_resize", gradient=False, output_shape=_output_shape),
)
