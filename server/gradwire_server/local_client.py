"""The service without sockets: the same checks and bits in-process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal, Self, TypeVar, cast, overload
from uuid import uuid4

import numpy as np

from gradwire import Item, ops, tensors, v1
from gradwire._wire.requests import (
    ArrayRequest,
    ItemLike,
    Progress,
    as_item,
    check_max_in_flight,
    check_operator,
    check_timeout,
    prepare,
)
from gradwire._wire.statuses import from_in_band
from gradwire.errors import DeadlineExceededError
from gradwire.tensors import Array, Sizes, share_memory, to_array
from gradwire_server import backends
from gradwire_server.backends import compute_dtype
from gradwire_server.config import container_limits
from gradwire_server.engine import Execution, Limits, Prepared, Preparer, Step, are_rows, rows_of
from gradwire_server.errors import DeviceLostError, EvaluationError, LayoutNotStreamableError
from gradwire_server.lru import Recent
from gradwire_server.plans.cancellation import asking
from gradwire_server.rpc import codec
from gradwire_server.rpc.status_map import failure

# Prepared calls that are kept, and the table entries of all of them.
_RECENT_CALLS = 256
_RECENT_ENTRIES = 1 << 20

# Slab of a single step for the whole evaluation.
_WHOLE = 1 << 62


@dataclass(frozen=True, slots=True)
class _LocalCall:
    """State of calls that differ only in their tensors' numbers.

    input, output  how the tensors travel
    strides        those of a result that is allocated for the caller, in bytes
    direct         whether steps read and write the arrays themselves, and not their wire bytes
    """

    operator: ops.Operator
    prepared: Prepared
    input: v1.TensorDescriptor
    output: v1.TensorDescriptor
    strides: tuple[int, ...]
    direct: bool

    def takes(self, operator: ops.Operator, source: Array, out: Array | None) -> bool:
        """Return whether a call of the same key needs no further check."""
        if operator is not self.operator and _exactly(operator) != _exactly(self.operator):
            return False
        return out is None or (out.flags.writeable and not share_memory(out, source))

    def execute(self, source: Array, result: Array, backend: backends.Backend) -> Iterator[Step]:
        """Write the result for source to result, step by step."""
        prepared = self.prepared
        execution = Execution(prepared, backend)
        if self.direct:
            x, y = rows_of(prepared, source), rows_of(prepared, result)
            for step in prepared.steps():
                outer = slice(step.outer_first, step.outer_stop)
                rows = x[outer, step.in_first : step.in_stop]
                execution.rows(step, rows, y[outer, step.out_first : step.out_stop])
                yield step
            return
        given, taken = tensors.WireView(source, self.input), tensors.WireView(result, self.output)
        for step in prepared.steps():
            data = np.frombuffer(given.read(*prepared.input_range(step)), np.uint8)
            first, stop = prepared.output_range(step)
            part = np.empty(stop - first, np.uint8)
            execution.step(step, data, part)
            taken.write(first, part.data)
            yield step


class LocalClient:
    """Evaluates operators in process, for embedding, benchmarks and checks. Thread-safe.

    backend  as the server's setting: "auto" or the name of one
    threads  threads that compute where the backend is compiled; None means one per core. The bits
             do not depend on it
    limits   what one evaluation may take; None means the server's defaults
    """

    def __init__(
        self, backend: str = "auto", threads: int | None = None, *, limits: Limits | None = None
    ) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads is {threads}; at least 1 is needed")
        threads = threads or container_limits.processors()
        self._backend, self.backend_reason = backends.choose(backend, threads=threads)
        limits = limits or Limits()
        # A backend that splits work needs no steps for its threads, only where memory is short.
        self._spare_bytes = limits.max_request_memory_bytes if self._backend.splits_work else 0
        self._closed = False
        self._preparer = Preparer(limits)
        self._calls: Recent[_LocalCall] = Recent(most=_RECENT_CALLS, max_weight=_RECENT_ENTRIES)

    def evaluate(
        self,
        operator: ops.Operator,
        array: object,
        *,
        output_shape: Sizes | None = None,
        out: Array | None = None,
        timeout_s: float | None = None,
        on_progress: Callable[[int, int], object] | None = None,
    ) -> Array:
        """Return the operator's result, as Client.evaluate does, with the same errors.

        timeout_s is the total; None means none. It is checked between two steps, and between two
        blocks of a long table.

        Raises DeviceLostError, beside those errors, where the backend is "cuda" and this process
        has lost its device: it cannot open it again, only another process can.
        """
        if self._closed:
            raise RuntimeError("the client is closed; make another one")
        timeout_s = check_timeout(timeout_s)
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        operator, source = check_operator(operator), to_array(array)
        try:
            call, result = self._prepare(
                operator, source, until, output_shape=output_shape, out=out
            )
            self._run(call, source, np.asarray(result), until, Progress(on_progress))
        except DeviceLostError:
            raise
        except (EvaluationError, MemoryError) as error:
            raise from_in_band(failure(error).in_band(), request_id=uuid4().hex) from error
        return result

    @overload
    def evaluate_many(
        self,
        items: Iterable[ItemLike],
        *,
        ordered: Literal[True] = True,
        max_in_flight: int = 64,
        timeout_s: float | None = None,
    ) -> LocalResults[Array]: ...

    @overload
    def evaluate_many(
        self,
        items: Iterable[ItemLike],
        *,
        ordered: Literal[False],
        max_in_flight: int = 64,
        timeout_s: float | None = None,
    ) -> LocalResults[tuple[int, Array]]: ...

    def evaluate_many(
        self,
        items: Iterable[ItemLike],
        *,
        ordered: bool = True,
        max_in_flight: int = 64,
        timeout_s: float | None = None,
    ) -> LocalResults[Any]:
        """Evaluate items one by one, as Client.evaluate_many does many at once.

        max_in_flight has no effect: an item is taken when its result is requested.
        timeout_s is each item's.
        """
        check_max_in_flight(max_in_flight)
        return LocalResults(
            items,
            lambda item: self.evaluate(
                item.op,
                item.array,
                output_shape=item.output_shape,
                out=item.out,
                timeout_s=timeout_s,
            ),
            ordered=ordered,
        )

    def _prepare(
        self,
        operator: ops.Operator,
        source: Array,
        until: float,
        *,
        output_shape: Sizes | None,
        out: Array | None,
    ) -> tuple[_LocalCall, Array]:
        """Check a call, and return it with the array for its result."""
        key = _key(operator, source, output_shape=output_shape, out=out)
        call = None if key is None else self._calls.get(key)
        if call is not None and call.takes(operator, source, out):
            spec = call.prepared.output
            made = np.ndarray(spec.sizes, spec.dtype, strides=call.strides) if out is None else out
            return call, made
        with asking(partial(_check_time, until, received=0)):
            job, prepared = self._prepared(
                prepare(operator, source, output_shape=output_shape, out=out)
            )
        output = codec.write_descriptor(prepared.output)
        result = job.result_as(output)
        whole, direct = self._direct(prepared, source, np.asarray(result))
        call = _LocalCall(operator, whole, job.template.input, output, result.strides, direct)
        if key is not None:
            self._calls.keep(key, call, weight=prepared.plan.table_entries)
        return call, result

    def _prepared(self, job: ArrayRequest) -> tuple[ArrayRequest, Prepared]:
        template = job.template
        header = v1.Open(operator=template.operator, input=template.input, output=template.output)
        try:
            return job, self._preparer.prepare(codec.read_request(header))
        except LayoutNotStreamableError:
            # A tensor that cannot be held whole is gathered step by step in the result's order.
            other = job.reordered()
            if other is None:
                raise
            return self._prepared(other)

    def _direct(self, prepared: Prepared, source: Array, result: Array) -> tuple[Prepared, bool]:
        """Return the evaluation in suitable steps, and whether it is direct.

        There are as many steps as such arrays need. Results of two passes that fit in the memory of
        a request make one step of several.
        """
        if not (
            prepared.output.elements
            and are_rows(prepared, source)
            and are_rows(prepared, result)
            and rows_of(prepared, result).flags.c_contiguous
        ):
            return prepared, False
        itemsize = compute_dtype(prepared.input.dtype).itemsize
        between = 2 * prepared.plan.largest_intermediate * itemsize
        return prepared.with_slab(_WHOLE) if between <= self._spare_bytes else prepared, True

    def _run(
        self, call: _LocalCall, source: Array, result: Array, until: float, progress: Progress
    ) -> None:
        prepared = call.prepared
        step, total = prepared.only_step, prepared.output.wire_bytes
        if call.direct and step is not None and prepared.walk.mode == "slices":
            rows = rows_of(prepared, source), rows_of(prepared, result)
            Execution(prepared, self._backend).rows(step, *rows)
            _check_time(until, received=total)
        else:
            for step in call.execute(source, result, self._backend):
                received = prepared.output_range(step)[1]
                progress.report(prepared.input_range(step)[1], received)
                _check_time(until, received=received)
        progress.finish(prepared.input.wire_bytes, total)

    def close(self) -> None:
        """End the threads; evaluate() then raises RuntimeError."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_time(until: float, *, received: int) -> None:
    if time.monotonic() > until:
        raise DeadlineExceededError(f"timeout_s has passed after {received} result bytes")


