"""An evaluation in one go, on the tensors themselves instead of their bytes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gradwire_server.backends import Backend, compute_dtype
from gradwire_server.backends.float_environment import default_float_environment
from gradwire_server.engine.evaluation import Evaluation
from gradwire_server.plans import Plan

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class WholeRun:
    """What is left to do once shapes, strides and types are known. Threads may share it.

    plan      on [outer, rows, *inner] of all rows
    order     logical axis of each stored axis; None where they are the same
    one_step  whether the evaluation is no more than one step
    """

    plan: Plan
    order: tuple[int, ...] | None
    one_step: bool

    @classmethod
    def of(
        cls, evaluation: Evaluation, source: Array, result: Array, *, spare_bytes: int = 0
    ) -> Self | None:
        """Prepare runs for arrays of such types, shapes and strides.

        None where one step does not do, or an array would have to be copied for it. Results of two
        passes that fit in the spare bytes make one step of several.
        """
        if not evaluation.output.elements:
            return None
        walk, dtype = evaluation.walk, evaluation.input.dtype
        plans, order = walk.step_plans, walk.layout.order
        between = 2 * evaluation.plan.largest_intermediate * compute_dtype(dtype).itemsize
        one_step = len(list(islice(evaluation.steps(), 2))) == 1
        if plans is None or not (between <= spare_bytes or (one_step and walk.mode != "running")):
            return None
        plan = plans.window(walk.outer, (0, walk.in_rows), (0, walk.out_rows))
        given = source.transpose(order).reshape(plan.input_shape)
        viewed = np.may_share_memory(given, source) and source.dtype == dtype
        in_place = result.transpose(order).flags.c_contiguous and result.dtype == dtype
        if not viewed or not in_place:
            return None
        return cls(plan, None if order == tuple(range(len(order))) else order, one_step)

    def __call__(self, source: Array, result: Array, backend: Backend) -> None:
        """Write the result for source to all of result."""
        if self.order is not None:
            source, result = source.transpose(self.order), result.transpose(self.order)
        x, y = source.reshape(self.plan.input_shape), result.reshape(self.plan.output_shape)
        with default_float_environment():
            backend.apply(self.plan, x, y)
