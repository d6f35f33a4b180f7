"""The parts of a server that its RPC handlers share."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from gradwire_server.backends import Backend
from gradwire_server.backends.call_deadline import computing_until
from gradwire_server.config.settings import Settings
from gradwire_server.engine import (
    EvaluationRequest,
    Preparation,
    Prepared,
    Preparer,
    exceeded,
    in_memory,
)
from gradwire_server.errors import RETRY_AFTER_S, MessageTooLargeError, StartingError
from gradwire_server.observability.recording import Phases
from gradwire_server.plans.cancellation import AbandonedError
from gradwire_server.rpc import codec
from gradwire_server.rpc.call_context import ActiveCall, ActiveCalls
from gradwire_server.rpc.codec import Bytes
from gradwire_server.scheduling.admission import TABLE_THREADS, Admission, InlineWork
from gradwire_server.scheduling.device_watch import DeviceWatch
from gradwire_server.scheduling.scheduler import TURN_S, Turns
from gradwire_server.scheduling.thread_pool import compute_pool

T = TypeVar("T")


class ServiceContext:
    """Computing parts and limits that all handlers share.

    backend   computes; it may be replaced between executions, since bits are equal
    reason    why it was chosen
    to_come   name of the backend that is going to replace it; empty if none is
    ready     set once the server evaluates
    draining  set when streams are to end
    """

    def __init__(
        self,
        settings: Settings,
        active: ActiveCalls,
        device: DeviceWatch,
        backend: Backend,
        *,
        reason: str = "",
        to_come: str = "",
    ) -> None:
        self.settings = settings
        self.active = active
        self.device = device
        self.preparer = Preparer(settings.limits, encode_output=codec.response_header)
        self.admission = Admission(
            max_memory_bytes=settings.max_memory_bytes,
            max_streams=settings.max_streams,
            threads=settings.threads,
            max_queue=settings.max_queue,
            max_queue_s=settings.max_queue_s,
        )
        self.inline = InlineWork()
        self.use(backend, reason)
        self.to_come = to_come
        self.pool = compute_pool(settings.threads)
        self.table_pool = compute_pool(TABLE_THREADS)
        self.ready, self.draining = asyncio.Event(), asyncio.Event()

    def use(self, backend: Backend, reason: str) -> None:
        """Compute with another backend from now on.

        Times measured with the old one are forgotten.
        """
        self.backend, self.reason, self.to_come = backend, reason, ""
        self.inline.limit(backend, self.settings.threads)
        self.admission.forget_times()
        self.preparer.forget()

    async def prepared(self, header: bytes, call: ActiveCall, *, method: str = "") -> Prepared:
        """Return the Prepared of a request's header.

        The header is all fields except request_id and data.

        method  where tensors that are too large for one message are refused

        Raises EvaluationError if the request cannot be evaluated here, NoMessageError if the header
        is not an EvaluateRequest.
        """
        known = self.preparer.find(header)
        if known is not None:
            return known
        request = codec.read_header(header)
        if method:
            self.refuse_bulk(request, method)
        return await self.prepare(request, call, header=header)

    async def prepare(
        self, request: EvaluationRequest, call: ActiveCall, *, header: Hashable = None
    ) -> Prepared:
        """Prepare a request on the event loop or in a thread.

        Quick preparations run on the event loop, others in a thread, as long as the call waits.

        header  key under which the result is cached for equal requests

        Raises StartingError before the server is ready, ServerFullError if it is full.
        """
        if not self.ready.is_set():
            raise StartingError(f"the server is getting ready; retry after {RETRY_AFTER_S} s")
        needs = self.preparer.preparation(request)
        if needs.is_quick:
            return self.preparer.prepare(request, header=header)
        return await self._prepare_in_thread(request, needs, call, header)

    async def _prepare_in_thread(
        self, request: EvaluationRequest, needs: Preparation, call: ActiveCall, header: Hashable
    ) -> Prepared:
        limit, allowed = "max_memory_bytes", self.settings.max_memory_bytes
        if self.settings.max_request_memory_bytes > allowed:
            limit, allowed = "max_request_memory_bytes", self.settings.max_request_memory_bytes
        if needs.memory_bytes > allowed:
            came = f"building the tables of this request may take {needs.memory_bytes} bytes"
            raise exceeded(came, limit, allowed)
        is_abandoned = threading.Event()

        def check() -> None:
            if is_abandoned.is_set():
                raise AbandonedError

        build = partial(self.preparer.prepare, request, header=header, check=check)
        memory = self.admission.memory(needs.memory_bytes, measured=False)
        with memory, self.admission.turns(call.claim(needs.work), tables=True) as turns:
            try:
                # The call that needs the tables counts all of this time as waiting.
                return await self.in_turn(Phases(), turns, build, pool=self.table_pool)
            finally:
                is_abandoned.set()

    def refuse_bulk(self, request: EvaluationRequest, method: str) -> None:
        """Raise MessageTooLargeError where a tensor is too large for one message."""
        allowed = self.settings.max_unary_bytes
        for name, spec in (("input", request.input), ("output", request.resolved())):
            if spec.wire_bytes > allowed:
                raise MessageTooLargeError(
                    f"{name} is {spec.wire_bytes} bytes; {method} takes {allowed} (its setting "
                    "GRADWIRE_MAX_UNARY_BYTES), EvaluateStream any number",
                    limit="max_unary_bytes",
                    allowed=allowed,
                )

    async def compute_step(
        self,
        prepared: Prepared,
        call: ActiveCall,
        turns: Turns,
        work: Callable[[], object],
        nbytes: int,
    ) -> None:
        """Run a step of a stream.

        Short ones run on the event loop, others in a thread, in turn.

        nbytes  bytes of its input and result
        """

        def measured() -> None:
            began = time.perf_counter()
            work()
            prepared.measured_steps.note((time.perf_counter() - began) / max(1, nbytes))

        while (seconds := self.inline.step_s(prepared, nbytes)) is not None:
            if self.inline.admits_step(seconds):
                call.compute_inline(measured, self.inline)
                return
            await asyncio.sleep(0)
        await self.in_turn(call.phases, turns, measured)

    async def compute(
        self,
        prepared: Prepared,
        data: Bytes,
        result: Bytes,
        call: ActiveCall,
        *,
        paced: bool = False,
    ) -> None:
        """Evaluate whole tensors in a thread, in turns."""
        steps = in_memory(prepared, result, data, self.backend)
        with self.admission.turns(call.claim(prepared.work, paced=paced)) as turns:
            while await self.in_turn(call.phases, turns, partial(_take_turn, steps)):
                pass

    async def in_turn(
        self,
        phases: Phases,
        turns: Turns,
        work: Callable[[], T],
        *,
        pool: ThreadPoolExecutor | None = None,
    ) -> T:
        """Run a part of an evaluation in a thread, in its turn."""
        with phases.spending("queue"):
            slots = await turns.slot()
        with phases.spending("compute"):
            done = (pool or self.pool).submit(_timed, work, turns.claim.deadline)
            try:
                result, seconds = await self._result(done)
            finally:
                done.cancel()  # which does nothing once it has begun
                slots.free_after(done)
        turns.spend(seconds)
        return result

    async def out_of_turn(self, work: Callable[[], T]) -> T:
        """Run work in the thread pool, out of turn."""
        return await self._result(self.pool.submit(work))

    def _result(self, done: Future[T]) -> Awaitable[T]:
        """Return the outcome of work in a thread.

        It is watched if the backend may wait for a device.
        """
        return self.device.result(done) if self.backend.may_wait else asyncio.wrap_future(done)


def _timed(work: Callable[[], T], deadline: float) -> tuple[T, float]:
    began = time.perf_counter()
    with computing_until(deadline):
        return work(), time.perf_counter() - began


def _take_turn(steps: Iterator[object]) -> bool:
    """Run steps for one turn; return whether there may be more.

    At least one step runs.
    """
    until = time.perf_counter() + TURN_S
    return any(time.perf_counter() >= until for _ in steps)
