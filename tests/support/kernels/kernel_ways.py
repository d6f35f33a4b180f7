"""How compiled kernels go about a plan, as their records say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module

import numpy as np

from gradwire_server.backends import compute_dtype
from support.kernels.kernel_cases import Case, Formats
from support.kernels.kernel_table import cases

_PACKAGE = "gradwire_server.backends.numba_cpu"
_COMPUTED: list[np.dtype[np.generic]] = [np.dtype(np.float32), np.dtype(np.float64)]


@dataclass(frozen=True, slots=True)
class Way:
    """How one job of a plan is done.

    method   of the width stage
    staged   whether the depth stage runs
    compute  type that is computed in
    plain    whether all weights along the rows are 1
    tiled    whether rows are cut into several tiles
    axes     that move
    chunked  whether a band of the last axis is longer than what is held of a row
    jobs     of the plan
    """

    method: int
    staged: bool
    compute: str
    plain: bool
    tiled: bool
    axes: int
    chunked: bool
    jobs: int


def listed_ways() -> set[Way]:
    return {way for case in cases() for one in _COMPUTED for way in _ways(case, (one, one))}


def methods() -> set[int]:
    """Return all methods of the width stage that this processor has."""
    return _named("NO_WIDTH", "CHANNELS", "COLUMNS", "HALVE", "DOUBLE", picking="PERMUTE")


def window_methods() -> set[int]:
    """Return all methods that take every axis at once, where weights are 1."""
    return _named("WINDOW_CHANNELS", "WINDOW_HALVE", picking="WINDOW_PERMUTE")


def _named(*names: str, picking: str) -> set[int]:
    records = import_module(f"{_PACKAGE}.records")
    can_pick = import_module(f"{_PACKAGE}.instructions").CAN_PICK
    return {getattr(records, name) for name in (*names, *[picking] * can_pick)}


def _ways(case: Case, formats: Formats) -> Iterator[Way]:
    kernels = import_module(f"{_PACKAGE}.compilation").load("")
    table = import_module(f"{_PACKAGE}.tables").Table
    compute = compute_dtype(formats[0])
    plan = case.plan
    jobs = kernels.jobs.jobs_of(
        plan.input_shape,
        plan.passes,
        formats,
        partial(table.of, compute=compute),
        streamed_bytes=1 << 60,
    )
    longest = int(plan.passes[-1].map.counts.max())
    for job in jobs:
        record = job.record[0]
        yield Way(
            method=int(record["method"]),
            staged=bool(record["staged"]),
            compute=str(compute),
            plain=bool((plan.passes[-1].map.weight == 1).all()),
            tiled=bool(record["tiles"] > 1),
            axes=sum(int(record[axis]["moves"]) for axis in ("depth", "height", "width")),
            chunked=bool(record["chunk"] < longest),
            jobs=len(jobs),
        )
