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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np

from gradwire_server.engine.layout import Layout
from gradwire_server.plans import BandedMap, Pass, Plan

Mode = Literal["slices", "window", "running"]

# Tables of windows are copies: few are kept, and only of short axes.
_MOST_KEPT = 64
LONGEST_KEPT = 1 << 16


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
    """The geometry of one evaluation. Thread-safe.

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
    _kept: dict[tuple[int, ...], Plan] = field(
        default_factory=dict[tuple[int, ...], Plan], init=False
    )

    @property
    def slice_cost(self) -> int:
        """Cost of an outer slice, in elements."""
        return self.in_rows * self.in_row + self.out_rows * self.out_row

    @cached_property
    def mode(self) -> Mode:
        """The cheapest mode that fits."""
        if self.slice_cost <= self.slab:
            return "slices"
        return "running" if self.largest_step < self._window_cost else "window"

    @cached_property
    def _window_cost(self) -> int:
        """Cost of the largest window of one result row."""
        if self.map is None:
            widest = 1
        elif self.map.is_increasing:
            widest = int(self.map.counts.max())
        else:
            widest = self.in_rows
        return widest * self.in_row + self.out_row

    @cached_property
    def largest_step(self) -> int:
        """Cost limit of a step, in elements."""
        if self._window_cost <= self.slab:
            return self.slab
        if self.map is None or not self.map.is_increasing:
            return self._window_cost
        rows = np.arange(self.in_rows)
        opened = np.searchsorted(self.map.start, rows, "right")
        closed = np.searchsorted(self.map.stop, rows, "right")
        running = self.in_row + int((opened - closed).max()) * self.out_row
        return max(self.slab, min(self._window_cost, running))

    def steps(self, first_row: int, stop_row: int) -> Iterator[Step]:
        """Yield the steps for a range of the result's rows.

        Rows are counted over all outer slices. In the modes slices and running the last step may
        produce later rows too.
        """
        outer, row = divmod(first_row, self.out_rows)
        stop_outer = -(-stop_row // self.out_rows)
        several = max(1, self.slab // self.slice_cost) if self.mode == "slices" else 1
        for index in range(outer, stop_outer, several):
            stop = min(self.out_rows, stop_row - index * self.out_rows)
            if self.mode == "slices":
                after = min(index + several, stop_outer)
                yield Step(index, after, 0, self.in_rows, 0, self.out_rows)
            elif self.mode == "running" and self.map is not None:
                yield from self._runs(self.map, index, row, stop)
            else:
                yield from self._windows(index, row, stop)
            row = 0

    def last_step(self, stop_row: int) -> Step:
        """Return the last step for rows before stop_row.

        Its input rows end where those of all these steps end.
        """
        outer, row = divmod(stop_row - 1, self.out_rows)
        low, high = self._rows_needed(row, row + 1)
        if self.mode == "running" and self.map is not None:
            high = self._last_run_stop(self.map, row + 1)
        return Step(outer, outer + 1, low, high, row, row + 1)

    def plan_of(self, step: Step) -> Plan:
        """Return the plan of a step's rows, on [outer, rows, *inner]."""
        outer = step.outer_stop - step.outer_first
        rows = (step.out_first, step.out_stop, step.in_first, step.in_stop)
        key = (outer, *rows)
        if key in self._kept:
            return self._kept[key]
        bands = self.map
        if bands is not None and rows != (0, bands.outputs, 0, bands.inputs):
            bands = bands.window(*rows)
        shape = (outer, step.in_stop - step.in_first, *self.plan.input_shape[self.axis + 1 :])
        plan = Plan(shape, self.passes(bands), self.plan.fill)
        is_kept = len(self._kept) < _MOST_KEPT
        if is_kept and (bands is self.map or self.out_rows <= LONGEST_KEPT):
            return self._kept.setdefault(key, plan)
        return plan

    def passes(self, bands: BandedMap | None) -> tuple[Pass, ...]:
        """Return the passes with this map on the stream axis.

        They are on [outer, rows, *inner].
        """
        return tuple(
            Pass(one.axis - self.axis + 1, bands if bands and one.axis == self.axis else one.map)
            for one in self.plan.passes
        )

    def _rows_needed(self, row: int, stop: int) -> tuple[int, int]:
        if self.mode == "slices":
            return 0, self.in_rows
        if self.map is None:
            return row, stop
        if not self.map.is_increasing:
            return 0, self.in_rows
        return int(self.map.start[row]), int(self.map.stop[stop - 1])

    def _windows(self, outer: int, row: int, stop_row: int) -> Iterator[Step]:
        def cost(stop: int) -> int:
            low, high = self._rows_needed(row, stop)
            return (high - low) * self.in_row + (stop - row) * self.out_row

        while row < stop_row:
            stop = self._furthest(row, stop_row, cost)
            yield Step(outer, outer + 1, *self._rows_needed(row, stop), row, stop)
            row = stop

    def _runs(self, bands: BandedMap, outer: int, row: int, stop_row: int) -> Iterator[Step]:
        def cost(high: int) -> int:
            return (high - low) * self.in_row + (touched(bands, high) - row) * self.out_row

        low, most = int(bands.start[row]), self._last_run_stop(bands, stop_row)
        while row < stop_row:
            high = self._furthest(low, most, cost)
            done = min(int(np.searchsorted(bands.stop, high, "right")), touched(bands, high))
            yield Step(outer, outer + 1, low, high, row, max(row, done))
            row, low = max(row, done), high

    def _furthest(self, first: int, last: int, cost: Callable[[int], int]) -> int:
        """Return the end of the longest step from first on.

        It costs at most a slab, or has one row.
        """
        stop = bisect_right(range(first + 1, last + 1), self.slab, key=cost)
        return min(last, first + max(1, stop))

    def _last_run_stop(self, bands: BandedMap, stop_row: int) -> int:
        """Return the end of the input rows for some result rows.

        The result rows end before stop_row. It is past the start of the last band too. An empty
        band may start where the input ends.
        """
        if stop_row == self.out_rows:
            return self.in_rows
        past_start = min(self.in_rows, int(bands.start[stop_row - 1]) + 1)
        return max(int(bands.stop[stop_row - 1]), past_start)


