"""The parts of a server that its RPC handlers share."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

from gradwire_server.backends import Backend
from gradwire_server.backends.call_deadline import computing_until
from gradwire_server.config.settings import Settings
from gradwire_server.engine import (
    EvaluationRequest,
    Prepared,
    Preparer,
    exceeded,
)
from gradwire_server.errors import RETRY_AFTER_S, MessageTooLargeError, StartingError
from gradwire_server.observability.recording import Phases
from gradwire_server.plans.cancellation import AbandonedError
from gradwire_server.rpc.call_context import (
    ActiveCall,
    ActiveCalls,
    Caller,
    claim_of,
)
from gradwire_server.scheduling.admission import TABLE_THREADS, Admission, InlineWork
from gradwire_server.scheduling.device_watch import DeviceWatch
from gradwire_server.scheduling.scheduler import TURN_S, Turns
from gradwire_server.scheduling.thread_pool import compute_pool, submit

T = TypeVar("T")


class Do(Protocol):
    """Callable that runs a part of an evaluation in its turn."""

    async def __call__(self, work: Callable[[], T], /) -> T:
        """Return what the work returns."""
        ...


# Runs a step of a stream, of so many bytes of input and result.
DoStep: TypeAlias = Callable[[Callable[[], object], int], Awaitable[None]]


@dataclass(slots=True)
class BackendInUse:
    """The backend that computes.

    It may be replaced between executions, since bits are equal.

    reason   why it was chosen
    to_come  name of the backend that is going to replace it; empty if none is
    """

    backend: Backend
    reason: str
    to_come: str = ""


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """Computing parts and limits that all handlers share."""

    settings: Settings
    in_use: BackendInUse
    preparer: Preparer
    admission: Admission
    pool: ThreadPoolExecutor
    active: ActiveCalls
    device: DeviceWatch
    ready: asyncio.Event
    draining: asyncio.Event
    inline: InlineWork
    table_pool: ThreadPoolExecutor = field(default_factory=partial(compute_pool, TABLE_THREADS))

    @property
    def backend(self) -> Backend:
        """The backend for the next execution."""
        return self.in_use.backend

    def use(self, backend: Backend, reason: str) -> None:
        """Compute with another backend from now on.

        Times measured with the old one are forgotten.
        """
        self.in_use.backend, self.in_use.reason, self.in_use.to_come = backend, reason, ""
        self.inline.limit(backend, self.settings.threads)
        self.admission.forget_times()
        self.preparer.forget()

    async def prepare(
        self,
        request: EvaluationRequest,
        context: Caller,
        *,
        header: Hashable = None,
    ) -> Prepared:
        """Prepare a request on the event loop or in a thread.

        Quick preparations run on the event loop, others in a thread, as long as the call waits.

        header  key under which the result is cached for equal requests

        Raises StartingError before the server is ready, ServerFullError if it is full.
        """
        if not self.ready.is_set():
            raise StartingError(
                f"the server is getting ready; retry after {RETRY_AFTER_S} s",
                retry_after_s=RETRY_AFTER_S,
            )
        needs = self.preparer.preparation(request)
        if needs.is_quick:
            return self.preparer.prepare(request, header=header)
        limits = {
            name: getattr(self.settings, name)
            for name in ("max_memory_bytes", "max_request_memory_bytes")
        }
        limit = max(limits, key=limits.__getitem__)
        if needs.memory_bytes > limits[limit]:
            came = f"building the tables of this request may take {needs.memory_bytes} bytes"
            raise exceeded(came, limit, limits[limit])
        claim, is_abandoned = claim_of(context, needs.work), threading.Event()

        def check() -> None:
            if is_abandoned.is_set():
                raise AbandonedError

        build = partial(self.preparer.prepare, request, header=header, check=check)
        memory = self.admission.memory(needs.memory_bytes, measured=False)
        with memory, self.admission.turns(claim, tables=True) as turns:
            try:
                # The call that needs the tables counts all of this time as waiting.
                return await self._in_turn(Phases(), turns, build, self.table_pool)
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

    @contextmanager
    def computing(self, prepared: Prepared, call: ActiveCall, *, left: float) -> Generator[DoStep]:
        """Admit a stream; yield a function that runs a step.

        Short steps run on the event loop, others in a thread, in turn.

        left  part of the evaluation that is not done yet
        """
        with self.turns(call, math.ceil(prepared.work * left), paced=True) as do:
            yield partial(self._step, prepared, call, do)

    async def _step(
        self, prepared: Prepared, call: ActiveCall, do: Do, work: Callable[[], object], nbytes: int
    ) -> None:
        """Run a step, on the event loop if such steps are short.

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
        await do(measured)

    @contextmanager
    def turns(self, call: ActiveCall, work: int, *, paced: bool) -> Generator[Do]:
        """Admit work of a call; yield a function that runs its parts.

        Each part runs in a thread, in turn. For paced see Claim.
        """
        with self.admission.turns(claim_of(call.context, work, paced=paced)) as turns:
            yield partial(self._in_turn, call.phases, turns, pool=self.pool)

    async def compute_steps(
        self, steps: Iterator[object], prepared: Prepared, call: ActiveCall, *, paced: bool = False
    ) -> None:
        """Run the steps of an evaluation in a thread, in turns."""
        with self.turns(call, prepared.work, paced=paced) as do:
            while await do(partial(_take_turn, steps)):
                pass

    async def _in_turn(
        self, phases: Phases, turns: Turns, work: Callable[[], T], pool: ThreadPoolExecutor
    ) -> T:
        with phases.spending("queue"):
            slots = await turns.slot()
        with phases.spending("compute"):
            done, outcome = submit(pool, partial(_timed, work, turns.claim.deadline))
            try:
                result, seconds = await self._result(done, outcome)
            finally:
                done.cancel()  # which does nothing once it has begun
                slots.free_after(done)
        turns.spend(seconds)
        return result

    async def off_loop(self, work: Callable[[], T]) -> T:
        """Run work in the thread pool."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, work)

    async def compute(self, work: Callable[[], T]) -> T:
        """Run work of the backend in the thread pool, out of turn."""
        return await self._result(*submit(self.pool, work))

    def _result(self, done: Future[T], outcome: asyncio.Future[T]) -> Awaitable[T]:
        """Return the outcome of work in a thread.

        It is watched if the backend may wait for a device.
        """
        return self.device.result(done, outcome) if self.backend.may_wait else outcome


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
