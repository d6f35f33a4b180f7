"""The gradient of a cubic, which no operator of this release has, as a plan."""

from __future__ import annotations

import numpy as np

from bench.cases import Array
from gradwire_server.plans import BandedMap, Plan

# The slope of the cubic that PyTorch's bicubic and OpenCV use.
_CUBIC_SLOPE = np.float32(-0.75)


def cubic_plan(*, src: tuple[int, ...], dst: tuple[int, ...], moved: range) -> Plan:
    """Gradient of Keys' cubic along some axes: half-pixel centers, edges repeated, float32."""
    maps = [
        _cubic_map(low, high) if axis in moved else None
        for axis, (low, high) in enumerate(zip(src, dst, strict=True))
    ]
    return Plan.build(maps, src).adjoint()


def _cubic_map(src: int, dst: int) -> BandedMap:
    half = np.float32(0.5)
    x = (np.arange(dst, dtype=np.float32) + half) * np.float32(src / dst) - half
    low = np.floor(x)
    index = low.astype(np.int64)[:, np.newaxis] + np.arange(-1, 3)
    weight = _keys(np.abs((x - low)[:, np.newaxis] - np.arange(-1, 3, dtype=np.float32)))
    return BandedMap.from_taps(np.clip(index, 0, src - 1), weight, inputs=src)


def _keys(x: Array) -> Array:
    """Keys (1981): the cubic convolution kernel at distance x, here 0 .. 2, and its slope a."""
    a = _CUBIC_SLOPE
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    kernel: Array = np.where(x <= 1, near, far).astype(np.float32)
    return kernel
