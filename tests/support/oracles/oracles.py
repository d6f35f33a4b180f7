"""Oracles that know nothing of bands: dense matrices and scalar loops; and awkward cases to try.

Scalar loops take NumPy's scalars, whose every operation rounds to their own type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from gradwire_server.plans import BandedMap, Plan

Matrix = npt.NDArray[np.float64]
Tensor = npt.NDArray[Any]

STORAGE_TYPES = [np.dtype(t) for t in (np.float32, np.float16, ml_dtypes.bfloat16, np.float64)]

# Where a shortcut would show: zeros of both signs, one, denormals, huge and inexact numbers.
WEIGHTS = [0.0, -0.0, 1.0, 0.5, 1 / 3, -0.7, 1e-40, -3.0, 1e30]
VALUES = [0.0, -0.0, 1.0, -1.0, 1 / 3, -2.75, 1e-41, 6e4, np.inf, -np.inf, np.nan]


@dataclass(frozen=True, slots=True)
class TapTable:
    """A block of taps, and the arguments of BandedMap.from_blocks."""

    index: npt.NDArray[np.int64]
    weight: npt.NDArray[np.floating[Any]]
    inputs: int

    def map(self) -> BandedMap:
        return BandedMap.from_blocks([(self.index, self.weight)], inputs=self.inputs)

    def dense(self) -> Matrix:
        matrix = np.zeros((len(self.index), self.inputs), self.weight.dtype)
        for output, taps in enumerate(self.index):
            for tap, place in enumerate(taps):
                matrix[output, place] = matrix[output, place] + self.weight[output, tap]
        return matrix.astype(np.float64)


def linear_taps(inputs: int, outputs: int) -> TapTable:
    position = (np.arange(outputs) + 0.5) * (inputs / outputs) - 0.5
    low = np.floor(position)
    upper = (position - low).astype(np.float32)
    index = np.clip(low[:, None] + [0, 1], 0, inputs - 1).astype(np.int64)
    return TapTable(index, np.stack([1 - upper, upper], axis=1), inputs)


def cubic_taps(inputs: int, outputs: int) -> TapTable:
    """Four taps of Keys' cubic convolution, clamped: at whole coordinates three of them are 0.

    Keys, "Cubic convolution interpolation for digital image processing", 1981, equation 15 with
    -1/2 replaced by -3/4.
    """
    position = (np.arange(outputs) + 0.5) * (inputs / outputs) - 0.5
    low = np.floor(position)
    places = low[:, None] + [-1, 0, 1, 2]
    x = np.abs(position[:, None] - places).astype(np.float32)
    a = np.float32(-0.75)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    weight = np.where(x <= 1, near, far)
    return TapTable(np.clip(places, 0, inputs - 1).astype(np.int64), weight, inputs)


def same_bits(ours: Tensor, theirs: Tensor) -> None:
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    np.testing.assert_array_equal(canonical(ours), canonical(theirs))


def canonical(tensor: Tensor) -> Tensor:
    with np.errstate(invalid="ignore"):  # NaNs of any bits are asked for
        one_nan = np.where(np.isnan(tensor), tensor.dtype.type(np.nan), tensor)
    return np.ascontiguousarray(one_nan).view(f"u{tensor.dtype.itemsize}")


def assert_same_map(ours: BandedMap, theirs: BandedMap) -> None:
    assert (ours.outputs, ours.inputs) == (theirs.outputs, theirs.inputs)
    np.testing.assert_array_equal(ours.start, theirs.start)
    np.testing.assert_array_equal(ours.offset, theirs.offset)
    same_bits(ours.weight, theirs.weight)


def covered(bands: BandedMap) -> npt.NDArray[np.bool_]:
    """Which inputs each output's band covers: bool[outputs, inputs]."""
    place = np.arange(bands.inputs)
    return (bands.start[:, None] <= place) & (place < bands.stop[:, None])


def adjoint(plan: Plan) -> Plan:
    """Return the plan of the gradient: every pass transposed, without fill."""
    adjoints = {bands: bands.adjoint() for bands in {one.map for one in plan.passes}}
    maps: list[BandedMap | None] = [None] * len(plan.output_shape)
    for one in plan.passes:
        maps[one.axis] = adjoints[one.map]
    return Plan.build(maps, plan.output_shape)


