"""The gRPC face of the server: one handler per RPC, each a thin shell around the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import grpc
import numpy as np
from google.protobuf.duration_pb2 import Duration

from gradwire import ops, v1
from gradwire_server import encoding, wire
from gradwire_server.backends import Backend
from gradwire_server.callers import claim_of
from gradwire_server.calls import ActiveCalls, Call, Context
from gradwire_server.engine import (
    NUMERICS_VERSION,
    TURN_S,
    Admission,
    Evaluation,
    EvaluationRequest,
    Intake,
    Preparer,
    TensorSpec,
    Turns,
)
from gradwire_server.errors import InvalidDataError, StartingError, UseStreamError
from gradwire_server.phases import Phases
from gradwire_server.settings import Settings
from gradwire_server.version import VERSION

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
    intake: Intake
    pool: ThreadPoolExecutor
    active: ActiveCalls
    ready: asyncio.Event
    draining: asyncio.Event
    # Long tables take several times their memory while they are built: one at a time.
    building: asyncio.Lock

    async def prepare(self, request: EvaluationRequest) -> Evaluation:
        """Lower a request, off the event loop where its tables take long to build.

        Raises StartingError before the server is ready.
        """
        if not self.ready.is_set():
            after = self.settings.retry_after_s
            raise StartingError(
                f"the server is getting ready; retry after {after} s", retry_after_s=after
            )
        if self.preparer.is_quick(request):
            return self.preparer.prepare(request)
        async with self.building:
            return await self.off_loop(lambda: self.preparer.prepare(request))

    @contextmanager
    def computing(
        self, evaluation: Evaluation, call: Call, *, left: float = 1.0, paced: bool = False
    ) -> Generator[Do]:
        """Let an evaluation in, and give what does a part of it: here if it is small, else in turn.

        left   part of the evaluation that is not done yet
        paced  whether the caller sends the input step by step
        """
        no_work = paced and evaluation.passes_through
        if no_work or evaluation.work <= self.settings.inline_work:
            yield partial(_at_once, call.phases)
            return
        claim = claim_of(evaluation, call.context, left=left, paced=paced)
        with self.admission.turns(claim) as turns:
            yield partial(self._in_turn, call.phases, turns)

    async def _in_turn(self, phases: Phases, turns: Turns, work: Callable[[], T]) -> T:
        with phases.spending("queue"):
            slot = await turns.slot()
        with slot, phases.spending("compute"):
            done = self.pool.submit(_timed, work, turns)
            slot.until(done)
            return await asyncio.wrap_future(done)

    async def off_loop(self, work: Callable[[], T]) -> T:
        """Do work in the thread pool."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, work)


