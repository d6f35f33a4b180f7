"""Equal evaluations computed together: their tensors one after the other are one larger tensor.

A call of a backend costs more than the few numbers of a small tensor. It sees tensors as [outer,
rows, *inner] and each outer slice by itself, so that the slices of several evaluations go in one
call, and the bits are those of separate ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Self

import numpy as np
from numpy.typing import NDArray

from gradwire_server.backends import Backend
from gradwire_server.backends.float_environment import default_float_environment
from gradwire_server.engine.evaluation import Evaluation
from gradwire_server.engine.step_plans import StepPlans

Bytes = NDArray[np.uint8]
Buffer = bytes | memoryview

# Backends get ready for every plan anew, and keep what they made for few: a batch is filled up to
# one of these sizes with copies of its last tensor.
_SIZES = (1, 4, 16, 64)


@dataclass(frozen=True, slots=True)
class Batch:
    """Evaluations equal to one another, each of which is a single step. Threads may share it.

    most  how many one call of a backend takes
    """

    most: int
    _evaluation: Evaluation
    _plans: StepPlans

    @classmethod
    def of(cls, evaluation: Evaluation) -> Self | None:
        """Prepare batches of an evaluation; None where one step does not do."""
        walk = evaluation.walk
        plans = walk.step_plans
        if plans is None or walk.layout.held or walk.mode == "running":
            return None
        if not evaluation.output.elements:
            return None
        if len(list(islice(evaluation.steps(), 2))) > 1:
            return None
        cost = walk.outer * (walk.in_rows * walk.in_row + walk.out_rows * walk.out_row)
        fitting = [size for size in _SIZES if size * cost <= walk.slab]
        return cls(max(fitting, default=1), evaluation, plans)

    def run(self, inputs: Sequence[Buffer], backend: Backend) -> Bytes:
        """Return the bytes of each result, [evaluation, byte], both sides in wire order.

        inputs  the bytes of each input: at least one, at most `most`
        """
        walk, dtype = self._evaluation.walk, self._evaluation.input.dtype
        size = next(size for size in _SIZES if size >= len(inputs))
        every = ((0, walk.in_rows), (0, walk.out_rows))
        plan = self._plans.window(size * walk.outer, *every)
        data = np.frombuffer(b"".join([*inputs, *[inputs[-1]] * (size - len(inputs))]), dtype)
        x = data.reshape(size * walk.outer, -1, *walk.layout.wire[walk.axis + 1 :])
        y = np.empty(plan.output_shape, dtype)
        with default_float_environment():
            backend.apply(plan, np.broadcast_to(x, plan.input_shape), y)
        return y.reshape(size, -1).view(np.uint8)[: len(inputs)]
