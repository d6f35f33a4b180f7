"""Handlers of inference.GRPCInferenceService."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Never, TypeAlias

import grpc
from google.protobuf.message import Message

from gradwire._wire.environment import VERSION
from gradwire._wire.framing import varint
from gradwire_server.engine import NUMERICS_VERSION, EvaluationRequest, Prepared, exceeded
from gradwire_server.errors import RequestLimitError, UnknownFieldError, UnsupportedCallError
from gradwire_server.rpc import codec
from gradwire_server.rpc.call_context import STREAM, ActiveCall, Context
from gradwire_server.rpc.mapped_files import Range, Regions
from gradwire_server.rpc.message_budget import MessageBudget
from gradwire_server.rpc.open_inference.descriptors import NAME, SERVICE, message
from gradwire_server.rpc.open_inference.requests import PLATFORM, Inference, Model, Models, renamed
from gradwire_server.rpc.service_context import ServiceContext
from gradwire_server.rpc.status_map import EncodedStatus
from gradwire_server.rpc.streaming import ServedStream
from gradwire_server.rpc.unary import UnaryEvaluator
from gradwire_server.security.authorization import is_local

# Fields of the response to a request.
Answer: TypeAlias = Callable[[Any], dict[str, Any]]

# Bytes of a response beside its contents, at most.
_RESPONSE_BYTES = 4096
_StreamResponse = message("ModelStreamInferResponse")


class InferCall(ActiveCall):
    """One call in flight, with the protocol's statuses and names of fields.

    inference     the request, once it is read
    given_id      id that the caller chose; may be empty
    source, sink  shared memory of the input and of the result, if they are there
    """

    inference: Inference
    given_id = ""
    source: Range | None = None
    sink: Range | None = None

    def succeed(self) -> None:
        """End the call with OK; clients read no trailing metadata."""
        self._finish(self._active.success_level, "OK")

    def _status(self, error: Exception) -> EncodedStatus:
        failed = super()._status(renamed(error))
        if isinstance(error, RequestLimitError | UnknownFieldError):
            return replace(failed, status="INVALID_ARGUMENT")
        return failed

    def _finish(self, level: int, status: str, *given: Any, **named: Any) -> None:
        super()._finish(level, status, *given, **named)
        if hasattr(self, "inference"):
            duration_s = time.monotonic() - self._started
            self.inference.model.note(self.phases, duration_s, succeeded=status == "OK")

    def check_local(self) -> None:
        """Raise UnsupportedCallError unless the caller is on this machine."""
        if not is_local(self.context.peer()):
            raise UnsupportedCallError("shared memory takes callers on the server's machine")


class InferenceService(UnaryEvaluator[InferCall]):
    """All handlers of the service."""

    def __init__(self, service: ServiceContext, budget: MessageBudget) -> None:
        super().__init__(service, budget, InferCall)
        self._models = Models(service.settings.named_models)
        self._regions = Regions(service.settings)

    def handlers(self) -> dict[str, Any]:
        """Return the handlers of all methods, by path."""
        answers = self._answers()
        found = dict[str, Any]()
        for method in SERVICE.methods:
            answer = partial(self._control, method, answers.get(method.name, _refuse))
            kind = message(method.input_type.name)
            found[f"/{NAME}/{method.name}"] = self._responding(method.name, kind, answer)
        found[f"/{NAME}/ModelInfer"] = self._handler("ModelInfer", self._answer)
        found[f"/{NAME}/ModelStreamInfer"] = STREAM(self._stream)
        return found

    async def infer_item(self, received: bytes, context: Context) -> bytes:
        """Answer one message of a stream, whose status stays its own."""
        failures = list[str]()
        item: Any = SimpleNamespace(
            peer=context.peer,
            peer_identities=context.peer_identities,
            time_remaining=context.time_remaining,
            invocation_metadata=context.invocation_metadata,
            set_code=_ignore,
            set_details=failures.append,
            set_trailing_metadata=_ignore,
            # The reply is written before the next message is read.
            add_done_callback=_call_now,
        )
        reply = await self._answer(received, InferCall("ModelInfer", item, self._service.active))
        if failures:
            return bytes(_StreamResponse(error_message=failures[0]).SerializeToString())
        # Field 2, infer_response.
        return b"".join((b"\x12", varint(len(reply)), reply))

    async def _stream(self, _requests: object, context: Context) -> None:
        await InferStream(self, self._service, context).answer()

    def _split(self, message: bytes, call: InferCall) -> tuple[bytes, memoryview]:
        request_id, inference, data = self._models.read(message)
        call.take_id(request_id)
        call.given_id, call.inference = request_id, inference
        if inference.sink or inference.source:
            call.check_local()
        if inference.sink:
            call.sink = self._regions.find("outputs.y", inference.sink)
        if inference.source:
            call.source = self._regions.find("inputs.x", inference.source)
            data = call.source.data.data
        return inference.header, data

    def _check_size(self, request: EvaluationRequest, call: InferCall) -> None:
        needed = request.resolved().wire_bytes
        allowed = self._service.settings.max_message_bytes - _RESPONSE_BYTES
        if needed > allowed and call.sink is None:
            came = f"outputs.y is {needed} bytes, and not in shared memory"
            raise exceeded(came, "max_message_bytes", allowed)

    def _result(self, prepared: Prepared, call: InferCall) -> codec.Bytes:
        if call.sink is not None and call.sink.takes_result(call.source):
            return call.sink.data
        return super()._result(prepared, call)

    def _reply(self, prepared: Prepared, result: memoryview, call: InferCall) -> bytes:
        if call.sink is not None:
            call.sink.store(result)
            call.sink.region.check("outputs.y")
        if call.source is not None:
            call.source.region.check("inputs.x")
        return call.inference.reply(call.given_id, result)

    async def _control(
        self, method: Any, answer: Answer, request: Message, call: InferCall
    ) -> Message:
        """Answer a call without tensors."""
        codec.refuse_unknown_fields(request)
        if method.name.startswith("SystemSharedMemory"):
            call.check_local()
        reply: Message = message(method.output_type.name)(**answer(request))
        return reply

    def _answers(self) -> dict[str, Answer]:
        """Return the functions that answer calls without tensors."""
        models, regions, ready = self._models, self._regions, self._service.ready.is_set
        extensions = ["model_configuration", "model_repository", "statistics"]
        extensions += ["system_shared_memory"] * bool(self._service.settings.open_inference_memory)
        server = {"name": PLATFORM, "version": VERSION, "extensions": extensions}

        def find(asked: Any) -> Model:
            return models.find(asked.name, asked.version)

        def statistics(asked: Any) -> dict[str, Any]:
            """Tell them of one model, or of all for an empty name."""
            told = [find(asked)] if asked.name else models.values()
            return {"model_stats": [each.statistics() for each in told]}

        def index(asked: Any) -> dict[str, Any]:
            state = {"version": NUMERICS_VERSION, "state": "READY"}
            listed = models if ready() or not asked.ready else ()
            return {"models": [{"name": name, **state} for name in listed]}

        return {
            "ServerLive": lambda _: {"live": True},
            "ServerReady": lambda _: {"ready": ready()},
            "ModelReady": lambda asked: {"ready": bool(find(asked)) and ready()},
            "ServerMetadata": lambda _: server,
            "ModelMetadata": lambda asked: find(asked).metadata,
            "ModelConfig": lambda asked: {"config": find(asked).config},
            "ModelStatistics": statistics,
            "RepositoryIndex": index,
            "SystemSharedMemoryStatus": regions.statuses,
            "SystemSharedMemoryRegister": regions.register,
            "SystemSharedMemoryUnregister": regions.unregister,
            # There are no regions to forget: perf_analyzer ends where this fails.
            "CudaSharedMemoryUnregister": lambda _: {},
        }


def _refuse(request: Any) -> Never:
    raise UnsupportedCallError(
        f"{request.DESCRIPTOR.name.removesuffix('Request')}: this server has no CUDA shared "
        "memory, loads no models, and takes settings of its log and traces when it starts"
    )


def _call_now(sent: Callable[[object], object]) -> None:
    sent(None)


def _ignore(_given: object) -> None:
    """Leave a stream's own code and trailing metadata."""


class InferStream(ServedStream):
    """One ModelStreamInfer: messages are answered one after another."""

    METHOD = "ModelStreamInfer"
    RESPONSE = _StreamResponse
    RESUME = "send the requests without an answer to another one"

    def __init__(self, infer: InferenceService, service: ServiceContext, context: Context) -> None:
        super().__init__(service, context)
        self._infer = infer

    async def _read(self) -> None:
        while (received := await self._context.read()) is not grpc.aio.EOF:
            self._progress = self._clock()
            if self._failed:
                continue
            self._busy = 1
            reply = await self._infer.infer_item(received, self._context)
            self._busy = 0
            if not self._failed:
                self._writer = asyncio.ensure_future(self._context.write(reply))
                await self._writer
            self._progress = self._clock()

    @classmethod
    def error_message(cls, failed: EncodedStatus) -> Message:
        """Return the last message of a stream that fails."""
        last: Message = _StreamResponse(error_message=failed.message)
        return last
