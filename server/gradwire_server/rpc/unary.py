"""Unary evaluations, and the unary RPCs of gradwire.v1.GradientService."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

import numpy as np
from google.protobuf.message import Message

from gradwire import ops, v1
from gradwire._wire import checksums
from gradwire_server.config.settings import Settings
from gradwire_server.config.version import VERSION
from gradwire_server.engine import (
    NUMERICS_VERSION,
    EvaluationRequest,
    Prepared,
    Workbench,
    at_once,
    in_memory,
)
from gradwire_server.errors import InvalidDataError, InvalidFieldError, UnknownSegmentError
from gradwire_server.rpc import codec
from gradwire_server.rpc.call_context import ActiveCall, Context
from gradwire_server.rpc.message_budget import MessageBudget
from gradwire_server.rpc.segments import Segments
from gradwire_server.rpc.service_context import ServiceContext
from gradwire_server.rpc.status_map import duration

NAME = "gradwire.v1.GradientService"

Call = TypeVar("Call", bound=ActiveCall)


class UnaryEvaluator(ABC, Generic[Call]):
    """Evaluates tensors that each fit one message, in any protocol.

    Call  the call in flight
    """

    def __init__(self, service: ServiceContext, budget: MessageBudget) -> None:
        self._service = service
        self._budget = budget
        self._workbench = Workbench(service.backend)

    @abstractmethod
    def _split(self, message: bytes, call: Call) -> tuple[bytes, memoryview]:
        """Return the header and the data of an EvaluateRequest.

        Set the call's request_id.
        """

    @abstractmethod
    def _check_size(self, request: EvaluationRequest, call: Call) -> None:
        """Raise MessageTooLargeError if a tensor is too large for one message."""

    def _result(self, prepared: Prepared, _call: Call) -> codec.Bytes:
        """Return memory for the result of a long evaluation."""
        return np.empty(prepared.output.wire_bytes, np.uint8)

    @abstractmethod
    def _reply(self, prepared: Prepared, result: memoryview, call: Call) -> bytes:
        """Return the message that carries a result."""

    async def _answer(self, message: bytes | Exception, call: Call) -> bytes:
        """Evaluate one message, as received; the call ends with its status."""
        try:
            header, data = self._split(codec.well_formed(message), call)
            prepared = self._service.preparer.find(header)
            reply = None if prepared is None else self._evaluate_now(prepared, data, call)
        except Exception as error:  # noqa: BLE001 - the caller gets a status
            nothing: bytes = await call.refuse(error)
            return nothing
        if reply is None:
            return await call.answer(partial(self._evaluate, header, data, prepared, call))
        call.succeed()
        return reply

    def _evaluate_now(self, prepared: Prepared, data: memoryview, call: Call) -> bytes | None:
        """Return the reply of a short evaluation.

        None if it has to wait, or takes memory.
        """
        service, needed = self._service, prepared.message_bytes
        call.note_request(prepared.request, received=len(data))
        codec.check_data_length(len(data), prepared.request)
        if not self._workbench.takes(prepared) or not service.inline.admits(prepared):
            return None
        if service.active.end is not None:
            return None
        self._budget.check(call.context, needed)
        # No other call can take the memory before it is free again.
        service.admission.enter(needed)
        began = time.perf_counter()
        if self._workbench.backend is not service.backend:
            self._workbench = Workbench(service.backend)
        result = self._workbench.run(prepared, data)
        computed = time.perf_counter()
        reply = self._reply(prepared, result, call)
        call.sent_bytes = len(result)
        call.phases.note("compute", began, computed)
        call.phases.note("send", computed, time.perf_counter())
        prepared.measured.note(computed - began)
        service.inline.spend(computed - began)
        return reply

    async def _evaluate(
        self, header: bytes, data: memoryview, prepared: Prepared | None, call: Call
    ) -> bytes:
        service = self._service
        if prepared is None:
            prepared = await self._prepare(header, len(data), call)
        else:
            self._check_size(prepared.request, call)  # it may have been prepared for another RPC
        needed = prepared.message_bytes
        self._budget.check(call.context, needed)
        service.admission.take_memory(needed)
        reply = b""
        try:
            if await self._has_turn(prepared):
                compute = partial(at_once, prepared, data, service.backend)
                result = call.compute_inline(compute, service.inline)
            else:
                result = await self._compute(prepared, data, call)
            began = time.perf_counter()
            reply = self._reply(prepared, result.data, call)
            call.phases.note("send", began, time.perf_counter())
            call.sent_bytes = len(result)
        finally:
            self._budget.send(call.context, reply, held=needed)
        return reply

    async def _has_turn(self, prepared: Prepared) -> bool:
        """Wait for a loop iteration with time for a short evaluation.

        False for long ones.
        """
        inline = self._service.inline
        while inline.is_short(prepared):
            if inline.admits(prepared):
                return True
            await asyncio.sleep(0)
        return False

    async def _prepare(self, header: bytes, length: int, call: Call) -> Prepared:
        with call.phases.spending("receive"):
            decoded = codec.read_request(codec.request_header(header))
            call.note_request(decoded, received=length)
            self._check_size(decoded, call)
            codec.check_data_length(length, decoded)
        with call.phases.spending("queue"):
            return await self._service.prepare(decoded, call.context, header=header)

    async def _compute(self, prepared: Prepared, data: memoryview, call: Call) -> codec.Bytes:
        """Compute in turns, in a thread."""
        result = self._result(prepared, call)
        steps = in_memory(prepared, result, np.frombuffer(data, np.uint8), self._service.backend)
        await self._service.compute_steps(steps, prepared, call)
        return result


class GradientService(UnaryEvaluator[ActiveCall]):
    """The unary RPCs of gradwire.v1.GradientService."""

    def __init__(self, service: ServiceContext, budget: MessageBudget, segments: Segments) -> None:
        super().__init__(service, budget)
        self._segments = segments
        self._operators = v1.ListOperatorsResponse(
            operators=[ops.describe(operator) for operator in ops.OPERATORS.values()]
        )

    async def evaluate(self, _requests: object, context: Context) -> bytes:
        """Evaluate one operator on one small tensor."""
        message = await self._budget.receive(context)
        call = ActiveCall("Evaluate", context, self._service.active)
        return await self._answer(message, call)

    def _split(self, message: bytes, call: ActiveCall) -> tuple[bytes, memoryview]:
        (request_id, header, data), call.checksum = codec.read_evaluate(message)
        call.take_id(request_id.decode())
        return header, data

    def _check_size(self, request: EvaluationRequest, call: ActiveCall) -> None:
        self._service.refuse_bulk(request, "Evaluate")

    def _reply(self, prepared: Prepared, result: memoryview, call: ActiveCall) -> bytes:
        header = prepared.response_header
        return codec.response(call.request_id, header, result, after=call.checksum)

    async def evaluate_shared(self, _requests: object, context: Context) -> bytes:
        """Evaluate one operator on one tensor in shared memory."""
        message = await self._budget.receive(context)
        call = ActiveCall("EvaluateShared", context, self._service.active)
        return await call.answer(partial(self._evaluate_shared, message, call))

    async def _evaluate_shared(self, message: bytes | Exception, call: ActiveCall) -> bytes:
        request = codec.parse(v1.EvaluateSharedRequest, codec.well_formed(message))
        codec.refuse_unknown_fields(request, "")
        for field in ("input", "output"):
            codec.refuse_unknown_fields(getattr(request, field), field)
        call.take_id(request.evaluation.request_id)
        request.evaluation.ClearField("request_id")
        if request.evaluation.data:
            raise InvalidDataError("evaluation.data", "given; the input's range has the bytes")
        prepared = await self._prepare_shared(request.evaluation, call)
        data, result = self._views(request, prepared)
        service = self._service
        steps = in_memory(prepared, result, data, service.backend)
        with service.admission.memory(prepared.memory_bytes):
            await service.compute_steps(steps, prepared, call)
        call.sent_bytes = len(result)
        output = codec.write_descriptor(prepared.output)
        reply = v1.EvaluateSharedResponse(request_id=call.request_id, output=output)
        return reply.SerializeToString()

    async def _prepare_shared(self, evaluation: v1.EvaluateRequest, call: ActiveCall) -> Prepared:
        header = evaluation.SerializeToString(deterministic=True)
        prepared = self._service.preparer.find(header)
        if prepared is None:
            with call.phases.spending("queue"):
                decoded = codec.read_request(evaluation)
                prepared = await self._service.prepare(decoded, call.context, header=header)
        call.note_request(prepared.request, received=prepared.input.wire_bytes)
        return prepared

    def _views(
        self, request: v1.EvaluateSharedRequest, prepared: Prepared
    ) -> tuple[codec.Bytes, codec.Bytes]:
        """Return the bytes of the input and of the result.

        They must not overlap.
        """
        if not self._segments.are_taken:
            raise UnknownSegmentError("input.handle: this server takes no shared memory")
        data = self._segments.view(request.input, "input", prepared.input.wire_bytes)
        result = self._segments.view(request.output, "output", prepared.output.wire_bytes)
        if np.may_share_memory(data, result):
            raise InvalidFieldError("output.offset", "the result's range overlaps the input's")
        return data, result

    async def list_operators(self, _requests: object, context: Context) -> bytes:
        """List the operators."""
        return await self._tell(
            "ListOperators", v1.ListOperatorsRequest, context, lambda: self._operators
        )

    async def get_server_info(self, _requests: object, context: Context) -> bytes:
        """Return version, backend and limits."""

        def info() -> v1.GetServerInfoResponse:
            service, in_use = self._service, self._service.in_use
            told = server_info(service.settings, in_use.backend.name, in_use.reason)
            told.backend_to_come = in_use.to_come
            told.shared_memory = self._segments.are_taken and context.peer().startswith("unix:")
            return told

        return await self._tell("GetServerInfo", v1.GetServerInfoRequest, context, info)

    async def _tell(
        self, method: str, kind: type[Message], context: Context, reply: Callable[[], Message]
    ) -> bytes:
        message = await self._budget.receive(context)

        async def answer() -> bytes:
            codec.parse(kind, codec.well_formed(message))
            return reply().SerializeToString()

        return await ActiveCall(method, context, self._service.active).answer(answer)


def server_info(settings: Settings, backend: str, backend_reason: str) -> v1.GetServerInfoResponse:
    """Return a server's version, backend and limits."""
    return v1.GetServerInfoResponse(
        version=VERSION,
        numerics_version=NUMERICS_VERSION,
        backend=backend,
        backend_reason=backend_reason,
        operators=list(ops.OPERATORS),
        limits=_limits(settings),
        checksums=checksums.AVAILABLE,
    )


def _limits(settings: Settings) -> v1.Limits:
    limits = v1.Limits()
    for name in limits.DESCRIPTOR.fields_by_name:
        if hasattr(settings, name):
            setattr(limits, name, getattr(settings, name))
    limits.stall_timeout.CopyFrom(duration(settings.stall_timeout_s))
    return limits
