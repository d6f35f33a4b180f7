"""The service without sockets: the same requests, checks and bits, in this process."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, fields
from functools import partial
from types import TracebackType
from typing import Any, Self, cast
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from gradwire import ops, tensors, v1
from gradwire._arrays import share_memory, to_array
from gradwire._calls import check_timeout
from gradwire._job import Job, check_operator, prepare
from gradwire._progress import Progress
from gradwire._statuses import from_in_band
from gradwire.errors import DeadlineExceededError
from gradwire_server import backends, container, wire
from gradwire_server.engine import (
    Evaluation,
    EvaluationRequest,
    Limits,
    PlanCache,
    Preparer,
    Step,
    StepRunner,
    WholeRun,
)
from gradwire_server.errors import DeviceLostError, EvaluationError
from gradwire_server.failures import failure
from gradwire_server.local_many import EvaluatesMany
from gradwire_server.plans.interruption import asking
from gradwire_server.recent import Recent

_PLAN_CACHE_ENTRIES = 1 << 22

# Prepared calls that are kept, and the table entries of all of them.
_RECENT_CALLS = 256
_RECENT_ENTRIES = 1 << 20

# What a step works on where the backend splits it among threads, which takes time for every step.
_LARGE_SLAB_BYTES = 32 << 20

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Watch:
    """The deadline, on the monotonic clock, and the progress of one evaluation."""

    until: float
    progress: Progress

    def report(self, sent: int, received: int, *, total: int) -> None:
        """Tell how many bytes are through; raise DeadlineExceededError if the time is over."""
        self.progress.report(sent, received)
        if time.monotonic() > self.until:
            raise DeadlineExceededError(
                f"timeout_s has passed after {received} of {total} result bytes"
            )


@dataclass(frozen=True, slots=True)
class _Call:
    """What calls share that differ in the numbers of their tensors only.

    input, output  how the tensors travel
    strides        those of a result that is allocated for the caller, in bytes
    whole          the way without bytes, where there is one
    """

    operator: ops.Operator
    evaluation: Evaluation
    input: v1.TensorDescriptor
    output: v1.TensorDescriptor
    strides: tuple[int, ...]
    whole: WholeRun | None

    def takes(self, operator: ops.Operator, source: Array, out: Array | None) -> bool:
        """Whether a call of the same key has nothing else that needs a check."""
        if operator is not self.operator and _exactly(operator) != _exactly(self.operator):
            return False
        return out is None or (out.flags.writeable and not share_memory(out, source))

    def empty_result(self) -> Array:
        """Allocate a result."""
        spec = self.evaluation.output
        return np.ndarray(spec.sizes, spec.dtype, strides=self.strides)


class LocalClient(EvaluatesMany):
    """Evaluates operators in process, for embedding, benchmarks and checks. Thread-safe.

    backend  as the server's setting: "auto" or the name of one
    threads  threads that compute; None means one per core. The bits do not depend on it
    limits   what one evaluation may take; None means the server's defaults, with larger slabs for a
             backend that splits one among threads
    """

    def __init__(
        self, backend: str = "auto", threads: int | None = None, *, limits: Limits | None = None
    ) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads is {threads}; at least 1 is needed")
        threads = threads or container.processors()
        self._backend, self.backend_reason = backends.choose(backend, threads=threads)
        self._at_once = 1 if self._backend.splits_work else threads
        if limits is None:
            limits = Limits(slab_bytes=_LARGE_SLAB_BYTES) if self._backend.splits_work else Limits()
        # What splits work needs no steps for its threads, only where memory does not do.
        self._spare_bytes = limits.max_request_memory_bytes if self._backend.splits_work else 0
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="gradwire-local")
        self._closed = False
        self._preparer = Preparer(limits, PlanCache(max_entries=_PLAN_CACHE_ENTRIES))
        self._calls: Recent[_Call] = Recent(most=_RECENT_CALLS, max_weight=_RECENT_ENTRIES)

    def evaluate(
        self,
        operator: ops.Operator,
        array: object,
        *,
        output_shape: Sequence[int] | None = None,
        out: NDArray[Any] | None = None,
        timeout_s: float | None = None,
        on_progress: Callable[[int, int], object] | None = None,
    ) -> NDArray[Any]:
        """Return the operator's result, as Client.evaluate does, with the same errors.

        timeout_s is the total; None means none. It is looked at between two steps, and between two
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
            with asking(partial(_check_time, until)):
                call, result = self._prepare(operator, source, output_shape=output_shape, out=out)
            if call.whole is not None and timeout_s is None and on_progress is None:
                call.whole(source, np.asarray(result), self._backend)
            else:
                self._run(call, source, np.asarray(result), _Watch(until, Progress(on_progress)))
        except DeviceLostError:
            raise
        except (EvaluationError, MemoryError) as error:
            raise from_in_band(failure(error).in_band(), request_id=uuid4().hex) from error
        return result

    def _prepare(
        self,
        operator: ops.Operator,
        source: Array,
        *,
        output_shape: Sequence[int] | None,
        out: Array | None,
    ) -> tuple[_Call, Array]:
        """Check a call, and say where its result goes."""
        key = _key(operator, source, output_shape=output_shape, out=out)
        call = None if key is None else self._calls.get(key)
        if call is not None and call.takes(operator, source, out):
            return call, call.empty_result() if out is None else out
        job, evaluation = self._evaluation(
            prepare(operator, source, output_shape=output_shape, out=out)
        )
        output = wire.write_descriptor(evaluation.output)
        result = job.result_as(output)
        spare_bytes = self._spare_bytes
        whole = WholeRun.of(evaluation, source, np.asarray(result), spare_bytes=spare_bytes)
        call = _Call(operator, evaluation, job.input, output, result.strides, whole)
        if key is not None:
            self._calls.keep(key, call, weight=evaluation.plan.table_entries)
        return call, result

    def _evaluation(self, job: Job) -> tuple[Job, Evaluation]:
        try:
            return job, self._preparer.prepare(_decode(job))
        except EvaluationError as error:
            # What cannot be held whole is gathered step by step in the result's order instead.
            other = job.reordered() if failure(error).reason in _REORDER else None
            if other is None:
                raise
        return other, self._preparer.prepare(_decode(other))

    def _run(self, call: _Call, source: Array, result: Array, watch: _Watch) -> None:
        evaluation = call.evaluation
        sent, total = evaluation.input.wire_bytes, evaluation.output.wire_bytes
        if call.whole is not None and call.whole.one_step:
            call.whole(source, result, self._backend)
            watch.report(sent, total, total=total)
        else:
            with closing(self._finished_steps(call, source, result)) as steps:
                for step in steps:
                    reached = evaluation.output_range(step)[1]
                    watch.report(evaluation.input_range(step)[1], reached, total=total)
        watch.progress.finish(sent, total)

    def _finished_steps(self, call: _Call, source: Array, result: Array) -> Generator[Step]:
        """Yield each step when its result is written."""
        evaluation = call.evaluation
        run = StepRunner(evaluation.walk, self._backend)
        given, taken = tensors.WireView(source, call.input), tensors.WireView(result, call.output)

        def work(step: Step) -> Step:
            low, high = evaluation.output_range(step)
            place = taken.in_place(low, high)
            out = np.empty(high - low, np.uint8) if place is None else place
            run(step, np.frombuffer(given.read(*evaluation.input_range(step)), np.uint8), out)
            if place is None:
                taken.write(low, out.data)
            return step

        steps = evaluation.steps()
        if self._at_once == 1 or evaluation.walk.mode == "running":
            yield from map(work, steps)
        else:
            yield from self._in_turn(work, steps)

    def _in_turn(self, work: Callable[[Step], Step], steps: Iterator[Step]) -> Generator[Step]:
        """Work on several steps at once; when this ends none is under way any more."""
        ahead: deque[Future[Step]] = deque()
        try:
            for step in steps:
                ahead.append(self._pool.submit(work, step))
                if len(ahead) > self._at_once:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()
            wait(ahead)

    def close(self) -> None:
        """End the threads; evaluate() then raises RuntimeError."""
        self._closed = True
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _check_time(until: float) -> None:
    if time.monotonic() > until:
        raise DeadlineExceededError("timeout_s has passed while tables were built")


