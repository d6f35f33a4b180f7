"""Runs the steps of one evaluation, in order, on a backend."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradwire_server.backends import Backend, compute_dtype
from gradwire_server.backends.float_environment import default_float_environment
from gradwire_server.engine.steps import Step, Walk, touched
from gradwire_server.plans import BandedMap, Pass, Plan, fill_empty

Array = NDArray[np.generic]


class StepRunner:
    """Computes the steps of a walk over tensors of one storage type.

    Arrays are [outer, rows, *inner]. In the running mode the results still open stay here between
    steps.
    """

    def __init__(self, walk: Walk, backend: Backend) -> None:
        self._walk = walk
        self._dtype = walk.layout.input.dtype
        self._backend = backend
        self._open: Array | None = None

    def __call__(self, step: Step, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the bytes of the step's result rows from the wire bytes of its input rows."""
        with default_float_environment():
            rows = self._rows(step, data)
            bands = self._walk.map
            if bands is None:
                result = rows
            elif self._walk.mode == "running":
                result = self._run(bands, step, rows)
            else:
                window = _window(
                    bands, (step.out_first, step.out_stop), (step.in_first, step.in_stop)
                )
                passes, fill = self._passes(window), self._walk.plan.fill
                result = self._apply(passes, rows, self._dtype, fill=fill)
        return np.ascontiguousarray(result).reshape(-1).view(np.uint8)

    def _rows(self, step: Step, data: NDArray[np.uint8]) -> Array:
        layout, axis, shape = self._walk.layout, self._walk.axis, self._walk.plan.input_shape
        outer = step.outer_stop - step.outer_first
        if not layout.held:
            wire = data.view(self._dtype).reshape(outer, -1, *layout.wire[axis + 1 :])
            return np.broadcast_to(wire, (outer, step.in_stop - step.in_first, *shape[axis + 1 :]))
        whole = layout.whole_input(data)
        if axis == 0:
            slices = whole[np.newaxis]
        elif outer == 1:
            slices = whole[np.unravel_index(step.outer_first, shape[:axis])][np.newaxis]
        else:
            slices = whole[np.unravel_index(range(step.outer_first, step.outer_stop), shape[:axis])]
        return slices[:, step.in_first : step.in_stop]

    def _passes(self, stream: BandedMap) -> tuple[Pass, ...]:
        """Return the plan's passes on [outer, rows, *inner], with this map on the stream axis."""
        axis = self._walk.axis
        return tuple(
            Pass(1, stream) if one.axis == axis else Pass(one.axis - axis + 1, one.map)
            for one in self._walk.plan.passes
        )

    def _apply(
        self,
        passes: Sequence[Pass],
        rows: Array,
        dtype: np.dtype[np.generic],
        *,
        fill: float = 0.0,
    ) -> Array:
        shape = list(rows.shape)
        for one in passes:
            shape[one.axis] = one.map.outputs
        plan = Plan(rows.shape, tuple(shape), tuple(passes), fill)
        return self._backend.apply(plan, rows, dtype)

    def _run(self, bands: BandedMap, step: Step, rows: Array) -> Array:
        """Add the rows to the results they reach and return those that are complete."""
        reach = touched(bands, step.in_stop)
        window = bands.window(step.out_first, reach, step.in_first, step.in_stop)
        passes = self._passes(window)
        stream = next(index for index, one in enumerate(passes) if one.axis == 1)
        compute = compute_dtype(self._dtype)
        arrived = self._apply(passes[:stream], rows, compute)
        sums = np.empty((1, reach - step.out_first, *arrived.shape[2:]), compute)
        carried = 0 if self._open is None else self._open.shape[1]
        if self._open is not None:
            sums[:, :carried] = self._open
        self._backend.accumulate(window, arrived, sums, axis=1, carried=carried)
        done = step.out_stop - step.out_first
        self._open = sums[:, done:].copy() if step.out_stop < bands.outputs else None
        result = self._apply(passes[stream + 1 :], sums[:, :done], self._dtype)
        # In parts no pass knows of another's empty bands: fill only now, over what they made of it.
        finished = window.window(0, done, 0, window.inputs)
        fill_empty(self._passes(finished), result, fill=self._walk.plan.fill)
        return result


def _window(bands: BandedMap, results: tuple[int, int], inputs: tuple[int, int]) -> BandedMap:
    if results == (0, bands.outputs) and inputs == (0, bands.inputs):
        return bands
    return bands.window(*results, *inputs)