def _key(
    operator: ops.Operator, source: Array, *, output_shape: Sizes | None, out: object
) -> Hashable | None:
    """Return a key for a call's checks and preparation.

    It holds all values that they depend on, but for out's memory: `_LocalCall.takes` looks at it,
    and tells equal operators apart. True and 1 are equal sizes, and only one of them is right.

    None if shapes are of types that may change.
    """
    if not isinstance(output_shape, (tuple, list, type(None))):
        return None
    layout = None
    if isinstance(out, np.ndarray):
        target = cast("Array", out)
        layout = target.dtype, target.shape, target.strides
    elif out is not None:
        return None
    return operator, source.dtype, source.shape, source.strides, repr(output_shape), layout


def _exactly(operator: ops.Operator) -> str:
    """Spell an operator out: 0.0 and -0.0 are equal numbers."""
    return repr([getattr(operator, field.name) for field in fields(operator)])


T_co = TypeVar("T_co", covariant=True)


class LocalResults(Iterator[T_co]):
    """Results of `LocalClient.evaluate_many`: as gradwire.Results, but with no item in flight.

    index  index of the item whose result or error came last; -1 before the first
    """

    def __init__(
        self, items: Iterable[object], evaluate: Callable[[Item], Array], *, ordered: bool
    ) -> None:
        self.index = -1
        self._items = iter(items)
        self._evaluate = evaluate
        self._ordered = ordered

    def __next__(self) -> T_co:
        item = next(self._items)
        self.index += 1
        try:
            array = self._evaluate(as_item(item))
        except Exception as error:
            error.add_note(f"item {self.index} of evaluate_many")
            raise
        result: Any = array if self._ordered else (self.index, array)
        return cast("T_co", result)

    def close(self) -> None:
        """Take no more items; next() raises StopIteration.

        The caller closes a generator that makes the items.
        """
        self._items = iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