_REORDER = {v1.ErrorReason.ERROR_REASON_LAYOUT_NOT_STREAMABLE}


def _key(
    operator: ops.Operator, source: Array, *, output_shape: Sequence[int] | None, out: object
) -> Hashable | None:
    """Return all that the checks and the preparation of a call depend on, but for out's memory.

    None where equality would not do: True and 1 are equal sizes, and only one of them is right.
    Operators that are equal are told apart by `_Call.takes`.
    """
    shape: tuple[int, ...] | None = None
    if output_shape is not None:
        shape = tuple(output_shape) if isinstance(output_shape, (tuple, list)) else ()
        if not shape or not all(type(size) is int for size in shape):
            return None
    if out is None:
        return operator, source.dtype, source.shape, source.strides, shape
    if not isinstance(out, np.ndarray):
        return None
    target = cast("Array", out)
    layout = target.dtype, target.shape, target.strides
    return operator, source.dtype, source.shape, source.strides, shape, layout


def _exactly(operator: ops.Operator) -> str:
    """Spell an operator out: 0.0 and -0.0 are equal numbers."""
    return repr([getattr(operator, field.name) for field in fields(operator)])


def _decode(job: Job) -> EvaluationRequest:
    header = v1.Open(operator=job.operator, input=job.input, output=job.output)
    return wire.read_request(header)