def touched(bands: BandedMap, high: int) -> int:
    """Return the end of result rows that need some input.

    They read an input row below high.
    """
    if high >= bands.inputs:
        return bands.outputs
    return int(np.searchsorted(bands.start, high, "left"))


def walk_over(layout: Layout, plan: Plan, slab: int) -> Walk:
    """Choose a plan's stream axis, and measure the walk along it.

    The plan is given on logical axes.
    """
    plan = plan.permuted(layout.order)
    before, after = plan.input_shape, plan.output_shape
    axis = min((one.axis for one in plan.passes), default=_copy_axis(layout, before, slab))
    # Broadcast slices of the input are read again later, so they must be held.
    if layout.wire[:axis] != before[:axis]:
        layout = replace(layout, held=True)
    shape, sizes = list(before[axis + 1 :]), [math.prod(before[axis + 1 :])]
    bands, first = None, 0
    for number, one in enumerate(plan.passes):
        if one.axis == axis:
            bands, first = one.map, number
        else:
            shape[one.axis - axis - 1] = one.map.outputs
        sizes.append(math.prod(shape))
    return Walk(
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


def _copy_axis(layout: Layout, shape: tuple[int, ...], slab: int) -> int:
    """Return the stream axis of a plan without passes.

    It is the slowest whose rows are small against a slab.
    """
    for axis, (size, wire) in enumerate(zip(shape, layout.wire, strict=True)):
        if wire != size or math.prod(shape[axis + 1 :]) * 8 <= slab:
            return axis
    return len(shape) - 1
