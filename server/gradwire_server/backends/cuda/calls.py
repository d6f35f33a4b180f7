"""What one call asks for, by outer slices: parts of it, and programs for so many of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache, partial
from typing import Self

from gradwire_server.backends.cuda import dispatch
from gradwire_server.backends.cuda.device import Array
from gradwire_server.backends.cuda.kernels import Format
from gradwire_server.backends.cuda.programs import Program
from gradwire_server.plans import BandedMap, Pass, Plan


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """Numbers to read and to write, [outer, ...] both, and what is done to each outer slice.

    x, y     of equal outer lengths, 1 or more
    program  makes the program of so many slices
    plan     that is applied; None where programs come once and are not worth keeping
    key      equal for calls with equal programs, as long as the plan lives; None without one
    carried  whether y is read too
    """

    x: Array
    y: Array
    program: Callable[[int], Program]
    plan: Plan | None = None
    key: Hashable | None = None
    carried: bool = False

    @classmethod
    def of_plan(cls, plan: Plan, x: Array, y: Array, *, multiprocessors: int) -> Self:
        """Return the call that applies a plan: what comes before its first axis is outer."""
        first = min((one.axis for one in plan.passes), default=len(plan.input_shape))
        outer = math.prod(plan.input_shape[:first])
        return cls(
            x.reshape(outer, *plan.input_shape[first:]),
            y.reshape(outer, *plan.output_shape[first:]),
            partial(_program, plan, first, (x.dtype, y.dtype), multiprocessors),
            plan,
            (id(plan), x.dtype.num, y.dtype.num),
        )

    @classmethod
    def of_bands(
        cls, bands: BandedMap, x: Array, y: Array, *, axis: int, carried: int, multiprocessors: int
    ) -> Self:
        """Return the call that adds the taps of a map along an axis."""
        if axis == 0:
            x, y, axis = x[None], y[None], 1
        inner, dtype = x.shape[1:], x.dtype

        @cache
        def program(slices: int) -> Program:
            return dispatch.accumulation(
                bands,
                (slices, *inner),
                dtype,
                axis=axis,
                carried=carried,
                multiprocessors=multiprocessors,
            )

        return cls(x, y, program, carried=carried > 0)

    @property
    def outer(self) -> int:
        """How many slices there are."""
        return len(self.x)

    @property
    def slice_bytes(self) -> tuple[int, int]:
        """Bytes of x and of y for one slice."""
        return self.x.nbytes // self.outer, self.y.nbytes // self.outer

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return self.x.nbytes + self.y.nbytes


def _program(plan: Plan, first: int, formats: Format, multiprocessors: int, slices: int) -> Program:
    passes = tuple(Pass(one.axis - first, one.map) for one in plan.passes)
    inner = Plan(plan.input_shape[first:], plan.output_shape[first:], passes, plan.fill)
    return dispatch.program(inner, *formats, copies=slices, multiprocessors=multiprocessors)
