"""Division of one evaluation into steps with their input and result rows.

Stored axes are seen as [outer, stream axis, inner]; a row is everything inside one index of the
stream axis. The stream axis is the slowest stored axis that a pass works on, so a result row
depends on a band of input rows of its own outer slice. Steps walk the result in wire order, in one
of three modes:

- slices    several whole outer slices at once, if they are small
- window    some result rows of one outer slice, from the rows their bands cover
- running   some input rows of one outer slice, added onto results still open; chosen where bands
            are so wide that holding their rows would take more memory than holding the open results

A step's cost is in elements of the compute type. It stays near the slab size unless a single row
is larger.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from gradwire_server.engine.layout import Layout
from gradwire_server.plans import BandedMap, Pass, Plan

Mode = Literal["slices", "window", "running"]
Range = tuple[int, int]

# Tables of windows are copies: few are cached, and only short ones.
_MOST_KEPT = 64
_LONGEST_KEPT = 1 << 16


@dataclass(frozen=True, slots=True)
class Step:
    """One unit of work: ranges of slices and rows.

    They are half-open ranges of outer slices, input rows and result rows. With more than one outer
    slice, input and result rows are all of them.
    """

    outer_first: int
    outer_stop: int
    in_first: int
    in_stop: int
    out_first: int
    out_stop: int


@dataclass(frozen=True)
class Walk:
    """The geometry of one evaluation.

    plan     passes on stored axes
    axis     the stream axis
    slab     elements a step should cost
    map      map of the stream axis; None in a plan without passes, where row o needs row o
    outer    number of outer slices
    in_rows  input rows of one of them, out_rows its result rows
    in_row   elements of an input row, or of a larger form it has before the stream axis's pass
    out_row  elements of a result row, or of a larger form it has on the way
    """

    layout: Layout
    plan: Plan
    axis: int
    slab: int
    map: BandedMap | None
    outer: int
    in_rows: int
    out_rows: int
    in_row: int
    out_row: int

    @classmethod
    def along(cls, axis: int, layout: Layout, plan: Plan, slab: int) -> Walk:
        """Measure a walk along this axis."""
        before, after = plan.input_shape, plan.output_shape
        shape, sizes = list(before[axis + 1 :]), [math.prod(before[axis + 1 :])]
        bands, first = None, 0
        for number, one in enumerate(plan.passes):
            if one.axis == axis:
                bands, first = one.map, number
            else:
                shape[one.axis - axis - 1] = one.map.outputs
            sizes.append(math.prod(shape))
        return cls(
            layout,
            plan,
            axis,
            slab,
            map=bands,
            outer=math.prod(after[:axis]),
            in_rows=before[axis],
            out_rows=after[axis],
            in_row=max(sizes[: first + 1]),
            out_row=max(sizes[first:]),
        )

    @cached_property
    def step_plans(self) -> StepPlans | None:
        """The plans of steps; None in a plan without passes."""
        return None if self.map is None else StepPlans(self.plan, self.axis, self.map)

    @cached_property
    def mode(self) -> Mode:
        """The cheapest mode that fits."""
        if self.in_rows * self.in_row + self.out_rows * self.out_row <= self.slab:
            return "slices"
        if self.map is None or not self.map.is_increasing or self._window_cost <= self.slab:
            return "window"
        return "window" if self._window_cost <= self._running_cost else "running"

    @cached_property
    def _window_cost(self) -> int:
        if self.map is None:
            widest = 1
        elif self.map.is_increasing:
            widest = int(self.map.counts.max())
        else:
            widest = self.in_rows
        return widest * self.in_row + self.out_row

    @cached_property
    def _running_cost(self) -> int:
        if self.map is None:
            return self.in_row + self.out_row
        rows = np.arange(self.in_rows)
        opened = np.searchsorted(self.map.start, rows, "right")
        closed = np.searchsorted(self.map.stop, rows, "right")
        return self.in_row + int((opened - closed).max()) * self.out_row

    @property
    def largest_step(self) -> int:
        """Cost limit of a step, in elements."""
        if self.mode == "slices":
            return self.slab
        return max(self.slab, self._window_cost if self.mode == "window" else self._running_cost)

    def steps(self, first_row: int = 0, stop_row: int | None = None) -> Iterator[Step]:
        """Yield the steps for the result's rows from first_row on.

        Rows are counted over all outer slices.

        stop_row  end of the wanted rows; None for all. In the modes slices and running the last
                  step may produce later rows too
        """
        stop_row = self.outer * self.out_rows if stop_row is None else stop_row
        outer, row = divmod(first_row, self.out_rows)
        stop_outer = -(-stop_row // self.out_rows)
        if self.mode == "slices":
            yield from self._slices(outer, stop_outer)
            return
        for index in range(outer, stop_outer):
            stop = min(self.out_rows, stop_row - index * self.out_rows)
            if self.mode == "running" and self.map is not None:
                yield from self._runs(self.map, index, row, stop)
            else:
                yield from self._windows(index, row, stop)
            row = 0

    def last_step(self, stop_row: int) -> Step:
        """Return the last step for rows before stop_row.

        Its input rows end where those of all these steps end.
        """
        outer, row = divmod(stop_row - 1, self.out_rows)
        if self.mode == "slices":
            return Step(outer, outer + 1, 0, self.in_rows, 0, self.out_rows)
        if self.mode == "running" and self.map is not None:
            high = self._last_run_stop(self.map, row + 1)
            return Step(outer, outer + 1, high - 1, high, row, row + 1)
        low, high = self._rows_needed(row, row + 1)
        return Step(outer, outer + 1, low, high, row, row + 1)

    def _slices(self, outer: int, stop_outer: int) -> Iterator[Step]:
        cost = self.in_rows * self.in_row + self.out_rows * self.out_row
        several = max(1, self.slab // cost)
        for first in range(outer, stop_outer, several):
            stop = min(first + several, stop_outer)
            yield Step(first, stop, 0, self.in_rows, 0, self.out_rows)

    def _windows(self, outer: int, row: int, stop_row: int) -> Iterator[Step]:
        while row < stop_row:
            stop = self._window_stop(row, stop_row)
            low, high = self._rows_needed(row, stop)
            yield Step(outer, outer + 1, low, high, row, stop)
            row = stop

    def _rows_needed(self, row: int, stop: int) -> tuple[int, int]:
        if self.map is None:
            return row, stop
        if not self.map.is_increasing:
            return 0, self.in_rows
        return int(self.map.start[row]), int(self.map.stop[stop - 1])

    def _window_stop(self, row: int, stop_row: int) -> int:
        def cost(stop: int) -> int:
            low, high = self._rows_needed(row, stop)
            return (high - low) * self.in_row + (stop - row) * self.out_row

        candidates = range(row + 1, stop_row + 1)
        return max(row + 1, row + bisect_right(candidates, self.slab, key=cost))

    def _runs(self, bands: BandedMap, outer: int, row: int, stop_row: int) -> Iterator[Step]:
        low, most = int(bands.start[row]), self._last_run_stop(bands, stop_row)
        while row < stop_row:
            high = self._run_stop(bands, row, low, most)
            done = min(int(np.searchsorted(bands.stop, high, "right")), touched(bands, high))
            yield Step(outer, outer + 1, low, high, row, max(row, done))
            row, low = max(row, done), high

    def _last_run_stop(self, bands: BandedMap, stop_row: int) -> int:
        """Return the end of the input rows for some result rows.

        The result rows end before stop_row. It is past the start of the last band too. An empty
        band may start where the input ends.
        """
        if stop_row == self.out_rows:
            return self.in_rows
        past_start = min(self.in_rows, int(bands.start[stop_row - 1]) + 1)
        return max(int(bands.stop[stop_row - 1]), past_start)

    def _run_stop(self, bands: BandedMap, row: int, low: int, most: int) -> int:
        def cost(high: int) -> int:
            return (high - low) * self.in_row + (touched(bands, high) - row) * self.out_row

        candidates = range(low + 1, most + 1)
        return min(most, max(low + 1, low + bisect_right(candidates, self.slab, key=cost)))


class StepPlans:
    """Plans on [outer, rows, *inner], cut from another plan. Thread-safe.

    The other plan is on stored axes.

    axis    the stream axis
    stream  map of the stream axis, applied by one of the passes
    """

    def __init__(self, plan: Plan, axis: int, stream: BandedMap) -> None:
        self._plan = plan
        self._axis = axis
        self.stream = stream
        self._kept: dict[tuple[int, Range, Range], Plan] = {}

    @property
    def most_bytes(self) -> int:
        """Most bytes of the cached windows' tables: four integers per output."""
        return self.stream.outputs * 32 if self.stream.outputs <= _LONGEST_KEPT else 0

    def window(self, outer: int, inputs: Range, results: Range) -> Plan:
        """Return the plan between ranges of input and result rows.

        outer is the number of outer slices.
        """
        key = (outer, inputs, results)
        if key in self._kept:
            return self._kept[key]
        stream = self.stream
        whole = inputs == (0, stream.inputs) and results == (0, stream.outputs)
        bands = stream if whole else stream.window(*results, *inputs)
        shape = (outer, bands.inputs, *self._plan.input_shape[self._axis + 1 :])
        plan = plan_on(shape, self.passes(bands), fill=self._plan.fill)
        if whole or (len(self._kept) < _MOST_KEPT and stream.outputs <= _LONGEST_KEPT):
            return self._kept.setdefault(key, plan)
        return plan

    def passes(self, bands: BandedMap) -> tuple[Pass, ...]:
        """Return the plan's passes, with this map on the stream axis."""
        axis = self._axis
        return tuple(
            Pass(1, bands) if one.axis == axis else Pass(one.axis - axis + 1, one.map)
            for one in self._plan.passes
        )


