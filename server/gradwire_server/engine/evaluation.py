"""One evaluation: from a request to its geometry and costs, and step by step to its result."""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gradwire_server import dialects
from gradwire_server.backends import Backend, compute_dtype
from gradwire_server.backends.float_environment import default_float_environment
from gradwire_server.engine.layout import FILLED, TensorSpec, lay_out
from gradwire_server.engine.limits import Limits, exceeded
from gradwire_server.engine.plan_cache import PlanCache
from gradwire_server.engine.running import StepRunner
from gradwire_server.engine.steps import Step, Walk, walk_over
from gradwire_server.errors import InvalidFieldError, LayoutNotStreamableError
from gradwire_server.plans import Plan
from gradwire_server.plans.interruption import Check, asking
from gradwire_server.recent import Recent

# Changes whenever any request may give other bits than before.
NUMERICS_VERSION = "1"

# Work of tables, in plain taps, up to which they are built in about a millisecond.
_QUICK_WORK = 1 << 16
# Of each element of an axis, when the geometry of a plan that is kept is worked out anew.
_WALK_BYTES = 64

_MOST_BYTES = 2**63 - 1

# Evaluations that are kept, and the table entries of all of them.
_RECENT = 256
_RECENT_ENTRIES = 1 << 20


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """A decoded request.

    operator    name of the operator's member in the schema
    attributes  its attributes, hashable
    input       descriptor of the operator's input
    output      descriptor of its output; None where it is to be inferred
    """

    operator: str
    attributes: Hashable
    input: TensorSpec
    output: TensorSpec | None

    def resolved(self) -> tuple[EvaluationRequest, TensorSpec]:
        """Infer an absent output, packed row-major in the input's type."""
        output = self.output
        if output is None:
            filled = self.input.filled.sizes
            sizes = dialects.output_shape(self.operator, self.attributes, filled)
            if sizes is None:
                raise InvalidFieldError(
                    "output",
                    f"absent; the attributes of {self.operator} do not determine "
                    "its sizes: give it (output_shape in the SDK)",
                )
            zeros = zip(self.input.sizes, sizes, strict=True)
            sizes = tuple(0 if size == 0 and out == FILLED else out for size, out in zeros)
            output = TensorSpec.packed(self.input.dtype, sizes)
            if output.filled.elements * output.dtype.itemsize > _MOST_BYTES:
                raise InvalidFieldError(
                    "output", f"absent; the attributes make it {sizes}, 2**63 bytes or more"
                )
            return replace(self, output=output), output
        if output.dtype != self.input.dtype:
            raise InvalidFieldError(
                "output.data_type", f"{output.dtype}; the input's {self.input.dtype} is needed"
            )
        return self, output


@dataclass(frozen=True, slots=True)
class Preparation:
    """What preparing a request takes, as far as its descriptors tell.

    work          in the time of one plain tap of a table
    memory_bytes  upper bound of what is held meanwhile
    """

    work: int
    memory_bytes: int

    @property
    def is_quick(self) -> bool:
        """Whether it takes about a millisecond."""
        return self.work <= _QUICK_WORK


