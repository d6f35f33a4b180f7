"""Preparation of requests: plan, geometry and costs, cached for equal requests."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire_server import dialects
from gradwire_server.backends import compute_dtype
from gradwire_server.backends.float_environment import default_float_environment
from gradwire_server.dialects.dialect import Axis
from gradwire_server.engine.layout import FILLED, Limits, TensorSpec, exceeded, lay_out
from gradwire_server.engine.tiling import LONGEST_KEPT, Step, Walk, walk_over
from gradwire_server.errors import InvalidFieldError, LayoutNotStreamableError, RequestLimitError
from gradwire_server.lru import Recent
from gradwire_server.plans import BandedMap, Plan
from gradwire_server.plans.cancellation import Check, asking

# Changes whenever the result bits of any request may change.
NUMERICS_VERSION = "1"

# Work, in plain taps, of tables that take about a millisecond to build.
_QUICK_WORK = 1 << 16
# Memory per element of an axis while the geometry of a cached plan is recomputed.
_WALK_BYTES = 64

_MOST_BYTES = 2**63 - 1

# Cached requests, table entries of all of them, and bytes of a header.
_RECENT = 256
_RECENT_ENTRIES = 1 << 20
# Cached tables: those of axes without taps take memory too.
_RECENT_TABLES = 4096
_LONGEST_HEADER = 4096

# Most growth of an estimate by one slower run, which may have waited for the processor.
_GROWTH = 1.1

# Batch sizes of equal evaluations in one step: few, because a backend prepares for each size.
BATCHES = (1, 4, 16, 64)

Array = NDArray[np.generic]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """A decoded request.

    operator    name of the operator's member in the schema
    attributes  its attributes, hashable
    input       descriptor of the operator's input
    output      descriptor of its output; None if it is to be inferred
    """

    operator: str
    attributes: Hashable
    input: TensorSpec
    output: TensorSpec | None

    def resolved(self) -> TensorSpec:
        """Return the output.

        An absent one is inferred, packed row-major in the input's type.
        """
        output = self.output
        if output is None:
            filled = self.input.filled.sizes
            sizes = dialects.output_shape(self.operator, self.attributes, filled)
            if sizes is None:
                raise InvalidFieldError(
                    "output",
                    f"is missing; the attributes of {self.operator} do not determine its sizes",
                )
            zeros = zip(self.input.sizes, sizes, strict=True)
            sizes = tuple(0 if size == 0 and out == FILLED else out for size, out in zeros)
            output = TensorSpec.packed(self.input.dtype, sizes)
            if output.filled.elements * output.dtype.itemsize > _MOST_BYTES:
                raise InvalidFieldError(
                    "output",
                    f"is missing; the attributes determine sizes {sizes}, 2**63 bytes or more",
                )
        elif output.dtype != self.input.dtype:
            raise InvalidFieldError(
                "output.data_type",
                f"is {output.dtype}, but the input's is {self.input.dtype}; give the same",
            )
        return output


@dataclass(frozen=True, slots=True)
class Preparation:
    """Estimated cost of preparing a request, from its descriptors.

    work          in units of one plain tap of a table
    memory_bytes  upper bound of the memory held while preparing
    """

    work: int
    memory_bytes: int

    @property
    def is_quick(self) -> bool:
        """Whether it takes about a millisecond."""
        return self.work <= _QUICK_WORK


@dataclass(slots=True, eq=False)
class Measured:
    """Estimated duration of an evaluation, from its runs.

    In seconds; None before the first run.
    """

    seconds: float | None = None

    def note(self, seconds: float) -> None:
        """Record the seconds of one run.

        A faster run replaces the estimate, a slower one raises it.
        """
        if self.seconds is None or seconds < self.seconds:
            self.seconds = seconds
        else:
            self.seconds = min(seconds, self.seconds * _GROWTH)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A checked and planned evaluation.

    Requests that differ only in id and data share it. Byte offsets count in wire order from the
    start of the input or the result.

    response_header  encoded header of a response
    measured         its measured time
    measured_steps   measured time of its steps in a stream, per byte of input and result
    derived          values of others, by their owner
    """

    request: EvaluationRequest
    output: TensorSpec
    plan: Plan
    walk: Walk
    response_header: bytes = b""
    measured: Measured = field(default_factory=Measured)
    measured_steps: Measured = field(default_factory=Measured)
    derived: dict[object, Any] = field(default_factory=dict[object, Any], init=False, repr=False)

    @property
    def input(self) -> TensorSpec:
        """Descriptor of the input."""
        return self.request.input

    @cached_property
    def work(self) -> int:
        """Multiplications, or copied elements if there are none."""
        if not self.output.elements:
            return 0
        return self.plan.work + self.output.elements

    @cached_property
    def inline_work(self) -> int:
        """Work of one run, or of preparing a backend if larger."""
        return max(self.work, self.input.elements, self.plan.table_entries)

    @cached_property
    def memory_bytes(self) -> int:
        """Estimate of the evaluation's peak memory.

        It counts inputs and results of three steps (arriving, waiting, computing), a fourth of
        each for copies, and three more arrays of the compute type for the computing step.
        """
        storage, compute = self.input.dtype.itemsize, compute_dtype(self.input.dtype).itemsize
        total = self.input.elements + self.output.elements
        step = min(self.walk.largest_step, 2 * total)
        held = self.input.wire_bytes if self.walk.layout.held else 0
        tables = self.plan.table_entries * 24
        if self.plan.passes and self.walk.mode == "window":
            tables += min(self.walk.out_rows, LONGEST_KEPT) * 32
        return step * (4 * storage + 3 * compute) + held + tables

    @cached_property
    def digest(self) -> str:
        """Digest of the evaluation: equal digests promise equal bits."""
        operator, attributes = self.request.operator, self.request.attributes
        header = (NUMERICS_VERSION, operator, attributes, self.input.key, self.output.key)
        digest = hashlib.sha256(repr(header).encode())
        self.plan.digest_update(digest)
        return digest.hexdigest()

    def steps(self, resume_from: int = 0, stop_before: int | None = None) -> Iterator[Step]:
        """Yield the steps for a range of the result's bytes.

        The range is resume_from to stop_before, or to the end.
        """
        total, row = self.output.wire_bytes, self._out_row_bytes
        if not total:
            return iter(())
        stop = total if stop_before is None else stop_before
        return self.walk.steps(resume_from // row, -(-stop // row))

    def input_stop(self, stop_before: int) -> int:
        """End of the input's wire bytes needed for a result.

        The result's bytes end before stop_before.
        """
        if stop_before == self.output.wire_bytes:
            return self.input.wire_bytes
        last = self.walk.last_step(-(-stop_before // self._out_row_bytes))
        return self.input_range(last)[1]

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
        rows, low, high = layout.wire[axis], step.in_first, step.in_stop
        if rows != self.walk.in_rows:
            low, high = 0, 1  # even if no row is needed, because the next step needs it
        last = step.outer_stop - 1
        return (step.outer_first * rows + low) * row, (last * rows + high) * row

    def output_range(self, step: Step) -> tuple[int, int]:
        """Wire bytes of the result that the step produces."""
        row, rows = self._out_row_bytes, self.walk.out_rows
        last = step.outer_stop - 1
        first_row, stop_row = step.outer_first * rows + step.out_first, last * rows + step.out_stop
        return first_row * row, stop_row * row

    @cached_property
    def message_bytes(self) -> int:
        """Memory for a call whose tensors each fit one message.

        Tensors are held more than once: in grpc's buffers, in the message, and the result itself.
        """
        return self.memory_bytes + 2 * self.input.wire_bytes + 3 * self.output.wire_bytes

    @cached_property
    def only_step(self) -> Step | None:
        """The only step; None if there are several, or none."""
        steps = list(islice(self.steps(), 2))
        return steps[0] if len(steps) == 1 else None

    @cached_property
    def most_at_once(self) -> int:
        """Most evaluations of this kind that fit one step.

        0 if each takes several steps.
        """
        walk = self.walk
        if self.only_step is None or walk.mode != "slices" or walk.layout.held:
            return 0
        cost = walk.outer * walk.slice_cost
        return max((size for size in BATCHES if size * cost <= walk.slab), default=1)

    def with_slab(self, slab: int) -> Prepared:
        """Return the same evaluation with another slab size."""
        return replace(self, walk=replace(self.walk, slab=slab))

    def input_rows(self, step: Step, data: Bytes) -> Array:
        """View a step's input bytes as [outer, rows, *inner].

        Axes are broadcast.
        """
        layout, axis, shape = self.walk.layout, self.walk.axis, self.walk.plan.input_shape
        outer = step.outer_stop - step.outer_first
        if not layout.held:
            wire = data.view(self.input.dtype).reshape(outer, -1, *layout.wire[axis + 1 :])
            rows = (outer, step.in_stop - step.in_first, *shape[axis + 1 :])
            return wire if wire.shape == rows else np.broadcast_to(wire, rows)
        # One slice is a view, several are copied.
        index = step.outer_first if outer == 1 else range(step.outer_first, step.outer_stop)
        slices = layout.whole_input(data)[np.unravel_index(index, shape[:axis])]
        return slices.reshape(outer, *shape[axis:])[:, step.in_first : step.in_stop]

    def output_rows(self, step: Step, data: Bytes) -> Array:
        """View the wire bytes of a step's result as [outer, rows, *inner]."""
        inner = self.walk.plan.output_shape[self.walk.axis + 1 :]
        shape = (step.outer_stop - step.outer_first, step.out_stop - step.out_first, *inner)
        return data.view(self.input.dtype).reshape(shape)


class Preparer:
    """Preparation of requests under one set of limits.

    LRU caches keep prepared evaluations and tables. Two threads that miss on the same axis both
    build its table; the tables are equal.

    most_kept       entries of all cached tables, 64 MiB by default
    encode_output   encodes the header of a response
    """

    def __init__(
        self,
        limits: Limits,
        *,
        most_kept: int = 1 << 22,
        encode_output: Callable[[TensorSpec], bytes] = lambda _output: b"",
    ) -> None:
        self._limits = limits
        self._encode_output = encode_output
        self._recent: Recent[Prepared] = Recent(most=_RECENT, max_weight=_RECENT_ENTRIES)
        self._tables: Recent[BandedMap] = Recent(most=_RECENT_TABLES, max_weight=most_kept)

    @property
    def lookups(self) -> tuple[list[int], list[int]]:
        """Hits and misses: of prepared requests, then of tables."""
        return self._recent.lookups, self._tables.lookups

    def find(self, header: Hashable) -> Prepared | None:
        """Return the cached evaluation of a request's header; None on a miss."""
        return self._recent.get(header)

    def forget(self) -> None:
        """Forget prepared evaluations, with their measured times and all derived from them."""
        self._recent.clear()

    def prepare(
        self, request: EvaluationRequest, *, header: Hashable = None, check: Check | None = None
    ) -> Prepared:
        """Check a request against every limit and lower it; allocate no tensors.

        While long tables are built, check is called repeatedly; its exceptions stop the build.

        header  additional cache key, for find(): equal headers are equal requests
        """
        output = request.resolved()
        key = _request_key(request, output)
        # find() has already counted this lookup.
        prepared = self._recent.get(key, counted=header is None)
        if prepared is None:
            with asking(check):
                prepared = self._prepare(request, output)
        for one in (key, header):
            if one is not None and not (isinstance(one, bytes) and len(one) > _LONGEST_HEADER):
                self._recent.keep(one, prepared, weight=prepared.plan.table_entries)
        return prepared

    def preparation(self, request: EvaluationRequest) -> Preparation:
        """Estimate the cost of prepare().

        Raises the errors that prepare() raises before building tables.
        """
        output = request.resolved()
        if _request_key(request, output) in self._recent:
            return Preparation(0, 0)
        told = self._checked(request, output)
        gradient = told.call.gradient
        missing = [axis for axis in told.tables if _axis_key(axis, gradient) not in self._tables]
        elements = sum(axis.inputs + axis.outputs for axis in told.tables)
        return Preparation(
            elements + sum(axis.work for axis in missing),
            elements * _WALK_BYTES + sum(axis.memory_bytes for axis in missing),
        )

    def table(self, axis: Axis, *, gradient: bool) -> BandedMap:
        """Return the table of an axis's forward or gradient.

        Builds it on a miss.
        """
        key = _axis_key(axis, gradient)
        table = self._tables.get(key)
        if table is None:
            table = axis.table(gradient=gradient)
            self._tables.keep(key, table, weight=table.nnz + table.inputs + table.outputs)
        return table

    def _checked(self, request: EvaluationRequest, output: TensorSpec) -> dialects.Forward:
        """Check both tensors' limits, and lower the request.

        A length of 0 is refused, unless the operator copies its axis: an empty batch is fine.
        """
        limits = self._limits
        limits.check_tensor("input", request.input)
        limits.check_tensor("output", output)
        _check_both_empty(request.input, output)
        empty = [axis for axis, size in enumerate(request.input.sizes) if not size]
        try:
            told = dialects.forward(
                request.operator,
                request.attributes,
                request.input.filled.sizes,
                output.filled.sizes,
                compute=compute_dtype(request.input.dtype),
                max_float32_axis=limits.max_float32_axis,
                max_table_entries=limits.max_table_entries,
            )
        except InvalidFieldError as error:
            for axis in empty:
                if error.field in {f"input.sizes[{axis}]", f"output.sizes[{axis}]"}:
                    # The error is about the length that replaces 0.
                    raise _not_empty(request, axis) from error
            raise
        for axis in empty:
            if told.axes[axis] is not None:
                raise _not_empty(request, axis)
        return told

    def _prepare(self, request: EvaluationRequest, output: TensorSpec) -> Prepared:
        told = self._checked(request, output)
        with default_float_environment():
            plan = told.plan(self.table)
        self._limits.check_plan(plan)
        layout = lay_out(request.input.filled, output.filled)
        slab = self._limits.slab_bytes // compute_dtype(request.input.dtype).itemsize
        walk = walk_over(layout, plan, slab)
        request = replace(request, output=output)  # later calls do not infer it again
        prepared = Prepared(request, output, plan, walk, self._encode_output(output))
        self._check_memory(prepared)
        # Cached properties, slow to compute for long tables.
        _ = prepared.inline_work, prepared.most_at_once
        return prepared

    def _check_memory(self, prepared: Prepared) -> None:
        allowed = self._limits.max_request_memory_bytes
        if prepared.memory_bytes <= allowed:
            return
        came, kind = f"the request needs {prepared.memory_bytes} bytes of memory", RequestLimitError
        if prepared.walk.layout.held:
            came += ", since its input is held whole: its axis order is not the output's"
            kind = LayoutNotStreamableError
        elif prepared.walk.map is not None and not prepared.walk.map.is_increasing:
            came += ", since its map runs backward, which needs the whole input"
        raise exceeded(came, "max_request_memory_bytes", allowed, kind)


def _axis_key(axis: Axis, gradient: bool) -> Hashable:  # noqa: FBT001
    """Return the cache key of a table.

    It has repr() of the arguments, as 0.0 equals -0.0.
    """
    return axis, repr(axis.arguments), gradient


def _request_key(request: EvaluationRequest, output: TensorSpec) -> tuple[Hashable, ...]:
    """Return the cache key of a request.

    It has repr() of the attributes, as 0.0 equals -0.0.
    """
    return request.operator, repr(request.attributes), request.input.key, output.key


def _check_both_empty(source: TensorSpec, result: TensorSpec) -> None:
    """Refuse a length of 0 on one side only.

    Dialects check the ranks.
    """
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
