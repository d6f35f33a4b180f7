"""Whether contestants on a device computed the same: ours NumPy's bits, PyTorch within rounding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.cases import Array, logical
from bench.gpu_cases import Job, additions, ends
from bench.gpu_contestants import Contestant
from gradwire_server.backends import NumpyCpu

# Of the largest value: PyTorch's coordinates are rounded elsewhere.
_COORDINATES = 5e-4


class WrongResultError(Exception):
    """Ours has other bits than NumPy."""


def check(job: Job, x: Array, contestants: Sequence[Contestant]) -> dict[str, str]:
    """Compare the first image and the last; return who computed something else, and what.

    x  output gradient, in the job's layout

    Raises WrongResultError where ours is not NumPy's to the bit.
    """
    found: dict[str, str] = {}
    for part, plan in ends(job):
        expected = np.empty(plan.output_shape, x.dtype)
        NumpyCpu().apply(plan, x if job.case.kind == "dml" else x[part], expected)
        wanted = logical(expected, job.layout)
        for one in contestants:
            if one.result is None or one.name in found:
                continue
            got = one.result(part)
            if one.name != "ours":
                if apart := _apart(got, wanted, terms=additions(plan)):
                    found[one.name] = apart
            elif got.tobytes() != wanted.tobytes():
                raise WrongResultError(f"{job}: ours and numpy_cpu differ in images {part}")
    return found


def _apart(got: Array, wanted: Array, *, terms: int) -> str:
    """Say how far off a result is if that is more than rounding: each sum may be rounded."""
    wide = wanted.astype(np.float32)
    largest = float(np.abs(wide).max())
    allowed = (_COORDINATES + terms * float(np.finfo(wanted.dtype).eps) / 2) * largest
    apart = float(np.abs(got.astype(np.float32) - wide).max())
    if apart <= allowed:
        return ""
    return f"its result is {apart:.3g} away from ours; {allowed:.3g} is rounding"
