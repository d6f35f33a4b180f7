"""Steps that do the same share one plan."""

from __future__ import annotations

import numpy as np
import pytest

from gradwire_server.engine import Prepared
from gradwire_server.plans import BandedMap, Plan
from support.evaluation_cases import Case


def _halving(size: int) -> BandedMap:
    index = np.arange(size).reshape(-1, 2)
    return BandedMap.from_taps(index, np.full(index.shape, 0.5), inputs=size)


def _evaluation(outer: int, rows: int, *, slab: int) -> Prepared:
    plan = Plan.build([None, _halving(rows), None], (outer, rows, 4))
    return Case.packed(plan, slab).evaluation()


@pytest.mark.parametrize(("slab", "most"), [(400, 2), (70, 3)])
def test_outer_slices_share_plans(slab: int, most: int) -> None:
    evaluation = _evaluation(11, 16, slab=slab)
    plans = evaluation.walk.step_plans
    assert plans is not None
    steps = list(evaluation.steps())
    used = [
        plans.window(
            step.outer_stop - step.outer_first,
            (step.in_first, step.in_stop),
            (step.out_first, step.out_stop),
        )
        for step in steps
    ]
    distinct = {id(plan) for plan in used}
    assert len(distinct) <= most < len(steps)
