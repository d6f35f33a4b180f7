"""PyTorch's antialiased filters along one axis: stretched where it shrinks, cut at the edges.

With scale the input over the output, s = max(scale, 1) and r the filter's radius, output X reads
around c = scale * (X + 0.5) the elements from trunc(c - r s + 0.5) up to trunc(c + r s + 0.5), held
to the axis, and weights element j with filter((j - c + 0.5) / s), divided by the sum of all.

Source: ATen/native/cpu/UpSampleKernel.cpp of torch 2.13 and the bits of its results.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from gradwire_server.dialects.torch_coordinates import Filter, Keys, Line, Numbers
from gradwire_server.plans.sampling import (
    ComputedTaps,
    Indices,
    Taps,
    added,
    in_blocks,
    weights_from,
)
from gradwire_server.plans.sines import Doubles, quick_sin, sin, sinf, unsettled

# With antialias, as Pillow and Keys himself; without, PyTorch uses -0.75.
CUBIC: Final = Keys(-0.5, fused=True, last=True)


def _triangle(x: Numbers) -> Numbers:
    weight: Numbers = np.maximum(1 - np.abs(x), 0)
    return weight


def _keys(x: Numbers) -> Numbers:
    x = np.abs(x)
    inside, outside = CUBIC.inside(x), CUBIC.outside(x)
    return np.where(x < 1, inside, np.where(x < 2, outside, x.dtype.type(0)))  # noqa: PLR2004


def _lanczos(x: Numbers) -> Numbers:
    """Return sinc(x) sinc(x / 3), where x / 3 is a double and so is its sinc."""
    x = np.abs(x)
    narrow, third = _sinc(x).astype(np.float64), x.astype(np.float64) / 3
    if x.dtype == np.float64:
        weight = narrow * _sinc(third)
    else:
        weight = narrow * _sinc(third, quick_sin)
        doubtful = unsettled(weight)
        weight[doubtful] = narrow[doubtful] * _sinc(third[doubtful])
    return np.where(x < 3, weight, 0).astype(x.dtype)  # noqa: PLR2004 - the radius


def _sinc(x: Numbers, sine_of: Callable[[Doubles], Doubles] = sin) -> Numbers:
    y = x * x.dtype.type(np.pi)
    one = y.dtype.type(1)
    single = y.dtype == np.float32
    sine: Numbers = sinf(y.astype(np.float32)) if single else sine_of(y.astype(np.float64))
    return np.where(y == 0, one, sine / np.where(y == 0, one, y))


def _support(line: Line, radius: int) -> float:
    scale = line.scale()
    return float(line.compute.type(radius * float(scale))) if scale >= 1 else radius


def _most_taps(line: Line, *, radius: int) -> int:
    return min(2 * math.ceil(_support(line, radius)) + 1, line.inputs)


def _sample(line: Line, *, weigh: Callable[[Numbers], Numbers], radius: int) -> ComputedTaps:
    """Weigh blocks of outputs: what is computed on the way takes several times the taps' memory."""
    kind, taps = line.compute.type, _most_taps(line, radius=radius)
    scale, support = float(line.scale()), kind(_support(line, radius))
    inverse = float(kind(1 / scale)) if scale >= 1 else 1.0

    def block(x: Indices) -> Taps:
        center = (scale * (x + 0.5)).astype(kind)
        low = np.maximum(np.trunc((center - support).astype(np.float64) + 0.5), 0).astype(np.int64)
        high = np.trunc((center + support).astype(np.float64) + 0.5).astype(np.int64)
        counts = np.minimum(high, line.inputs) - low

        def weights(index: Indices) -> Numbers:
            distance = (index.astype(kind) - center[:, np.newaxis]).astype(np.float64) + 0.5
            weight = weigh((distance * inverse).astype(kind))
            return np.where(index - low[:, np.newaxis] < counts[:, np.newaxis], weight, kind(0))

        read = weights_from(weights, low, taps=taps)
        total = added(np.zeros(len(low), kind), read.weight)[:, np.newaxis]
        divided = read.weight / np.where(total == 0, kind(1), total)
        weight = np.where(total == 0, read.weight, divided)
        return Taps(np.minimum(read.index, line.inputs - 1), weight)

    centers = (scale * (np.arange(line.outputs) + 0.5)).astype(kind)
    coordinates = centers - kind(0.5)
    return in_blocks(block, outputs=line.outputs, taps=taps, coordinates=coordinates)


def _filter(weigh: Callable[[Numbers], Numbers], radius: int, *, sines: bool = False) -> Filter:
    sample = partial(_sample, weigh=weigh, radius=radius)
    return Filter(sample, partial(_most_taps, radius=radius), sines=sines)


# The forward leaves axes alone whose length stays, the backward does not.
ANTIALIAS: Final = {
    "bilinear": _filter(_triangle, 1),
    "bicubic": _filter(_keys, 2),
    "lanczos": _filter(_lanczos, 3, sines=True),
}
