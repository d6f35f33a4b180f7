"""Contestants of the compute benchmark, and ours among them: LocalClient on each backend.

A contestant is ready to run: its arrays exist and nothing is converted, allocated or compiled while
it is timed. All read the same output gradient, each in its own layout, and write an array of their
own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bench.cases import Array, Case, Layout, Outputs, logical, stored
from bench.cubic import cubic_plan
from gradwire import ops
from gradwire_server import LocalClient, backends
from gradwire_server.plans import Plan


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


def _cubic_plan(given: Gradient) -> Plan:
    src, dst = stored(given.case.src, given.layout), stored(given.case.dst, given.layout)
    moved = range(2, len(src)) if given.layout == "NCX" else range(1, len(src) - 1)
    return cubic_plan(src=src, dst=dst, moved=moved)
