"""An evaluation of an input that is in memory, into a result that is: in few, long steps.

In every step a thread that computes needs Python's lock a few times, which a busy event loop gives
away late. Small steps are for what arrives bit by bit, and for what is repeated along an axis where
that is written out for the backend. Where it is read as it is, a step takes as long as a turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from gradwire_server.backends import Backend, Repeats
from gradwire_server.engine.evaluation import Evaluation
from gradwire_server.engine.running import Bytes, StepRunner
from gradwire_server.engine.steps import Step, Walk

# Elements of a step: some milliseconds' work for one thread where rows are repeated.
_LARGE_SLAB = 1 << 25
# Steps that are remembered.
_MOST_STEPS = 64


class InMemory:
    """Runs an evaluation again and again. Threads may share it."""

    def __init__(self, evaluation: Evaluation, backend: Backend) -> None:
        self._evaluation = evaluation
        self._backend = backend
        self._walk = _large(evaluation, backend) or evaluation.walk
        steps = list(islice(self._walk.steps(), _MOST_STEPS + 1))
        self._steps = steps if len(steps) <= _MOST_STEPS else None

    def run(self, result: Bytes, data: Bytes) -> Iterator[Step]:
        """Write the result's bytes in wire order from the input's; yield each step that is done."""
        of = self._evaluation
        run = StepRunner(self._walk, self._backend)
        for step in self._steps or self._walk.steps():
            run(step, data[slice(*of.input_range(step))], result[slice(*of.output_range(step))])
            yield step


def _large(evaluation: Evaluation, backend: Backend) -> Walk | None:
    """Return a walk in large steps; None where one would take more memory than a small one."""
    small, dtype = evaluation.walk, evaluation.input.dtype
    if not isinstance(backend, Repeats) or small.layout.held:
        return None
    walk = replace(small, slab=max(small.slab, _LARGE_SLAB))
    if walk.step_plans is None or walk.mode == "running":
        return None
    step = next(walk.steps())
    first, stop = evaluation.input_range(step)
    x = StepRunner(walk, backend).rows(step, np.empty(stop - first, np.uint8))
    results = step.out_first, step.out_stop
    plan = walk.step_plans.window(len(x), (step.in_first, step.in_stop), results)
    y = np.broadcast_to(np.empty(1, dtype), plan.output_shape)
    return walk if backend.held_bytes(plan, x, y) <= small.slab * dtype.itemsize else None
