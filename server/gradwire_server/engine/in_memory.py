"""An evaluation of an input that is in memory, into a result that is: in few, long steps.

In every step a thread that computes needs Python's lock a few times, which a busy event loop gives
away late. Small steps are for what arrives bit by bit, and for what is repeated along an axis where
that is written out for the backend. Where it is read as it is, a step takes as long as a turn, and
what it needs is worked out once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from gradwire_server.backends import Backend, Repeats
from gradwire_server.backends.float_environment import default_float_environment
from gradwire_server.engine.evaluation import Evaluation
from gradwire_server.engine.running import Bytes, StepRunner
from gradwire_server.engine.steps import Step, Walk
from gradwire_server.plans import Plan

# Elements of a step: some milliseconds' work for one thread where rows are repeated.
_LARGE_SLAB = 1 << 25
# Steps that are remembered.
_MOST_STEPS = 64


@dataclass(frozen=True, slots=True)
class _Ready:
    """A step, ready to run.

    input, output  place of its first byte of each side
    strides        of the rows that it reads, in bytes
    """

    plan: Plan
    input: int
    output: int
    strides: tuple[int, ...]


class InMemory:
    """Runs an evaluation again and again. Threads may share it."""

    def __init__(self, evaluation: Evaluation, backend: Backend) -> None:
        self._evaluation = evaluation
        self._backend = backend
        self._dtype: np.dtype[Any] = evaluation.input.dtype
        walk = _large(evaluation, backend) if evaluation.output.elements else None
        steps = [] if walk is None else list(islice(walk.steps(), _MOST_STEPS + 1))
        if walk is None or len(steps) > _MOST_STEPS:
            self._ready: list[_Ready] = []
        else:
            self._ready = [_ready(evaluation, walk, step, backend) for step in steps]

    def run(self, result: Bytes, data: Bytes) -> Iterator[object]:
        """Write the result's bytes in wire order from the input's; yield after each step."""
        if not self._ready:
            yield from self._evaluation.run_into(result, data, self._backend)
        for one in self._ready:
            plan = one.plan
            x = np.ndarray(plan.input_shape, self._dtype, data, one.input, one.strides)
            y = np.ndarray(plan.output_shape, self._dtype, result, one.output)
            with default_float_environment():
                self._backend.apply(plan, x, y)
            yield one


def _large(evaluation: Evaluation, backend: Backend) -> Walk | None:
    """Return a walk in large steps; None where one would take more memory than a small one."""
    small, dtype = evaluation.walk, evaluation.input.dtype
    if not isinstance(backend, Repeats) or small.layout.held:
        return None
    walk = replace(small, slab=max(small.slab, _LARGE_SLAB))
    if walk.step_plans is None or walk.mode == "running":
        return None
    first = _ready(evaluation, walk, next(walk.steps()), backend)
    x = np.broadcast_to(np.empty(1, dtype), first.plan.input_shape)
    x = np.lib.stride_tricks.as_strided(x, strides=first.strides)
    y = np.broadcast_to(np.empty(1, dtype), first.plan.output_shape)
    held = backend.held_bytes(first.plan, x, y)
    return walk if held <= small.slab * dtype.itemsize else None


def _ready(evaluation: Evaluation, walk: Walk, step: Step, backend: Backend) -> _Ready:
    if walk.step_plans is None:
        raise AssertionError("a plan without passes has no steps of its own")
    first, stop = evaluation.input_range(step)
    rows = StepRunner(walk, backend).rows(step, np.empty(stop - first, np.uint8))
    inputs, results = (step.in_first, step.in_stop), (step.out_first, step.out_stop)
    plan = walk.step_plans.window(len(rows), inputs, results)
    return _Ready(plan, first, evaluation.output_range(step)[0], rows.strides)
