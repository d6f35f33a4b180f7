"""A plan that compiled kernels are tested with, and the numbers to put in."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from gradwire_server.backends import Backend, NumpyCpu
from gradwire_server.plans import BandedMap, Plan
from support.kernels.backend_calls import applied
from support.oracles import oracles

Shape = tuple[int, ...]
Formats = tuple[np.dtype[np.generic], np.dtype[np.generic]]

_FLOAT32, _FLOAT16, _BFLOAT16, _FLOAT64 = oracles.STORAGE_TYPES

# What comes in and what goes out: the storage type itself, and by turns what it is computed in.
FORMATS: list[Formats] = [
    (_FLOAT32, _FLOAT32),
    (_FLOAT16, _FLOAT32),
    (_FLOAT16, _FLOAT16),
    (_FLOAT32, _FLOAT16),
    (_BFLOAT16, _BFLOAT16),
    (_BFLOAT16, _FLOAT32),
    (_FLOAT64, _FLOAT64),
    (_FLOAT32, _BFLOAT16),
]

# Some of them once in a while among ordinary numbers.
SPECIALS = np.array([*oracles.VALUES, 6.5e4, -3e-8, 1e-45, 3e38])


class Case(NamedTuple):
    """A plan and what it is there for."""

    name: str
    plan: Plan

    @classmethod
    def of(
        cls, name: str, shape: Shape, moving: Mapping[int, BandedMap], *, fill: float = 0.0
    ) -> Self:
        """Move some axes of tensors of a shape."""
        plan = Plan.build([moving.get(axis) for axis in range(len(shape))], shape, fill=fill)
        assert len(plan.passes) == len(moving)
        return cls(name, plan)


def check(backend: Backend, plan: Plan, x: oracles.Tensor, dtype: npt.DTypeLike) -> None:
    expected = np.empty(plan.output_shape, dtype)
    NumpyCpu().apply(plan, x, expected)
    oracles.same_bits(applied(backend, plan, x, dtype), expected)


def numbers(case: Case, dtype: npt.DTypeLike, *, special: bool) -> oracles.Tensor:
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))
    x = rng.standard_normal(case.plan.input_shape)
    if special:
        there = rng.random(x.shape) < 0.02
        x[there] = rng.choice(SPECIALS, int(there.sum()))
    with np.errstate(all="ignore"):
        return x.astype(dtype)


def some_formats(case: Case) -> list[Formats]:
    """Return three of the formats, others for other cases."""
    first = zlib.crc32(case.name.encode()) % len(FORMATS)
    return [FORMATS[first - step] for step in (0, 3, 6)]


def named(shapes: Mapping[str, tuple[Shape, Mapping[int, BandedMap]]]) -> list[Case]:
    """Return cases by name: a shape, and the axes that are moved."""
    return [Case.of(name, shape, moving) for name, (shape, moving) in shapes.items()]
