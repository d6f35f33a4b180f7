"""The service without sockets: the same requests, checks and bits, in this process."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gradwire import ops, tensors, v1
from gradwire._calls import check_timeout
from gradwire._job import Job, prepare
from gradwire._progress import Progress
from gradwire._statuses import from_in_band
from gradwire.errors import DeadlineExceededError
from gradwire_server import backends, wire
from gradwire_server.engine import (
    Evaluation,
    EvaluationRequest,
    Limits,
    PlanCache,
    Preparer,
    Step,
    StepRunner,
)
from gradwire_server.errors import EvaluationError
from gradwire_server.failures import failure

_PLAN_CACHE_ENTRIES = 1 << 22


@dataclass(frozen=True, slots=True)
class _Watch:
    """The deadline, on the monotonic clock, and the progress of one evaluation."""

    until: float
    progress: Progress


class LocalClient:
    """Evaluates operators in process, for embedding, benchmarks and checks. Thread-safe.

    backend  as the server's setting: "auto" or the name of one
    threads  threads that compute; None means one per core. The bits do not depend on it
    limits   what one evaluation may take; None means the server's defaults
    """

    def __init__(
        self, backend: str = "auto", threads: int | None = None, *, limits: Limits | None = None
    ) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads is {threads}; at least 1 is needed")
        self._backend, self.backend_reason = backends.choose(backend)
        self._threads = threads or len(os.sched_getaffinity(0))
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="gradwire-local")
        self._closed = False
        self._preparer = Preparer(limits or Limits(), PlanCache(max_entries=_PLAN_CACHE_ENTRIES))

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

        timeout_s is the total; None means none. It is looked at between two steps.
        """
        if self._closed:
            raise RuntimeError("the client is closed; make another one")
        timeout_s = check_timeout(timeout_s)
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        job = prepare(operator, array, output_shape=output_shape, out=out)
        watch = _Watch(until, Progress(on_progress))
        try:
            job, evaluation = self._prepare(job)
            return self._run(job, evaluation, watch)
        except (EvaluationError, MemoryError) as error:
            raise from_in_band(failure(error).in_band(), request_id=job.request_id) from error

    def _prepare(self, job: Job) -> tuple[Job, Evaluation]:
        try:
            return job, self._preparer.prepare(_decode(job))
        except EvaluationError as error:
            # What cannot be held whole is gathered step by step in the result's order instead.
            other = job.reordered() if failure(error).reason in _REORDER else None
            if other is None:
                raise
        return other, self._preparer.prepare(_decode(other))

    def _run(self, job: Job, evaluation: Evaluation, watch: _Watch) -> NDArray[Any]:
        output = wire.write_descriptor(evaluation.output)
        result = job.result_as(output)
        source = tensors.WireView(job.source, job.input)
        view = tensors.WireView(result, output)
        for step, data in self._results(evaluation, source):
            offset = evaluation.output_range(step)[0]
            view.write(offset, data.data)
            watch.progress.report(evaluation.input_range(step)[1], offset + len(data))
            if time.monotonic() > watch.until:
                raise DeadlineExceededError(
                    f"timeout_s has passed after {offset + len(data)} of {view.nbytes} result bytes"
                )
        watch.progress.finish(source.nbytes, view.nbytes)
        return result

    def _results(
        self, evaluation: Evaluation, source: tensors.WireView
    ) -> Iterator[tuple[Step, NDArray[np.uint8]]]:
        run = StepRunner(evaluation.walk, self._backend)

        def work(step: Step) -> NDArray[np.uint8]:
            return run(step, np.frombuffer(source.read(*evaluation.input_range(step)), np.uint8))

        if self._threads == 1 or evaluation.walk.mode == "running":
            yield from ((step, work(step)) for step in evaluation.steps())
            return
        ahead: deque[tuple[Step, Future[NDArray[np.uint8]]]] = deque()
        for step in evaluation.steps():
            ahead.append((step, self._pool.submit(work, step)))
            if len(ahead) > self._threads:
                done, future = ahead.popleft()
                yield done, future.result()
        yield from ((step, future.result()) for step, future in ahead)

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


_REORDER = {v1.ErrorReason.ERROR_REASON_LAYOUT_NOT_STREAMABLE}


def _decode(job: Job) -> EvaluationRequest:
    header = v1.Open(operator=job.operator, input=job.input, output=job.output)
    return wire.read_request(header)
