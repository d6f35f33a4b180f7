"""The plans of single steps. Equal steps share one, so that a backend may know it again."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire_server.plans import BandedMap, Pass, Plan

# Tables of windows are copies: few are kept, and only where they are short.
_MOST_KEPT = 64
_LONGEST_KEPT = 1 << 16

Range = tuple[int, int]


class StepPlans:
    """Plans on [outer, rows, *inner], cut from a plan on stored axes. Threads may share it.

    axis    the stream axis, whose rows these are
    stream  its map, which one of the passes applies
    """

    def __init__(self, plan: Plan, axis: int, stream: BandedMap) -> None:
        self._plan = plan
        self._axis = axis
        self.stream = stream
        self._kept: dict[tuple[int, Range, Range], Plan] = {}

    @property
    def most_bytes(self) -> int:
        """Bytes that the tables of kept windows may take: four integers for every output."""
        return self.stream.outputs * 32 if self.stream.outputs <= _LONGEST_KEPT else 0

    def window(self, outer: int, inputs: Range, results: Range) -> Plan:
        """Return the plan from some input rows of so many outer slices to some result rows."""
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
