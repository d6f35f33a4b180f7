"""Handlers of inference.GRPCInferenceService."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Never

import grpc
import numpy as np

from gradwire._wire.framing import varint
from gradwire_server.config.version import VERSION
from gradwire_server.engine import EvaluationRequest, Execution, Prepared
from gradwire_server.errors import (
    InvalidDataError,
    MessageTooLargeError,
    RequestLimitError,
    UnknownFieldError,
    UnsupportedCallError,
)
from gradwire_server.rpc import codec
from gradwire_server.rpc.call_context import ActiveCall, ActiveCalls, Context, Metadata, caller_of
from gradwire_server.rpc.message_budget import MessageBudget
from gradwire_server.rpc.open_inference import regions
from gradwire_server.rpc.open_inference.descriptors import NAME, SERVICE, message
from gradwire_server.rpc.open_inference.models import PLATFORM, Model, Models
from gradwire_server.rpc.open_inference.regions import Regions
from gradwire_server.rpc.open_inference.requests import InferHeader, InferReader
from gradwire_server.rpc.service_context import ServiceContext
from gradwire_server.rpc.status_map import ErrorStatus
from gradwire_server.rpc.streaming import ServedStream, write_last
from gradwire_server.rpc.unary import UnaryEvaluator

INFER, STREAM_INFER = f"/{NAME}/ModelInfer", f"/{NAME}/ModelStreamInfer"
# Bytes of a response beside its contents, at most.
_RESPONSE_BYTES = 4096
_StreamResponse = message("ModelStreamInferResponse")


class InferCall(ActiveCall):
    """One call in flight, with the statuses that the protocol's clients expect.

    model     the model, once it is known
    given_id  id that the caller chose; may be empty
    """

    model: Model | None = None
    given_id = ""

    def _status(self, error: Exception) -> ErrorStatus:
        failed = super()._status(error)
        if isinstance(error, RequestLimitError | MessageTooLargeError | UnknownFieldError):
            return replace(failed, status="INVALID_ARGUMENT")
        return failed

    def _finish(
        self,
        level: int,
        status: str,
        error: Exception | None = None,
        *,
        failed: ErrorStatus | None = None,
    ) -> None:
        super()._finish(level, status, error, failed=failed)
        if self.model is not None:
            duration_s = time.monotonic() - self._started
            self.model.counts.note(self.phases, duration_s, succeeded=status == "OK")


class ModelInfer(UnaryEvaluator[InferHeader, InferCall]):
    """The RPC ModelInfer, and each message of ModelStreamInfer."""

    def __init__(
        self, service: ServiceContext, budget: MessageBudget, models: Models, memory: Regions
    ) -> None:
        super().__init__(service, budget)
        self._reader = InferReader(models)
        self._memory = memory

    async def infer(self, metadata: Metadata, _requests: object, context: Context) -> bytes:
        """Evaluate one model on one tensor; metadata is the call's."""
        received = await self._budget.receive(context)
        call = InferCall("ModelInfer", context, self._service.active, sent=metadata)
        return await self._answer(received, call)

    async def infer_item(self, received: bytes, context: Context, active: ActiveCalls) -> bytes:
        """Answer one message of a stream."""
        item: Any = _ItemContext(context)
        reply = await self._answer(received, InferCall("ModelInfer", item, active))
        if item.error:
            return bytes(_StreamResponse(error_message=item.error).SerializeToString())
        # Field 2, infer_response.
        return b"".join((b"\x12", varint(len(reply)), reply))

    def _split(self, message: bytes, call: InferCall) -> tuple[InferHeader, memoryview]:
        request_id, header, contents = self._reader.read(message)
        call.request_id = call.given_id = codec.read_request_id(request_id)
        call.model = header.model
        if header.source is not None or header.sink is not None:
            regions.check_local(call.context)
        return header, contents

    def _decode(self, key: InferHeader) -> EvaluationRequest:
        return key.request

    def _check_size(self, key: InferHeader, request: EvaluationRequest) -> None:
        allowed = self._service.settings.max_message_bytes - _RESPONSE_BYTES
        if key.sink is None and key.output.wire_bytes > allowed:
            raise MessageTooLargeError(
                f"outputs.y is {key.output.wire_bytes} bytes; a response takes {allowed} (setting "
                "GRADWIRE_MAX_MESSAGE_BYTES), shared memory any number",
                limit="max_message_bytes",
                allowed=allowed,
            )

    def _check_length(self, key: InferHeader, length: int, request: EvaluationRequest) -> None:
        length = length if key.source is None else key.source[2]
        codec.check_data_length(length, request, field="inputs.x")
        if key.sink is not None and key.sink[2] < key.output.wire_bytes:
            raise InvalidDataError(
                "outputs.y", f"{key.sink[2]} bytes; the result takes {key.output.wire_bytes}"
            )

    def _evaluate_now(
        self, key: InferHeader, prepared: Prepared, data: memoryview, call: InferCall
    ) -> bytes | None:
        if key.source is None and key.sink is None:
            return super()._evaluate_now(key, prepared, data, call)
        call.note_request(prepared.request, received=prepared.input.wire_bytes)
        self._check_length(key, len(data), prepared.request)
        return None

    async def _has_turn(self, key: InferHeader, prepared: Prepared) -> bool:
        if key.source is None and key.sink is None:
            return await super()._has_turn(key, prepared)
        return False

    def _steps(
        self, key: InferHeader, prepared: Prepared, data: memoryview, result: codec.Bytes
    ) -> Iterator[object]:
        if key.source is None and key.sink is None:
            return super()._steps(key, prepared, data, result)
        source = key.source and self._memory.find("inputs.x", *key.source)
        sink = key.sink and self._memory.find("outputs.y", *key.sink)

        def steps() -> Iterator[object]:
            given = np.frombuffer(data, np.uint8)
            if source and prepared.walk.layout.held:
                given = np.empty(prepared.input.wire_bytes, np.uint8)
                regions.read(*source, given)
            whole = given if given.size or not source else None
            execution = Execution(prepared, self._service.backend)
            # Step by step, so that what is read is still in the processor's caches.
            for step in prepared.steps():
                first, stop = prepared.input_range(step)
                if source and whole is None:
                    part = np.empty(stop - first, np.uint8)
                    regions.read(source[0], source[1] + first, part)
                else:
                    part = given[first:stop]
                begin, end = prepared.output_range(step)
                target = np.empty(end - begin, np.uint8) if sink else result[begin:end]
                execution.step(step, part, target)
                if sink:
                    regions.write(sink[0], sink[1] + begin, target)
                yield step

        return steps()

    def _reply(
        self, key: InferHeader, prepared: Prepared, result: memoryview, call: InferCall
    ) -> bytes:
        return key.response(call.given_id, result)


