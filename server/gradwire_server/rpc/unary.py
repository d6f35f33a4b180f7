"""The gRPC face of the server: one handler per RPC, each a thin shell around the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import numpy as np

from gradwire import ops, v1
from gradwire_server.backends import Backend
from gradwire_server.backends.call_deadline import computing_until
from gradwire_server.config.settings import Settings
from gradwire_server.engine import (
    EvaluationRequest,
    Prepared,
    Preparer,
    at_once,
    exceeded,
    in_memory,
)
from gradwire_server.errors import InvalidDataError, StartingError, UseStreamError
from gradwire_server.observability.phases import Phases
from gradwire_server.rpc import callers, codec, encoding
from gradwire_server.rpc.call_context import ActiveCalls, Call, Context, Metadata
from gradwire_server.rpc.callers import claim_of
from gradwire_server.rpc.message_budget import LEAST_BYTES, Transit
from gradwire_server.rpc.server_info import server_info
from gradwire_server.scheduling.admission import Admission
from gradwire_server.scheduling.device_watch import DeviceWatch
from gradwire_server.scheduling.inline import InlineWork
from gradwire_server.scheduling.thread_pool import submit
from gradwire_server.scheduling.turned_work import TurnedWork
from gradwire_server.scheduling.turns import TURN_S, Claim, Turns

NAME = "gradwire.v1.GradientService"
T = TypeVar("T")


class Do(Protocol):
    """Does a part of an evaluation when it is its turn."""

    async def __call__(self, work: Callable[[], T], /) -> T:
        """Return what the work returns."""
        ...


@dataclass(frozen=True, slots=True)
class Workshop:
    """What handlers share: the parts that compute and the rules that bound them."""

    settings: Settings
    backend: Backend
    backend_reason: str
    preparer: Preparer
    admission: Admission
    pool: ThreadPoolExecutor
    active: ActiveCalls
    device: DeviceWatch
    ready: asyncio.Event
    draining: asyncio.Event
    inline: InlineWork

    async def prepare(
        self, request: EvaluationRequest, context: callers.Context, *, header: bytes | None = None
    ) -> Prepared:
        """Prepare a request: here where that is quick, else in a thread, in turn.

        header  by which others like it are found

        Raises StartingError before the server is ready, OverloadedError where it is full.
        """
        if not self.ready.is_set():
            after = self.settings.retry_after_s
            raise StartingError(
                f"the server is getting ready; retry after {after} s", retry_after_s=after
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
        building = TurnedWork(
            lambda check: self.preparer.prepare(request, header=header, check=check), turn_s=TURN_S
        )
        claim = callers.claim_of_tables(needs, context)
        admission = self.admission
        memory = admission.memory(needs.memory_bytes, measured=False)
        with memory, admission.turns(claim) as turns, building:
            # The whole of it is a wait of the call that needs the tables.
            while await self._in_turn(Phases(), turns, building.turn):
                pass
        return building.result()

    def refuse_bulk(self, request: EvaluationRequest, method: str) -> None:
        """Raise UseStreamError where a tensor is too large for one message."""
        allowed = self.settings.max_unary_bytes
        _, output = request.resolved()
        for name, spec in (("input", request.input), ("output", output)):
            if spec.wire_bytes > allowed:
                raise UseStreamError(
                    f"{name} is {spec.wire_bytes} bytes; {method} takes {allowed} (its setting "
                    "GRADWIRE_MAX_UNARY_BYTES), EvaluateStream any number",
                    limit="max_unary_bytes",
                    allowed=allowed,
                )

    @contextmanager
    def computing(self, prepared: Prepared, call: Call, *, left: float) -> Generator[Do]:
        """Let a stream in, and give what does a step of it: here if it is small, else in turn.

        left  part of the evaluation that is not done yet
        """
        if prepared.passes_through or self.inline.admits(prepared):
            yield partial(self._at_once, call.phases)
            return
        with self.turns(claim_of(prepared, call.context, left=left, paced=True), call) as do:
            yield do

    @contextmanager
    def turns(self, claim: Claim, call: Call) -> Generator[Do]:
        """Let what claims slots in, and give what does a part of it in a thread, in turn."""
        with self.admission.turns(claim) as turns:
            yield partial(self._in_turn, call.phases, turns)

    async def _in_turn(self, phases: Phases, turns: Turns, work: Callable[[], T]) -> T:
        with phases.spending("queue"):
            slot = await turns.slot()
        with slot, phases.spending("compute"):
            done, outcome = submit(self.pool, partial(_timed, work, turns.claim.deadline))
            slot.until(done)
            try:
                result, seconds = await self._result(done, outcome)
            finally:
                done.cancel()  # which does nothing once it has begun
        turns.spend(seconds)
        return result

    def compute_here(self, phases: Phases, work: Callable[[], T]) -> T:
        """Do what InlineWork admits, on the event loop."""
        began = time.perf_counter()
        result = work()
        ended = time.perf_counter()
        phases.note("compute", began, ended)
        self.inline.spend(ended - began)
        return result

    async def _at_once(self, phases: Phases, work: Callable[[], T]) -> T:
        return self.compute_here(phases, work)

    async def off_loop(self, work: Callable[[], T]) -> T:
        """Do work in the thread pool."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, work)

    async def compute(self, work: Callable[[], T]) -> T:
        """Do work of the backend in the thread pool, out of turn."""
        return await self._result(*submit(self.pool, work))

    def _result(self, done: Future[None], outcome: asyncio.Future[T]) -> Awaitable[T]:
        """Return the outcome of work in a thread, watched where a device does it."""
        return self.device.result(done, outcome) if self.backend.may_wait else outcome


