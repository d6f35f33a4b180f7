"""Programs of plans: the choice and the order of kernels.

Passes are applied in the plan's order. Two consecutive passes on adjacent axes are one launch if a
kernel can march over both. If their number is odd, the first is alone, since the others often read
less then. Results between launches stay in the compute type.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gradwire_server.backends.cuda import launches
from gradwire_server.backends.cuda.launches import Stage
from gradwire_server.backends.cuda.programs import Buffer, Launch, Program, X
from gradwire_server.plans import BandedMap, Pass, Plan

# Axes of one launch of select_inputs.
_SELECTED = 3
# Longest axis without a map in such a launch: it needs a table too.
_LONGEST_UNMOVED = 1 << 20


def outer_axes(plan: Plan) -> int:
    """Return the number of axes before that of the first pass.

    Their slices are independent.
    """
    return min(one.axis for one in plan.passes)


def program(
    plan: Plan,
    source: np.dtype[Any],
    result: np.dtype[Any],
    *,
    outer: int,
    multiprocessors: int,
) -> Program:
    """Return the program that applies a plan, which has passes.

    source           type of x, row-major: a storage type or its compute type
    result           type of y, row-major and not empty, likewise
    outer            number of slices along the outer axes of x and y
    multiprocessors  of the device

    Raises ValueError if indices of a map take more than 32 bits.
    """
    first = outer_axes(plan)
    shape, out_shape = (outer, *plan.input_shape[first:]), plan.output_shape[first:]
    passes = [Pass(one.axis - first + 1, one.map) for one in plan.passes]
    for one in passes:
        launches.check_indices(one.map)
    whole = Stage(multiprocessors, (source, result), fill=plan.fill)
    scratch = dict[Buffer, int]()
    if not math.prod(shape):
        made = [_filled(whole, passes, (outer, *out_shape))]
    elif selection := _selection(whole, passes, shape):
        made = [selection]
    else:
        made = _chain(whole, passes, shape, scratch)
    return Program(tuple(made), dict(whole.tables.values()), scratch)


def _selection(stage: Stage, passes: Sequence[Pass], shape: Sequence[int]) -> Launch | None:
    """Return one launch for all passes that only select inputs.

    It needs every output to be one number of the input, unchanged.
    """
    axes = [one.axis for one in passes]
    span = range(axes[0], axes[-1] + 1)
    maps = {one.axis: one.map for one in passes}
    if (
        stage.formats[0] != stage.formats[1]
        or axes != sorted(axes)
        or len(span) > _SELECTED
        or any(shape[axis] > _LONGEST_UNMOVED for axis in span if axis not in maps)
        or not all(launches.selects(one.map, stage.compute) for one in passes)
    ):
        return None
    inner = math.prod(shape[span.stop :])
    has_gaps = any(not one.map.counts.all() for one in passes)
    if has_gaps and stage.vector(inner) == 1 and len(passes) == len(span) == 2:  # noqa: PLR2004
        return None  # gather_taps writes whole vectors, and reads nothing for rows without taps
    missing = [_unmoved(1)] * (_SELECTED - len(span))
    selected = [*missing, *(maps.get(axis) or _unmoved(shape[axis]) for axis in span)]
    return launches.select(stage, selected, math.prod(shape[: span.start]), inner)


def _unmoved(length: int) -> BandedMap:
    place = np.arange(length + 1)
    return BandedMap(length, length, place[:-1], place, np.ones(length))


def _chain(
    whole: Stage, passes: Sequence[Pass], shape: Sequence[int], scratch: dict[Buffer, int]
) -> list[Launch]:
    """Apply passes in pairs or one by one.

    Results alternate between two scratch buffers, whose bytes are noted.
    """
    made, count = list[Launch](), 0
    rest, current, source = passes, list(shape), X
    while rest:
        between = Buffer("scratch", len(made) % 2)
        launch, count = _next(whole, rest, current, (source, between))
        made.append(launch)
        for one in rest[:count]:
            current[one.axis] = one.map.outputs
        if count < len(rest):
            size = math.prod(current) * whole.compute.itemsize
            scratch[between] = max(scratch.get(between, 0), size)
        rest, source = rest[count:], between
    # The last launch knows only its own outputs without taps.
    early = [one for one in passes[:-count] if not one.map.counts.all()]
    made += [_filled(whole, [one], current) for one in early]
    return made


def _next(
    whole: Stage, rest: Sequence[Pass], shape: Sequence[int], places: tuple[Buffer, Buffer]
) -> tuple[Launch, int]:
    """Return the launch of the next passes, and their number."""
    axis, bands = rest[0].axis, rest[0].map
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    if len(rest) % 2 == 0:
        higher = rest[1]
        if axis < higher.axis and math.prod(shape[axis + 1 : higher.axis]) == 1:
            stage = _stage(whole, places, last=len(rest) == 2)  # noqa: PLR2004 - both
            channels = math.prod(shape[higher.axis + 1 :])
            launch = launches.march(stage, (bands, higher.map), outer, channels)
            if launch:
                return launch, 2
    stage = _stage(whole, places, last=len(rest) == 1)
    return launches.axis_pass(stage, bands, outer, inner), 1


def _stage(whole: Stage, places: tuple[Buffer, Buffer], *, last: bool) -> Stage:
    """Return input and output of one launch of several."""
    source, between = places
    arriving = whole.formats[0] if source == X else whole.compute
    if last:
        return replace(whole, source=source, formats=(arriving, whole.formats[1]))
    formats = arriving, whole.compute
    return replace(whole, source=source, formats=formats, result=between, fill=0.0)


def _filled(whole: Stage, passes: Sequence[Pass], shape: Sequence[int]) -> Launch:
    """Fill the outputs of the first pass that has empty bands."""
    one = next(one for one in passes if not one.map.counts.all())
    outer, inner = math.prod(shape[: one.axis]), math.prod(shape[one.axis + 1 :])
    return launches.fill_bands(whole, one.map, outer, inner)
