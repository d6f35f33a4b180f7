"""The EvaluateShared RPC: evaluations on tensors in memory that the caller shares."""

from __future__ import annotations

from functools import partial

import numpy as np

from gradwire import v1
from gradwire_server.engine import Prepared, in_memory
from gradwire_server.errors import InvalidDataError, InvalidFieldError
from gradwire_server.rpc import codec
from gradwire_server.rpc.call_context import ActiveCall, Context
from gradwire_server.rpc.message_budget import MessageBudget
from gradwire_server.rpc.segments import Segments
from gradwire_server.rpc.service_context import ServiceContext


class SharedService:
    """Handler of EvaluateShared, on registered memory."""

    def __init__(self, service: ServiceContext, budget: MessageBudget, segments: Segments) -> None:
        self._service = service
        self._budget = budget
        self._segments = segments

    async def evaluate_shared(self, _requests: object, context: Context) -> bytes:
        """Evaluate one operator on one tensor in shared memory."""
        message = await self._budget.receive(context)
        call = ActiveCall("EvaluateShared", context, self._service.active)
        return await call.answer(partial(self._evaluate, message, call))

    async def _evaluate(self, message: bytes | Exception, call: ActiveCall) -> bytes:
        request = codec.parse(v1.EvaluateSharedRequest, codec.well_formed(message))
        codec.refuse_unknown_fields(request, "")
        for field in ("input", "output"):
            codec.refuse_unknown_fields(getattr(request, field), field)
        call.take_id(request.evaluation.request_id)
        request.evaluation.ClearField("request_id")
        if request.evaluation.data:
            raise InvalidDataError("evaluation.data", "given; the input's range has the bytes")
        prepared = await self._prepare(request.evaluation, call)
        data, result = self._views(request, prepared)
        service = self._service
        steps = in_memory(prepared, result, data, service.backend)
        with service.admission.memory(prepared.memory_bytes):
            await service.compute_steps(steps, prepared, call)
        call.sent_bytes = len(result)
        output = codec.write_descriptor(prepared.output)
        reply = v1.EvaluateSharedResponse(request_id=call.request_id, output=output)
        return reply.SerializeToString()

    async def _prepare(self, evaluation: v1.EvaluateRequest, call: ActiveCall) -> Prepared:
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
        data = self._segments.view(request.input, "input", prepared.input.wire_bytes)
        result = self._segments.view(request.output, "output", prepared.output.wire_bytes)
        if np.may_share_memory(data, result):
            raise InvalidFieldError("output.offset", "the result's range overlaps the input's")
        return data, result