class GradientService:
    """Answers gradwire.v1.GradientService, but for the stream, which streams.py does."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._operators = v1.ListOperatorsResponse(
            operators=[ops.describe(operator) for operator in ops.OPERATORS.values()]
        )

    async def evaluate(
        self, request: v1.EvaluateRequest | encoding.Malformed, context: Context
    ) -> v1.EvaluateResponse:
        """Evaluate one operator on one small tensor."""
        call = self._call("Evaluate", context)
        return await call.answer(lambda: self._evaluate(encoding.sound(request), call))

    def _call(self, method: str, context: Context) -> Call:
        return Call(method, context, self._workshop.active)

    async def _evaluate(self, request: v1.EvaluateRequest, call: Call) -> v1.EvaluateResponse:
        with call.phases.spending("receive"):
            decoded, output = self._decode(request, call)
        with call.phases.spending("queue"):
            evaluation = await self._workshop.prepare(decoded)
        # Request and result are there more than once: as grpc has them, in messages, as bytes.
        copies = 2 * evaluation.input.wire_bytes + 3 * evaluation.output.wire_bytes
        with self._workshop.admission.memory(evaluation.memory_bytes + copies):
            data = await self._compute(evaluation, np.frombuffer(request.data, np.uint8), call)
        return v1.EvaluateResponse(
            request_id=call.request_id, output=wire.write_descriptor(output), data=data
        )

    def _decode(
        self, request: v1.EvaluateRequest, call: Call
    ) -> tuple[EvaluationRequest, TensorSpec]:
        call.request_id = wire.read_request_id(request.request_id) or call.request_id
        decoded = wire.read_request(request)
        call.facts |= {"operator": decoded.operator, "sizes": decoded.input.sizes}
        self._refuse_bulk("input", decoded.input.wire_bytes)
        _, output = decoded.resolved()
        self._refuse_bulk("output", output.wire_bytes)
        if len(request.data) != decoded.input.wire_bytes:
            raise InvalidDataError(
                "data",
                f"{len(request.data)} bytes; input's descriptor takes {decoded.input.wire_bytes}",
            )
        return decoded, output

    def _refuse_bulk(self, name: str, wire_bytes: int) -> None:
        allowed = self._workshop.settings.max_unary_bytes
        if wire_bytes > allowed:
            raise UseStreamError(
                f"{name} is {wire_bytes} bytes; Evaluate takes {allowed} (its setting "
                "GRADWIRE_MAX_UNARY_BYTES), EvaluateStream any number",
                limit="max_unary_bytes",
                allowed=allowed,
            )

    async def _compute(self, evaluation: Evaluation, data: encoding.Bytes, call: Call) -> bytes:
        if evaluation.work <= self._workshop.settings.inline_work:
            with call.phases.spending("compute"):
                return evaluation.run_whole(data, self._workshop.backend)
        result = np.empty(evaluation.output.wire_bytes, np.uint8)
        steps = evaluation.run_into(result, data, self._workshop.backend)
        with self._workshop.computing(evaluation, call) as do:
            while await do(partial(_take_turn, steps)):
                pass
        return result.tobytes()

    async def list_operators(
        self, request: v1.ListOperatorsRequest | encoding.Malformed, context: Context
    ) -> v1.ListOperatorsResponse:
        """List the operators."""
        return await self._call("ListOperators", context).answer(self._list_operators)

    async def _list_operators(self) -> v1.ListOperatorsResponse:
        return self._operators

    async def get_server_info(
        self, request: v1.GetServerInfoRequest | encoding.Malformed, context: Context
    ) -> v1.GetServerInfoResponse:
        """Give version, backend and limits."""
        return await self._call("GetServerInfo", context).answer(self._get_server_info)

    async def _get_server_info(self) -> v1.GetServerInfoResponse:
        workshop = self._workshop
        return v1.GetServerInfoResponse(
            version=VERSION,
            numerics_version=NUMERICS_VERSION,
            backend=workshop.backend.name,
            backend_reason=workshop.backend_reason,
            operators=list(ops.OPERATORS),
            limits=_limits(workshop.settings),
        )


def _timed(work: Callable[[], T], turns: Turns) -> T:
    began = time.perf_counter()
    try:
        return work()
    finally:
        turns.spend(time.perf_counter() - began)


async def _at_once(phases: Phases, work: Callable[[], T]) -> T:
    with phases.spending("compute"):
        return work()


def _take_turn(steps: Iterator[object]) -> bool:
    """Do as many steps as make a turn, at least one; return whether there may be more."""
    until = time.perf_counter() + TURN_S
    return any(time.perf_counter() >= until for _ in steps)


def _limits(settings: Settings) -> v1.Limits:
    limits = v1.Limits()
    for name in limits.DESCRIPTOR.fields_by_name:
        if hasattr(settings, name):
            setattr(limits, name, getattr(settings, name))
    stall = Duration()
    stall.FromNanoseconds(int(settings.stall_timeout_s * 1e9))
    limits.stall_timeout.CopyFrom(stall)
    return limits


def handlers(service: GradientService, evaluate_stream: Any) -> grpc.GenericRpcHandler:
    """Register every RPC with its serializers."""
    unary = grpc.unary_unary_rpc_method_handler
    return grpc.method_handlers_generic_handler(
        NAME,
        {
            "Evaluate": unary(service.evaluate, *encoding.EVALUATE),
            "EvaluateStream": grpc.stream_stream_rpc_method_handler(
                evaluate_stream, *encoding.EVALUATE_STREAM
            ),
            "ListOperators": unary(service.list_operators, *encoding.LIST_OPERATORS),
            "GetServerInfo": unary(service.get_server_info, *encoding.GET_SERVER_INFO),
        },
    )
