"""Runs the steps of one evaluation, in order, on a backend."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradwire_server.backends import Backend, compute_dtype
from gradwire_server.backends.float_environment import default_float_environment
from gradwire_server.engine.step_plans import StepPlans, plan_on
from gradwire_server.engine.steps import Step, Walk, touched
from gradwire_server.plans import Pass, fill_empty

Array = NDArray[np.generic]
Bytes = NDArray[np.uint8]


class StepRunner:
    """Computes the steps of a walk over tensors of one storage type.

    Arrays are [outer, rows, *inner]. In the running mode the results still open stay here between
    steps; in the others threads may share it.
    """

    def __init__(self, walk: Walk, backend: Backend) -> None:
        self._walk = walk
        self._dtype = walk.layout.input.dtype
        self._backend = backend
        self._open: Array | None = None

    def __call__(self, step: Step, data: Bytes, out: Bytes) -> None:
        """Write the bytes of the step's result rows to out, all of them, and nothing else.

        data  the wire bytes of its input rows
        out   contiguous, no part of data
        """
        walk, plans = self._walk, self._walk.step_plans
        rows = self.rows(step, data)
        inner = walk.plan.output_shape[walk.axis + 1 :]
        shape = (step.outer_stop - step.outer_first, step.out_stop - step.out_first, *inner)
        result = out.view(self._dtype).reshape(shape)
        with default_float_environment():
            if plans is None:
                result[...] = rows
            elif walk.mode == "running":
                self._run(plans, step, rows, result)
            else:
                inputs, results = (step.in_first, step.in_stop), (step.out_first, step.out_stop)
                self._backend.apply(plans.window(len(rows), inputs, results), rows, result)

    def rows(self, step: Step, data: Bytes) -> Array:
        """View the wire bytes of a step's input rows as such, broadcast axes expanded."""
        layout, axis, shape = self._walk.layout, self._walk.axis, self._walk.plan.input_shape
        outer = step.outer_stop - step.outer_first
        if not layout.held:
            wire = data.view(self._dtype).reshape(outer, -1, *layout.wire[axis + 1 :])
            rows = (outer, step.in_stop - step.in_first, *shape[axis + 1 :])
            return wire if wire.shape == rows else np.broadcast_to(wire, rows)
        whole = layout.whole_input(data)
        if axis == 0:
            slices = whole[np.newaxis]
        elif outer == 1:
            slices = whole[np.unravel_index(step.outer_first, shape[:axis])][np.newaxis]
        else:
            slices = whole[np.unravel_index(range(step.outer_first, step.outer_stop), shape[:axis])]
        return slices[:, step.in_first : step.in_stop]

    def _run(self, plans: StepPlans, step: Step, rows: Array, result: Array) -> None:
        """Add the rows to the results they reach and write those that are complete."""
        bands = plans.stream
        reach = touched(bands, step.in_stop)
        window = bands.window(step.out_first, reach, step.in_first, step.in_stop)
        passes = plans.passes(window)
        stream = next(index for index, one in enumerate(passes) if one.axis == 1)
        arrived = self._arrived(passes[:stream], rows)
        sums = np.empty((1, reach - step.out_first, *arrived.shape[2:]), arrived.dtype)
        carried = 0 if self._open is None else self._open.shape[1]
        if self._open is not None:
            sums[:, :carried] = self._open
        self._backend.accumulate(window, arrived, sums, axis=1, carried=carried)
        done = step.out_stop - step.out_first
        self._open = sums[:, done:].copy() if step.out_stop < bands.outputs else None
        if not done:
            return
        complete = sums[:, :done]
        self._backend.apply(plan_on(complete.shape, passes[stream + 1 :]), complete, result)
        # In parts no pass knows of another's empty bands: fill only now, over what they made of it.
        finished = window.window(0, done, 0, window.inputs)
        fill_empty(plans.passes(finished), result, fill=self._walk.plan.fill)

    def _arrived(self, passes: tuple[Pass, ...], rows: Array) -> Array:
        """Apply the passes before the stream axis's; sums stay in the compute type."""
        compute = compute_dtype(self._dtype)
        if not passes and rows.dtype == compute:
            return rows
        plan = plan_on(rows.shape, passes)
        arrived = np.empty(plan.output_shape, compute)
        self._backend.apply(plan, rows, arrived)
        return arrived