def plan_on(shape: Sequence[int], passes: Sequence[Pass], *, fill: float = 0.0) -> Plan:
    """Return the plan of these passes on a tensor of this shape."""
    result = list(shape)
    for one in passes:
        result[one.axis] = one.map.outputs
    return Plan(tuple(shape), tuple(result), tuple(passes), fill)


def touched(bands: BandedMap, high: int) -> int:
    """Return the end of result rows that need some input.

    They read an input row below high.
    """
    if high >= bands.inputs:
        return bands.outputs
    return int(np.searchsorted(bands.start, high, "left"))


def walk_over(layout: Layout, plan: Plan, slab: int) -> Walk:
    """Choose the stream axis of a plan given on logical axes."""
    stored = plan.permuted(layout.order)
    if stored.passes:
        axis = min(one.axis for one in stored.passes)
    else:
        axis = _copy_axis(layout, stored.input_shape, slab)
    # Broadcast slices of the input are read again later, so they must be held.
    repeated = layout.wire[:axis] != stored.input_shape[:axis]
    if repeated and not layout.held:
        layout = replace(layout, held=True)
    return Walk.along(axis, layout, stored, slab)


def _copy_axis(layout: Layout, shape: tuple[int, ...], slab: int) -> int:
    """Return the stream axis of a plan without passes.

    It is the slowest whose rows are small against a slab.
    """
    for axis, (size, wire) in enumerate(zip(shape, layout.wire, strict=True)):
        if wire != size or math.prod(shape[axis + 1 :]) * 8 <= slab:
            return axis
    return len(shape) - 1
