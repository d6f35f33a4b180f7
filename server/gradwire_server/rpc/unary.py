"""Unary evaluations, and the unary RPCs of gradwire.v1.GradientService."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
from google.protobuf.message import Message

from gradwire import ops, v1
from gradwire._wire import checksums, framing
from gradwire._wire.environment import VERSION
from gradwire_server.config.settings import Settings
from gradwire_server.engine import NUMERICS_VERSION, EvaluationRequest, Prepared, Workbench, at_once
from gradwire_server.errors import InvalidDataError, InvalidFieldError
from gradwire_server.rpc import codec
from gradwire_server.rpc.call_context import UNARY, ActiveCall, Context, refusing
from gradwire_server.rpc.message_budget import MessageBudget
from gradwire_server.rpc.segments import Segments
from gradwire_server.rpc.service_context import ServiceContext
from gradwire_server.rpc.status_map import duration

NAME = "gradwire.v1.GradientService"

Call = TypeVar("Call", bound=ActiveCall)


class UnaryEvaluator(ABC, Generic[Call]):
    """Evaluates tensors that each fit one message, in any protocol.

    call  type of the calls in flight
    """

    def __init__(self, service: ServiceContext, budget: MessageBudget, call: type[Call]) -> None:
        self._service = service
        self._call = call
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

    def _handler(
        self, method: str, answer: Callable[[bytes | Exception, Call], Awaitable[bytes]]
    ) -> Any:
        """Return the handler of a unary method."""

        # A function: grpc.aio inspects it twice per call, and takes longer for partial objects.
        async def respond(_requests: object, context: Context) -> bytes:
            message = await self._budget.receive(context)
            return await answer(message, self._call(method, context, self._service.active))

        return UNARY(respond)

    def _responding(
        self, method: str, kind: type[Message], answer: Callable[[Any, Call], Awaitable[Message]]
    ) -> Any:
        """Return the handler of a method whose messages protobuf parses."""

        async def respond(message: bytes | Exception, call: Call) -> bytes:
            async def work() -> bytes:
                reply = await answer(codec.parse(kind, codec.well_formed(message)), call)
                return reply.SerializeToString()

            return await call.answer(work)

        return self._handler(method, respond)

    async def _answer(self, message: bytes | Exception, call: Call) -> bytes:
        """Evaluate one message, as received; the call ends with its status."""
        try:
            header, data = self._split(codec.well_formed(message), call)
            prepared = self._service.preparer.find(header)
            reply = None if prepared is None else self._evaluate_now(prepared, data, call)
        except Exception as error:  # noqa: BLE001 - the caller gets a status
            return await call.answer(partial(refusing, error))
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
        if not self._workbench.takes(prepared) or not service.inline.most(prepared):
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
        service, inline = self._service, self._service.inline
        if prepared is None:
            with call.phases.spending("receive"):
                decoded = codec.read_header(header)
                call.note_request(decoded, received=len(data))
                self._check_size(decoded, call)
                codec.check_data_length(len(data), decoded)
            with call.phases.spending("queue"):
                prepared = await service.prepare(decoded, call, header=header)
        else:
            self._check_size(prepared.request, call)  # it may have been prepared for another RPC
        needed = prepared.message_bytes
        self._budget.check(call.context, needed)
        service.admission.take_memory(needed)
        reply = b""
        try:
            # Iterations of the event loop are no event.
            while inline.is_short(prepared) and not inline.most(prepared):  # noqa: ASYNC110
                await asyncio.sleep(0)
            if inline.is_short(prepared):
                compute = partial(at_once, prepared, data, service.backend)
                result = call.compute_inline(compute, inline)
            else:
                result = self._result(prepared, call)
                await service.compute(prepared, np.frombuffer(data, np.uint8), result, call)
            began = time.perf_counter()
            reply = self._reply(prepared, result.data, call)
            call.phases.note("send", began, time.perf_counter())
            call.sent_bytes = len(result)
        finally:
            self._budget.send(call.context, reply, held=needed)
        return reply


class GradientService(UnaryEvaluator[ActiveCall]):
    """The unary RPCs of gradwire.v1.GradientService."""

    def __init__(self, service: ServiceContext, budget: MessageBudget, segments: Segments) -> None:
        super().__init__(service, budget, ActiveCall)
        self._segments = segments

    def handlers(self) -> dict[str, Any]:
        """Return the handlers of the unary methods, by path."""
        answers: dict[str, tuple[type[Message], Any]] = {
            "EvaluateShared": (v1.EvaluateSharedRequest, self._evaluate_shared),
            "ListOperators": (v1.ListOperatorsRequest, self._list_operators),
            "GetServerInfo": (v1.GetServerInfoRequest, self._get_server_info),
        }
        others = {
            f"/{NAME}/{method}": self._responding(method, *told) for method, told in answers.items()
        }
        return {f"/{NAME}/Evaluate": self._handler("Evaluate", self._answer), **others}

    def _split(self, message: bytes, call: ActiveCall) -> tuple[bytes, memoryview]:
        (request_id, header, data), call.checksum = codec.read_evaluate(message)
        call.take_id(request_id.decode())
        return header, data

    def _check_size(self, request: EvaluationRequest, call: ActiveCall) -> None:
        self._service.refuse_bulk(request, "Evaluate")

    def _reply(self, prepared: Prepared, result: memoryview, call: ActiveCall) -> bytes:
        request_id, header = call.request_id.encode("ascii"), prepared.response_header
        return framing.evaluation_frame(request_id, header, result, call.checksum)[0]

    async def _evaluate_shared(
        self, request: v1.EvaluateSharedRequest, call: ActiveCall
    ) -> v1.EvaluateSharedResponse:
        """Evaluate one operator on one tensor in shared memory."""
        service = self._service
        codec.refuse_unknown_fields(request)
        for field in ("input", "output"):
            codec.refuse_unknown_fields(getattr(request, field), field)
        call.take_id(request.evaluation.request_id)
        request.evaluation.ClearField("request_id")
        if request.evaluation.data:
            raise InvalidDataError("evaluation.data", "given; the input's range has the bytes")
        header = request.evaluation.SerializeToString(deterministic=True)
        with call.phases.spending("queue"):
            prepared = await service.prepared(header, call)
        call.note_request(prepared.request, received=prepared.input.wire_bytes)
        data = self._segments.view(request.input, "input", prepared.input.wire_bytes)
        result = self._segments.view(request.output, "output", prepared.output.wire_bytes)
        if np.may_share_memory(data, result):
            raise InvalidFieldError("output.offset", "the result's range overlaps the input's")
        with service.admission.memory(prepared.memory_bytes):
            await service.compute(prepared, data, result, call)
        call.sent_bytes = len(result)
        output = codec.write_descriptor(prepared.output)
        return v1.EvaluateSharedResponse(request_id=call.request_id, output=output)

    async def _list_operators(self, _request: object, _call: object) -> v1.ListOperatorsResponse:
        return v1.ListOperatorsResponse(operators=map(ops.describe, ops.OPERATORS.values()))

    async def _get_server_info(
        self, _request: object, call: ActiveCall
    ) -> v1.GetServerInfoResponse:
        service = self._service
        return v1.GetServerInfoResponse(
            version=VERSION,
            numerics_version=NUMERICS_VERSION,
            backend=service.backend.name,
            backend_reason=service.reason,
            backend_to_come=service.to_come,
            operators=list(ops.OPERATORS),
            limits=_limits(service.settings),
            checksums=checksums.AVAILABLE,
            shared_memory=self._segments.are_taken and call.context.peer().startswith("unix:"),
        )


def _limits(settings: Settings) -> v1.Limits:
    names = (name for name in v1.Limits.DESCRIPTOR.fields_by_name if hasattr(settings, name))
    limits: dict[str, int] = {name: getattr(settings, name) for name in names}
    return v1.Limits(**limits, stall_timeout=duration(settings.stall_timeout_s))
