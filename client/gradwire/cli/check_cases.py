"""The cases of `gradwire check`: shapes, values and memory layouts that kernels get wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from gradwire.cli.differences import Bounds

Array = NDArray[Any]
Shape = tuple[int, ...]
# Lengths of the forward's input and output along an axis.
Pair = tuple[int, int]

# Single elements, doubled, halved, primes both ways, even and odd, ratios such as 2.3 and 14, steps
# that leave elements unread, and lengths of one element more or less.
PAIRS: tuple[Pair, ...] = (
    *product((1, 2, 3), (1, 2, 3)),
    *((1, 7), (7, 1), (2, 4), (4, 2), (3, 6), (6, 3), (5, 10), (10, 5), (4, 6), (6, 4), (9, 4)),
    *((3, 7), (7, 3), (5, 13), (13, 5), (10, 23), (23, 10), (5, 30), (30, 5), (7, 100), (100, 7)),
    *((16, 17), (17, 16), (31, 32), (32, 31), (11, 11), (64, 128), (128, 64), (129, 50)),
)
TALL_AND_WIDE: tuple[tuple[Pair, Pair], ...] = (
    ((200, 399), (1, 1)),
    ((1, 1), (399, 200)),
    ((150, 2), (2, 150)),
    ((3, 90), (90, 3)),
)
# What special values and memory layouts are tried on.
MIXED: tuple[Pair, ...] = ((3, 7), (7, 3), (4, 8), (8, 4))
BATCHES: tuple[Pair, ...] = ((1, 1), (1, 5), (3, 1), (2, 3))
# Length up to which a pair stands on all axes at once.
LONG = 32
# How often one is strewn among others.
SPECIAL = 0.2
LAYOUTS = ("contiguous", "transposed", "every second", "broadcast")


@dataclass(frozen=True, slots=True)
class Memory:
    """A tensor as it lies in memory: elements of a base array, by strides in elements."""

    base: Array
    shape: Shape
    strides: Shape

    def view(self) -> Array:
        """Return the tensor."""
        steps = tuple(step * self.base.itemsize for step in self.strides)
        return as_strided(self.base, self.shape, steps)


@dataclass(frozen=True, slots=True)
class Case:
    """One call of the function that is checked.

    batch    batch and channel
    spatial  lengths of each spatial axis
    values   a key of VALUES
    layout   one of LAYOUTS
    given    the elements themselves, in row-major order, in place of values
    """

    dtype: np.dtype[Any]
    batch: Pair
    spatial: tuple[Pair, ...]
    values: str = "random"
    layout: str = "contiguous"
    given: tuple[float, ...] | None = None

    def memory(self, shape: Shape, *, seed: int) -> Memory:
        """Make the tensor that the function is given."""
        if self.given is not None:
            values = np.array(self.given).astype(self.dtype).reshape(shape)
        else:
            values = VALUES[self.values](shape, self.dtype, np.random.default_rng(seed))
        return _laid_out(values, self.layout)


def table(
    dtypes: tuple[np.dtype[Any], ...], values: tuple[str, ...], *, rank: int
) -> Iterator[Case]:
    """Yield the cases for tensors of a rank, the plainest first."""
    axes = max(rank - 2, 1)
    for dtype in dtypes:
        plain = [Case(dtype, (1, 1), spatial, values[0]) for spatial in _shapes(axes)]
        yield from plain
        yield from (Case(dtype, batch, ((3, 7),) * axes, values[0]) for batch in BATCHES)
        for pair in MIXED:
            for special in values[1:]:
                yield Case(dtype, (1, 2), (pair,) * axes, special)
            for layout in LAYOUTS[1:]:
                yield Case(dtype, (2, 3), (pair,) * axes, values[0], layout)


def _shapes(axes: int) -> Iterator[tuple[Pair, ...]]:
    """Yield each pair on the last axis, on the first and on all; then long and narrow ones."""
    seen: set[tuple[Pair, ...]] = set()
    for pair in PAIRS:
        for spatial in ((*[(2, 2)] * (axes - 1), pair), (pair, *[(2, 2)] * (axes - 1))):
            seen.add(spatial)
        if axes == 1 or max(pair) <= LONG:
            seen.add((pair,) * axes)
    if axes > 1:
        seen |= {(*[(1, 1)] * (axes - 2), *pairs) for pairs in TALL_AND_WIDE}
    yield from sorted(seen, key=lambda spatial: (sum(map(sum, spatial)), spatial))


def _random(shape: Shape, dtype: np.dtype[Any], noise: np.random.Generator) -> Array:
    return noise.standard_normal(shape).astype(dtype)


def _counting(shape: Shape, dtype: np.dtype[Any], _: np.random.Generator) -> Array:
    return (1 + np.arange(np.prod(shape)) % 97).reshape(shape).astype(dtype)


def _ones(shape: Shape, dtype: np.dtype[Any], _: np.random.Generator) -> Array:
    return np.ones(shape, dtype)


def _with(*specials: float) -> Callable[[Shape, np.dtype[Any], np.random.Generator], Array]:
    """Return what strews special values among random ones, at least one."""

    def make(shape: Shape, dtype: np.dtype[Any], noise: np.random.Generator) -> Array:
        values = noise.standard_normal(shape)
        chosen = noise.random(shape) < SPECIAL
        chosen.flat[noise.integers(chosen.size)] = True
        return np.where(chosen, noise.choice(specials, shape), values).astype(dtype)

    return make


def _tiny(shape: Shape, dtype: np.dtype[Any], noise: np.random.Generator) -> Array:
    return (noise.integers(-50, 50, shape) * Bounds.of(dtype).least).astype(dtype)


def _huge(shape: Shape, dtype: np.dtype[Any], noise: np.random.Generator) -> Array:
    return (noise.uniform(-1, 1, shape) * Bounds.of(dtype).most).astype(dtype)


VALUES: Mapping[str, Callable[[Shape, np.dtype[Any], np.random.Generator], Array]] = {
    "random": _random,
    "counting": _counting,
    "ones": _ones,
    "zeros": _with(0.0, -0.0),
    "nan": _with(np.nan),
    "infinity": _with(np.inf, -np.inf),
    "tiny": _tiny,
    "huge": _huge,
}


def _laid_out(values: Array, layout: str) -> Memory:
    shape = values.shape
    packed = tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
    if layout == "transposed":
        strides = tuple(int(np.prod(shape[:axis])) for axis in range(len(shape)))
        return Memory(values.ravel(order="F"), shape, strides)
    if layout == "every second":
        base = np.zeros(2 * values.size, values.dtype)
        base[::2] = values.ravel()
        return Memory(base, shape, tuple(2 * stride for stride in packed))
    if layout == "broadcast":
        # One batch for all: axes of stride 0 lead.
        inner = tuple(stride if axis else 0 for axis, stride in enumerate(packed))
        return Memory(values[0].ravel(), shape, inner)
    return Memory(values.ravel(), shape, packed)