class GradientService:
    """Answers gradwire.v1.GradientService, but for the streams, which streams.py and many.py do."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._requests = encoding.RequestReader()
        self._transit = Transit(workshop.admission, workshop.settings)
        self._operators = v1.ListOperatorsResponse(
            operators=[ops.describe(operator) for operator in ops.OPERATORS.values()]
        )

    async def evaluate(self, metadata: Metadata, _requests: object, context: Context) -> bytes:
        """Evaluate one operator on one small tensor; metadata is what came with the call."""
        message = await self._transit.receive(context)
        call = Call("Evaluate", context, self._workshop.active, sent=metadata)
        return await call.answer(partial(self._evaluate, message, call))

    def _call(self, method: str, context: Context) -> Call:
        return Call(method, context, self._workshop.active)

    async def _evaluate(self, message: bytes | encoding.Malformed, call: Call) -> bytes:
        workshop = self._workshop
        request_id, header, data = self._requests.read(encoding.sound(message))
        call.request_id = codec.read_request_id(request_id.decode())
        prepared = workshop.preparer.find(header)
        if prepared is None:
            prepared = await self._prepare(header, len(data), call)
        else:
            call.note_request(prepared.request, received=len(data))
            _check_length(len(data), prepared.request)
        needed = prepared.message_bytes
        self._transit.check(call.context, needed)
        compute = partial(at_once, prepared, data, workshop.backend)
        is_short = workshop.inline.admits(prepared)
        if is_short and prepared.output.wire_bytes < LEAST_BYTES:
            # Nobody else could take the memory before it is free again.
            workshop.admission.enter(needed)
            return _reply(prepared, workshop.compute_here(call.phases, compute), call)
        workshop.admission.take_memory(needed)
        reply = b""
        try:
            if await self._has_turn(prepared):
                result = workshop.compute_here(call.phases, compute)
            else:
                result = await self._compute(prepared, data, call)
            reply = _reply(prepared, result, call)
        finally:
            self._transit.send(call.context, reply, held=needed)
        return reply

    async def _has_turn(self, prepared: Prepared) -> bool:
        """Wait for a turn of the event loop with time for a short evaluation; False for others."""
        inline = self._workshop.inline
        while inline.is_short(prepared):
            if inline.admits(prepared):
                return True
            await asyncio.sleep(0)
        return False

    async def _prepare(self, header: bytes, length: int, call: Call) -> Prepared:
        with call.phases.spending("receive"):
            decoded = codec.read_request(encoding.request_header(header))
            call.note_request(decoded, received=length)
            self._workshop.refuse_bulk(decoded, "Evaluate")
            _check_length(length, decoded)
        with call.phases.spending("queue"):
            return await self._workshop.prepare(decoded, call.context, header=header)

    async def _compute(self, prepared: Prepared, data: memoryview, call: Call) -> encoding.Bytes:
        """Compute in turns, in a thread."""
        result = np.empty(prepared.output.wire_bytes, np.uint8)
        steps = in_memory(prepared, result, np.frombuffer(data, np.uint8), self._workshop.backend)
        with self._workshop.turns(claim_of(prepared, call.context), call) as do:
            while await do(partial(take_turn, steps)):
                pass
        return result

    async def list_operators(self, _requests: object, context: Context) -> v1.ListOperatorsResponse:
        """List the operators."""
        request = await self._transit.receive(context)
        call = self._call("ListOperators", context)
        return await call.answer(lambda: self._list_operators(request))

    async def _list_operators(self, request: object) -> v1.ListOperatorsResponse:
        encoding.sound(request)
        return self._operators

    async def get_server_info(
        self, _requests: object, context: Context
    ) -> v1.GetServerInfoResponse:
        """Give version, backend and limits."""
        request = await self._transit.receive(context)
        call = self._call("GetServerInfo", context)
        return await call.answer(lambda: self._get_server_info(request))

    async def _get_server_info(self, request: object) -> v1.GetServerInfoResponse:
        encoding.sound(request)
        workshop = self._workshop
        return server_info(workshop.settings, workshop.backend.name, workshop.backend_reason)


def _reply(prepared: Prepared, result: encoding.Bytes, call: Call) -> bytes:
    began = time.perf_counter()
    reply = encoding.response(call.request_id, prepared.response_header, result.data)
    call.phases.note("send", began, time.perf_counter())
    call.sent_bytes = len(result)
    return reply


def _check_length(length: int, request: EvaluationRequest) -> None:
    needed = request.input.wire_bytes
    if length != needed:
        raise InvalidDataError("data", f"{length} bytes; input's descriptor takes {needed}")


def _timed(work: Callable[[], T], deadline: float) -> tuple[T, float]:
    began = time.perf_counter()
    with computing_until(deadline):
        return work(), time.perf_counter() - began


def take_turn(steps: Iterator[object]) -> bool:
    """Do as many steps as make a turn, at least one; return whether there may be more."""
    until = time.perf_counter() + TURN_S
    return any(time.perf_counter() >= until for _ in steps)
