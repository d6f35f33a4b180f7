"""Contestants of the compute benchmark, and ours among them: LocalClient on each backend.

A contestant is ready to run: its arrays exist and nothing is converted, allocated or compiled while
it is timed. All read the same output gradient, each in its own layout, and write an array of their
own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from bench.cases import Array, Case, Layout, Outputs, logical, stored
from gradwire import ops
from gradwire_server import LocalClient, backends
from gradwire_server.plans import BandedMap, Plan

# The slope of the cubic that PyTorch's bicubic and OpenCV use.
_CUBIC_SLOPE = np.float32(-0.75)


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to compute a case.

    run     computes once
    result  what it wrote, axes in the order N, C, X; None where there is nothing to compare
    note    which implementation it is
    close   frees what is not Python's
    """

    name: str
    run: Callable[[], object]
    result: Array | None
    note: str = ""
    close: Callable[[], object] = int


@dataclass(frozen=True, slots=True)
class Gradient:
    """What all contestants of one layout are given.

    x        output gradient, axes in the order of the layout
    threads  how many may compute
    outputs  where results go
    """

    case: Case
    layout: Layout
    x: Array
    threads: int
    outputs: Outputs

    def output(self, name: str, *, layout: Layout | None = None) -> Array:
        """Return an array for the input gradient of the contestant of this name."""
        shape = stored(self.case.src, layout or self.layout)
        return self.outputs.zeros(name, shape, self.x.dtype)


def ours(given: Gradient, client: LocalClient, backend: str) -> Contestant:
    """LocalClient with out=; for the cubic, which no operator of this release has, its backend."""
    name = f"{backend} {given.layout}"
    y = given.output(name)
    result = logical(y, given.layout)
    run: Callable[[], object]
    if given.case.kind == "cubic":
        plan = _cubic_plan(given)
        chosen, _ = backends.choose(backend, threads=given.threads)
        run, note = partial(chosen.apply, plan, given.x, y), "Backend.apply"
    else:
        run = partial(client.evaluate, _operator(given), given.x, output_shape=y.shape, out=y)
        note = "LocalClient.evaluate"
    run()  # the first call makes tables
    return Contestant(name, run, result, note)


def _operator(given: Gradient) -> ops.Operator:
    if given.case.kind == "dml":
        return ops.DmlResampleGrad(interpolation_mode="linear")
    return ops.InterpolateBackward(
        mode="nearest" if given.case.kind == "nearest" else "linear",
        coordinate_transformation_mode=(
            "align_corners" if given.case.align_corners else "half_pixel"
        ),
        data_format=given.layout,
    )


def cubic_plan(*, src: tuple[int, ...], dst: tuple[int, ...], moved: range) -> Plan:
    """Gradient of Keys' cubic along some axes: half-pixel centers, edges repeated, float32."""
    maps = [
        _cubic_map(low, high) if axis in moved else None
        for axis, (low, high) in enumerate(zip(src, dst, strict=True))
    ]
    return Plan.build(maps, src).adjoint()


def _cubic_plan(given: Gradient) -> Plan:
    src, dst = stored(given.case.src, given.layout), stored(given.case.dst, given.layout)
    moved = range(2, len(src)) if given.layout == "NCX" else range(1, len(src) - 1)
    return cubic_plan(src=src, dst=dst, moved=moved)


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
