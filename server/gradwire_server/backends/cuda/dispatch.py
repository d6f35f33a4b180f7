"""From a plan to a program.

Passes are applied in the plan's order. Two that follow each other on adjacent axes are one launch
where a kernel can march over both; of an odd number the first is alone, since what the others read
is then often less. Results between launches stay in the compute type.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradwire_server.backends.cuda import launches, marches, tables
from gradwire_server.backends.cuda.programs import Buffer, Launch, Program
from gradwire_server.backends.cuda.steps import Making, Step
from gradwire_server.backends.numpy_cpu import compute_dtype
from gradwire_server.plans import BandedMap, Pass, Plan

X, Y = Buffer("x"), Buffer("y")

# Axes that one selection looks at.
_SELECTED = 3
# The longest of them that may stay as it is: it takes a table too.
_LONGEST_KEPT = 1 << 20

# Of an H200, which the kernels were designed for.
MULTIPROCESSORS = 132


def program(
    plan: Plan,
    source: np.dtype[Any],
    result: np.dtype[Any],
    *,
    copies: int = 1,
    multiprocessors: int = MULTIPROCESSORS,
) -> Program:
    """Return what applies a plan.

    source           type of x[copies, *plan.input_shape]: a storage type or its compute type
    result           type of y[copies, *plan.output_shape], likewise
    copies           tensors that lie one behind the other
    multiprocessors  of the device

    Both are contiguous, row-major. Raises ValueError where indices of a map take more than 32 bits.
    """
    making = Making(compute_dtype(source), multiprocessors)
    shape = (copies, *plan.input_shape)
    passes = [Pass(one.axis + 1, one.map) for one in plan.passes]
    whole = Step(making, (source, result), X, Y, plan.fill)
    if not copies * math.prod(plan.output_shape):
        return Program((), (), ())
    if not passes:
        return _made(making, [launches.convert(whole, count=math.prod(shape))])
    if not math.prod(shape):
        return _made(making, [_filled(whole, passes, (copies, *plan.output_shape))])
    selection = _selection(whole, passes, shape)
    if selection is not None:
        return _made(making, [selection])
    return _chain(whole, passes, shape)


def accumulation(
    bands: BandedMap,
    shape: Sequence[int],
    compute: np.dtype[Any],
    *,
    axis: int,
    carried: int,
    multiprocessors: int = MULTIPROCESSORS,
) -> Program:
    """Return what adds the taps of every output on x to y, as a backend's accumulate() does.

    shape    of x, in the compute type; y is bands.outputs long on the axis, otherwise as x
    carried  how many outputs, from the first, hold a partial sum already
    """
    making = Making(compute, multiprocessors)
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    if not outer * inner * bands.outputs:
        return Program((), (), ())
    step = Step(making, (compute, compute), X, Y, 0.0)
    launch = launches.axis_pass(step, bands, outer=outer, inner=inner, carried=carried)
    return _made(making, [launch])


def _made(making: Making, made: Sequence[Launch], scratch: Sequence[int] = ()) -> Program:
    return Program(tuple(made), tuple(making.tables), tuple(scratch))


def _selection(step: Step, passes: Sequence[Pass], shape: Sequence[int]) -> Launch | None:
    """Return one launch for all passes where each output is one number of the input, unchanged."""
    axes = [one.axis for one in passes]
    span = range(axes[0], axes[-1] + 1)
    maps = {one.axis: one.map for one in passes}
    if (
        step.formats[0] != step.formats[1]
        or axes != sorted(axes)
        or len(span) > _SELECTED
        or any(shape[axis] > _LONGEST_KEPT for axis in span if axis not in maps)
        or not all(tables.selects(one.map, step.making.compute) for one in passes)
    ):
        return None
    missing = _SELECTED - len(span)
    return launches.select(
        step,
        [*(None,) * missing, *(maps.get(axis) for axis in span)],
        [*(1,) * missing, *(shape[axis] for axis in span)],
        outer=math.prod(shape[: span.start]),
        inner=math.prod(shape[span.stop :]),
    )


def _chain(whole: Step, passes: Sequence[Pass], shape: Sequence[int]) -> Program:
    """Apply passes by twos, or one by one, from one scratch buffer into the other."""
    made, scratch, early = list[Launch](), [0, 0], list[Pass]()
    rest, current, source = list(passes), list(shape), X
    while rest:
        between = Buffer("scratch", len(made) % 2)
        launch, count = _next(whole, rest, current, (source, between))
        made.append(launch)
        for one in rest[:count]:
            current[one.axis] = one.map.outputs
        if count < len(rest):
            size = math.prod(current) * whole.making.compute.itemsize
            scratch[between.number] = max(scratch[between.number], size)
            early += rest[:count]
        rest, source = rest[count:], between
    # What the last launch computes from outputs without taps is not what they become.
    made += [_filled(whole, [one], current) for one in early if not one.map.counts.all()]
    return _made(whole.making, made, [size for size in scratch if size])


def _next(
    whole: Step, rest: Sequence[Pass], shape: Sequence[int], places: tuple[Buffer, Buffer]
) -> tuple[Launch, int]:
    """Return the launch of the next passes, and how many those are."""
    source, between = places
    if len(rest) % 2 == 0 and _adjacent(rest[0], rest[1], shape):
        lower, higher = rest[:2]
        launch = marches.march(
            _part(whole, source, between, last=len(rest) == 2),  # noqa: PLR2004 - both
            (lower.map, higher.map),
            outer=math.prod(shape[: lower.axis]),
            channels=math.prod(shape[higher.axis + 1 :]),
        )
        if launch is not None:
            return launch, 2
    step = _part(whole, source, between, last=len(rest) == 1)
    axis, bands = rest[0].axis, rest[0].map
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    along = marches.march_along(step, bands, outer=outer) if inner == 1 else None
    return along or launches.axis_pass(step, bands, outer=outer, inner=inner), 1


def _part(whole: Step, source: Buffer, between: Buffer, *, last: bool) -> Step:
    """Return what one launch of several reads and writes."""
    compute = whole.making.compute
    formats = (
        whole.formats[0] if source == X else compute,
        whole.formats[1] if last else compute,
    )
    result, fill = (Y, whole.fill) if last else (between, 0.0)
    return Step(whole.making, formats, source, result, fill)


def _adjacent(lower: Pass, higher: Pass, shape: Sequence[int]) -> bool:
    return lower.axis < higher.axis and math.prod(shape[lower.axis + 1 : higher.axis]) == 1


def _filled(whole: Step, passes: Sequence[Pass], shape: Sequence[int]) -> Launch:
    """Fill the outputs of the first pass that has empty bands."""
    one = next(one for one in passes if not one.map.counts.all())
    outer, inner = math.prod(shape[: one.axis]), math.prod(shape[one.axis + 1 :])
    return launches.fill_bands(whole, one.map, outer=outer, inner=inner)