@dataclass(frozen=True)
class Evaluation:
    """A request that fits the limits, ready to run.

    Byte offsets count in wire order from the start of the input or the result.
    """

    request: EvaluationRequest
    output: TensorSpec
    plan: Plan
    walk: Walk

    @property
    def input(self) -> TensorSpec:
        """Descriptor of the input."""
        return self.request.input

    @cached_property
    def work(self) -> int:
        """Multiplications, or elements copied where there are none."""
        if not self.output.elements:
            return 0
        return self.plan.work + self.output.elements

    @cached_property
    def inline_work(self) -> int:
        """Work of one run and of getting a backend ready for it, whichever is most."""
        return max(self.work, self.input.elements, self.plan.table_entries)

    @cached_property
    def step_part(self) -> float:
        """Estimate of the part of the work that one step does."""
        elements = self.input.elements + self.output.elements or 1
        return min(1.0, self.walk.largest_step / elements)

    @cached_property
    def memory_bytes(self) -> int:
        """Estimate of the memory the evaluation needs at once.

        Inputs of three steps are there at once, one arriving, one waiting, one in work, and results
        of three; a fourth of both is for what copies take. The step in work has three arrays of the
        compute type more.
        """
        storage, compute = self.input.dtype.itemsize, compute_dtype(self.input.dtype).itemsize
        total = self.input.elements + self.output.elements
        step = min(self.walk.largest_step, 2 * total)
        held = self.input.wire_bytes if self.walk.layout.held else 0
        tables = self.plan.table_entries * 24
        if self.walk.mode == "window" and self.walk.step_plans is not None:
            tables += self.walk.step_plans.most_bytes
        return step * (4 * storage + 3 * compute) + held + tables

    @cached_property
    def digest(self) -> str:
        """Name of the evaluation: equal digests promise equal bits."""
        operator, attributes = self.request.operator, self.request.attributes
        header = (NUMERICS_VERSION, operator, attributes, self.input.key, self.output.key)
        digest = hashlib.sha256(repr(header).encode())
        self.plan.digest_update(digest)
        return digest.hexdigest()

    @property
    def passes_through(self) -> bool:
        """Whether the result's bytes are the input's; so it is where there are none."""
        return not self.output.elements or (
            not self.plan.passes and not self.input.broadcast and not self.walk.layout.held
        )

    def steps(self, resume_from: int = 0, stop_before: int | None = None) -> Iterator[Step]:
        """Yield the steps that give the result from byte resume_from to stop_before or the end."""
        if not self.output.elements:
            return iter(())
        return self.walk.steps(resume_from // self._out_row_bytes, self._stop_row(stop_before))

    def input_stop(self, stop_before: int) -> int:
        """End of the input's wire bytes that the result's bytes before stop_before need."""
        if not self.output.elements:
            return 0
        stop_row = self._stop_row(stop_before)
        if stop_row is None or stop_before == self.output.wire_bytes:
            return self.input.wire_bytes
        return self.input_range(self.walk.last_step(stop_row))[1]

    def _stop_row(self, stop_before: int | None) -> int | None:
        return None if stop_before is None else -(-stop_before // self._out_row_bytes)

    @cached_property
    def _out_row_bytes(self) -> int:
        rows = self.walk.outer * self.walk.out_rows
        return self.output.wire_bytes // rows

    def input_range(self, step: Step) -> tuple[int, int]:
        """Wire bytes of the input that the step needs."""
        layout, axis = self.walk.layout, self.walk.axis
        if layout.held:
            return 0, self.input.wire_bytes
        row = math.prod(layout.wire[axis + 1 :]) * self.input.dtype.itemsize
        rows = layout.wire[axis]
        if step.outer_stop - step.outer_first > 1:
            return step.outer_first * rows * row, step.outer_stop * rows * row
        low, high = step.in_first, step.in_stop
        if rows != self.walk.in_rows:
            low, high = 0, 1  # even for no row at all, or the next step would lack it
        first = step.outer_first * rows
        return (first + low) * row, (first + high) * row

    def output_range(self, step: Step) -> tuple[int, int]:
        """Wire bytes of the result that the step gives."""
        rows = self.walk.out_rows
        if step.outer_stop - step.outer_first > 1:
            first, stop = step.outer_first * rows, step.outer_stop * rows
        else:
            first = step.outer_first * rows + step.out_first
            stop = step.outer_first * rows + step.out_stop
        return first * self._out_row_bytes, stop * self._out_row_bytes

    def run_into(
        self, out: NDArray[np.uint8], data: NDArray[np.uint8], backend: Backend
    ) -> Iterator[Step]:
        """Write the result's bytes in wire order to out, from all of the input's.

        Yields every step when it is done.
        """
        run = StepRunner(self.walk, backend)
        for step in self.steps():
            run(step, data[slice(*self.input_range(step))], out[slice(*self.output_range(step))])
            yield step

    def run_whole(self, data: NDArray[np.uint8], backend: Backend) -> NDArray[np.uint8]:
        """Return the result's bytes in wire order from all of the input's."""
        if self.whole is not None:
            x = data.view(self.input.dtype).reshape(self.whole.input_shape)
            y = np.empty(self.whole.output_shape, self.input.dtype)
            with default_float_environment():
                backend.apply(self.whole, x, y)
            return y.reshape(-1).view(np.uint8)
        out = np.empty(self.output.wire_bytes, np.uint8)
        deque(self.run_into(out, data, backend), maxlen=0)
        return out

    @cached_property
    def whole(self) -> Plan | None:
        """The plan from the input's bytes as they are to the result's; None where none will do."""
        walk = self.walk
        plans, layout = walk.step_plans, walk.layout
        if plans is None or walk.mode == "running" or layout.held or self.input.broadcast:
            return None
        if not self.output.elements:
            return None
        if len(list(islice(self.steps(), 2))) > 1:
            return None
        return plans.window(walk.outer, (0, walk.in_rows), (0, walk.out_rows))


class Preparer:
    """Turns requests into evaluations under one set of limits, keeping recent ones and plans.

    Equal requests get one evaluation, unless it was long ago: its plans are the same objects then.
    """

    def __init__(self, limits: Limits, plans: PlanCache) -> None:
        self._limits = limits
        self._plans = plans
        self._recent: Recent[Evaluation] = Recent(most=_RECENT, max_weight=_RECENT_ENTRIES)

    def prepare(self, request: EvaluationRequest, *, check: Check | None = None) -> Evaluation:
        """Check a request against every limit and lower it; nothing of the tensors is allocated.

        While long tables are built, check is called again and again; what it raises ends that.
        """
        request, output = request.resolved()
        key = _evaluation_key(request, output)
        evaluation = self._recent.get(key)
        if evaluation is None:
            with asking(check):
                evaluation = self._prepare(request, output)
            self._recent.keep(key, evaluation, weight=evaluation.plan.table_entries)
        return evaluation

    def preparation(self, request: EvaluationRequest) -> Preparation:
        """Estimate what prepare() takes; raise what it would raise before a table is built."""
        request, output = request.resolved()
        if _evaluation_key(request, output) in self._recent:
            return Preparation(0, 0)
        filled, filled_output = self._check_tensors(request, output)
        told = dialects.forward(*_called(filled, filled_output), **self._bounds(request))
        if _key(filled, filled_output) in self._plans:
            elements = sum(axis.inputs + axis.outputs for axis in told.tables)
            return Preparation(elements, elements * _WALK_BYTES)
        return Preparation(told.work, told.memory_bytes)

    def _check_tensors(
        self, request: EvaluationRequest, output: TensorSpec
    ) -> tuple[EvaluationRequest, TensorSpec]:
        """Hold both tensors to their limits; return nonempty ones that are lowered for them."""
        self._limits.check_tensor("input", request.input)
        self._limits.check_tensor("output", output)
        filled, filled_output = replace(request, input=request.input.filled), output.filled
        if not request.input.elements or not output.elements:
            self._check_empty(request, filled, output)
        return filled, filled_output

    def _prepare(self, request: EvaluationRequest, output: TensorSpec) -> Evaluation:
        filled, filled_output = self._check_tensors(request, output)
        plan = self._plans.get(
            _key(filled, filled_output), lambda: self._lower(filled, filled_output)
        )
        self._limits.check_plan(plan)
        layout = lay_out(filled.input, filled_output)
        slab = self._limits.slab_bytes // compute_dtype(request.input.dtype).itemsize
        evaluation = Evaluation(request, output, plan, walk_over(layout, plan, slab))
        self._check_memory(evaluation)
        return evaluation

    def note_hit(self) -> None:
        """Count an evaluation that its user had kept from a call of prepare()."""
        self._recent.note_hit()

    def lookups(self, cache: Literal["evaluations", "plans"]) -> tuple[int, int]:
        """How often a cache had what was looked for, and how often not; plans come second."""
        if cache == "plans":
            return self._plans.lookups
        return self._recent.hits, self._recent.misses

    def is_quick(self, request: EvaluationRequest) -> bool:
        """Whether prepare() takes about a millisecond."""
        return self.preparation(request).is_quick

    def _lower(self, request: EvaluationRequest, output: TensorSpec) -> Plan:
        with default_float_environment():
            return dialects.lower(*_called(request, output), **self._bounds(request))

    def _bounds(self, request: EvaluationRequest) -> Any:
        return {
            "compute": compute_dtype(request.input.dtype),
            "max_float32_axis": self._limits.max_float32_axis,
            "max_table_entries": self._limits.max_table_entries,
        }

    def _check_empty(
        self, request: EvaluationRequest, filled: EvaluationRequest, output: TensorSpec
    ) -> None:
        """Refuse a length of 0, unless the operator copies its axis: an empty batch is fine."""
        _check_both_empty(request.input, output)
        empty = [axis for axis, size in enumerate(request.input.sizes) if not size]
        try:
            axes = dialects.forward(*_called(filled, output.filled), **self._bounds(request)).axes
        except InvalidFieldError as error:
            for axis in empty:
                if error.field in {f"input.sizes[{axis}]", f"output.sizes[{axis}]"}:
                    # It tells of the length that stands for 0.
                    raise _not_empty(request, axis) from error
            raise
        for axis in empty:
            if axes[axis] is not None:
                raise _not_empty(request, axis)

    def _check_memory(self, evaluation: Evaluation) -> None:
        allowed = self._limits.max_request_memory_bytes
        if evaluation.memory_bytes <= allowed:
            return
        came = f"the request needs {evaluation.memory_bytes} bytes of memory"
        if evaluation.walk.layout.held:
            came += ", since its input is held whole: its axis order is not the output's"
            raise exceeded(came, "max_request_memory_bytes", allowed, LayoutNotStreamableError)
        raise exceeded(came, "max_request_memory_bytes", allowed)


def _called(request: EvaluationRequest, output: TensorSpec) -> tuple[Any, ...]:
    return request.operator, request.attributes, request.input.sizes, output.sizes


def _evaluation_key(request: EvaluationRequest, output: TensorSpec) -> tuple[Hashable, ...]:
    return (*_key(request, output), request.input.key, output.key)


def _check_both_empty(source: TensorSpec, result: TensorSpec) -> None:
    """Refuse a length of 0 of one side only; other ranks are for the dialect to refuse."""
    for axis, (size, out) in enumerate(zip(source.sizes, result.sizes, strict=False)):
        if bool(size) != bool(out):
            side, other = ("output", "input") if size else ("input", "output")
            raise InvalidFieldError(
                f"{side}.sizes[{axis}]",
                f"is 0, and {other}.sizes[{axis}] is {size or out}; at least 1 is needed there",
            )


def _not_empty(request: EvaluationRequest, axis: int) -> InvalidFieldError:
    return InvalidFieldError(
        f"input.sizes[{axis}]",
        f"is 0; {request.operator} resizes this axis: at least 1 is needed there",
    )


def _key(request: EvaluationRequest, output: TensorSpec) -> tuple[Hashable, ...]:
    """Tell what a plan depends on; attributes spelled out, because 0.0 and -0.0 are equal."""
    return (
        request.operator,
        repr(request.attributes),
        request.input.sizes,
        output.sizes,
        dialects.table_type(request.operator, compute_dtype(request.input.dtype)),
    )