def dense_apply(matrices: dict[int, Matrix], x: Tensor) -> Matrix:
    result = x.astype(np.float64)
    for axis, matrix in matrices.items():
        result = np.moveaxis(np.tensordot(matrix, result, axes=(1, axis)), 0, axis)
    return result


def scalar_apply(plan: Plan, x: Tensor, result_dtype: npt.DTypeLike) -> Tensor:
    """Apply a plan element by element, as the numerics contract words it."""
    wide = x.dtype == np.float64
    compute: Any = np.float64 if wide else np.float32
    y = x.astype(compute)
    empty = np.zeros(plan.output_shape, np.bool_)
    with np.errstate(all="ignore"):
        for one in plan.passes:
            y = _scalar_pass(one.map, y, one.axis)
            along = [1] * y.ndim
            along[one.axis] = -1
            empty |= (one.map.start == one.map.stop).reshape(along)
        result = y.astype(result_dtype)
    result[empty] = plan.fill
    return result


def _scalar_pass(bands: BandedMap, x: Tensor, axis: int) -> Tensor:
    kind = x.dtype.type
    result = np.zeros((*x.shape[:axis], bands.outputs, *x.shape[axis + 1 :]), x.dtype)
    for place in np.ndindex(result.shape):
        output, source = place[axis], list(place)
        for tap in range(bands.offset[output + 1] - bands.offset[output]):
            source[axis] = int(bands.start[output]) + tap
            term = kind(bands.weight[bands.offset[output] + tap]) * x[tuple(source)]
            result[place] = term if tap == 0 else result[place] + term
    return result


@st.composite
def tap_tables(draw: st.DrawFn) -> TapTable:
    """Taps in any order, clamped onto one input or scattered, some outputs without weight."""
    inputs, outputs, taps = (draw(st.integers(1, 9)) for _ in range(3))
    seed = np.random.default_rng(draw(st.integers(0, 2**32)))
    first = seed.integers(-2, inputs + 1, (outputs, 1))
    if draw(st.booleans()):
        first = np.sort(first, axis=0)[:: draw(st.sampled_from([1, -1]))]
    index = np.clip(first + seed.permutation(taps), 0, inputs - 1)
    weight = seed.choice(WEIGHTS, (outputs, taps)) * (seed.random((outputs, 1)) < 0.8)
    return TapTable(index, weight.astype(draw(st.sampled_from([np.float32, np.float64]))), inputs)


@st.composite
def banded_maps(
    draw: st.DrawFn, *, inputs: int | None = None, most: int = 7, ascending: bool | None = None
) -> BandedMap:
    """Bands of any width, ascending or descending, empty ones and explicit zeros among them."""
    outputs = draw(st.integers(1, most))
    inputs = draw(st.integers(1, most)) if inputs is None else inputs
    sides = st.lists(st.integers(0, inputs), min_size=outputs, max_size=outputs).map(sorted)
    start, stop = np.array(draw(sides)), np.array(draw(sides))
    stop = np.maximum(start, stop)
    if not (draw(st.booleans()) if ascending is None else ascending):
        start, stop = start[::-1], stop[::-1]
    offset = np.concatenate([[0], np.cumsum(stop - start)])
    seed = np.random.default_rng(draw(st.integers(0, 2**32)))
    return BandedMap(outputs, inputs, start, offset, seed.choice(WEIGHTS, offset[-1]))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """One to four axes, some of them without a pass."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    maps = [draw(st.none() | banded_maps(inputs=size, most=5)) for size in shape]
    return Plan.build(maps, shape, fill=draw(st.sampled_from([0.0, -1.5])))


@st.composite
def tensors(
    draw: st.DrawFn, shape: Sequence[int], *, dtype: npt.DTypeLike, values: Sequence[float] = VALUES
) -> Tensor:
    """Tensors of any strides: permuted, with gaps, backwards, broadcast."""
    axes = range(len(shape))
    order = draw(st.permutations(axes))
    steps = [draw(st.sampled_from([1, 1, 2, -1, 0])) for _ in axes]
    sizes = [1 if step == 0 else size * abs(step) for size, step in zip(shape, steps, strict=True)]
    seed = np.random.default_rng(draw(st.integers(0, 2**32)))
    whole = seed.choice(values, [sizes[axis] for axis in order]).astype(dtype)
    whole = whole.transpose(np.argsort(order))
    return np.broadcast_to(whole[tuple(slice(None, None, step or 1) for step in steps)], shape)