class _ItemContext:
    """Context of one message of a stream.

    The status goes into the message.

    error  text of the status; empty if the message succeeded
    """

    def __init__(self, context: Context) -> None:
        self._context: Any = context
        self.error = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def set_code(self, code: grpc.StatusCode) -> None:
        """Leave the stream's own."""

    def set_details(self, details: str) -> None:
        """Note the text of an error."""
        self.error = details

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Leave the stream's own."""

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call back at once.

        The stream writes the reply before it reads the next message.
        """
        callback(self)


class InferStream(ServedStream):
    """One ModelStreamInfer: messages are answered one after another."""

    METHOD = "ModelStreamInfer"
    RESPONSE = _StreamResponse
    RESUME = "send the requests without an answer to another one"

    def __init__(self, infer: ModelInfer, service: ServiceContext, context: Context) -> None:
        super().__init__(service, context)
        self._infer = infer
        self._writes = False

    async def _run(self) -> None:
        caller = caller_of(self._context)
        with self._service.admission.stream(caller, self._give_way) as self._admitted:
            await super()._run()

    async def _read(self) -> None:
        while (received := await self._context.read()) is not grpc.aio.EOF:
            self._progress = self._clock()
            if self._failed:
                continue
            self._admitted.note_data()
            self._busy += 1
            reply = await self._infer.infer_item(received, self._context, self._service.active)
            self._busy -= 1
            if not self._failed:
                self._writes = True
                await self._context.write(reply)
                self._writes = False
            self._progress = self._clock()
        self._done.set()

    async def _write(self) -> None:
        """Leave writing to the task that reads."""

    async def _evaluate(self) -> None:
        await self._done.wait()

    def _stop(self) -> None:
        """Do nothing: reading sees that the stream has failed."""

    async def _send_error(self, failed: ErrorStatus) -> None:
        self._failed = True
        if not self._writes:  # else the caller does not read
            await write_last(self._context, _StreamResponse(error_message=failed.message))


class InferenceService:
    """All handlers of the service, by path."""

    def __init__(self, service: ServiceContext, budget: MessageBudget) -> None:
        settings = service.settings
        self._service = service
        self._budget = budget
        self._models = Models(settings.named_models)
        self._memory = Regions(settings)
        infer = ModelInfer(service, budget, self._models, self._memory)
        self.infer = infer.infer

        async def stream(_requests: object, context: Context) -> None:
            await InferStream(infer, service, context).answer()

        self._stream: Any = stream

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """Return the handlers of all methods but ModelInfer."""
        found: dict[str, Any] = {STREAM_INFER: grpc.stream_stream_rpc_method_handler(self._stream)}
        answers = self._answers()
        for method in SERVICE.methods:
            answer = answers.get(method.name, self._refuse)
            path = f"/{NAME}/{method.name}"
            if path not in {INFER, STREAM_INFER}:
                control: Any = partial(self._control, method, answer)
                found[path] = grpc.stream_unary_rpc_method_handler(control)
        return found

    async def _control(
        self, method: Any, answer: Any, _requests: object, context: Context
    ) -> bytes | None:
        """Answer a call without tensors.

        `answer` returns the response's fields for a request.
        """
        received = await self._budget.receive(context)
        call = InferCall(method.name, context, self._service.active)

        async def work() -> bytes:
            data = codec.well_formed(received)
            request = codec.parse(message(method.input_type.name), data, header_bytes=len(data))
            codec.refuse_unknown_fields(request, "")
            told = answer(request, context)
            return bytes(message(method.output_type.name)(**told).SerializeToString())

        return await call.answer(work)

    def _refuse(self, request: Any, _context: Context) -> Never:
        raise UnsupportedCallError(
            f"{request.DESCRIPTOR.name.removesuffix('Request')}: this server has no CUDA shared "
            "memory, loads no models, and takes settings of its log and traces when it starts"
        )

    def _answers(self) -> dict[str, Callable[[Any, Context], dict[str, Any]]]:
        """Return the functions that answer calls without tensors.

        Each returns the response's fields for a request.
        """
        models, memory = self._models, self._memory
        extensions = ["model_configuration", "model_repository", "statistics"]
        extensions += ["system_shared_memory"] * bool(self._service.settings.open_inference_memory)
        server = {"name": PLATFORM, "version": VERSION, "extensions": extensions}

        def ready() -> bool:
            return self._service.ready.is_set()

        def register(request: Any, context: Context) -> dict[str, Any]:
            memory.register(request, context)
            return {}

        def unregister(request: Any, context: Context) -> dict[str, Any]:
            memory.unregister(request.name, context)
            return {}

        return {
            "ServerLive": lambda _r, _c: {"live": True},
            "ServerReady": lambda _r, _c: {"ready": ready()},
            "ModelReady": lambda r, _c: {"ready": bool(models.get(r.name, r.version)) and ready()},
            "ServerMetadata": lambda _r, _c: server,
            "ModelMetadata": lambda r, _c: models.get(r.name, r.version).metadata(),
            "ModelConfig": lambda r, _c: {"config": models.get(r.name, r.version).config()},
            "ModelStatistics": lambda r, _c: {
                "model_stats": [each.statistics() for each in models.chosen(r.name, r.version)]
            },
            "RepositoryIndex": lambda r, _c: {
                "models": [each.index() for each in models.chosen("", "") if ready() or not r.ready]
            },
            "SystemSharedMemoryStatus": lambda r, c: {"regions": memory.statuses(r.name, c)},
            "SystemSharedMemoryRegister": register,
            "SystemSharedMemoryUnregister": unregister,
            # There are no regions to forget: perf_analyzer ends where this fails.
            "CudaSharedMemoryUnregister": lambda _r, _c: {},
        }
