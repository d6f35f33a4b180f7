"""The door of Evaluate: while the event loop is behind, calls are refused before they are read.

grpc hands a call over when its headers are there. The handler of a unary call hears of it when the
message is read and decoded, which takes most of the work that the loop does for it. So while the
loop is behind, calls go to a handler of streams, the same thing on the wire, which decides first.
That costs a call that is served one more hop through grpc, so in quiet times they do not.

What nobody has taken up yet waits within grpc: max_backlog bounds that, and there grpc itself
refuses, in its own words.
"""

from __future__ import annotations

import asyncio
import time
from functools import lru_cache, partial
from typing import Any, cast

import grpc

from gradwire import v1
from gradwire_server import encoding
from gradwire_server.callers import caller_of
from gradwire_server.calls import Call, Context
from gradwire_server.errors import InvalidDataError, OverloadedError, StalledError
from gradwire_server.failures import failure
from gradwire_server.service import NAME, GradientService, Workshop

Reply = v1.EvaluateResponse

_METHOD = f"/{NAME}/Evaluate"
# A request that takes longer than this to arrive waits for its sender, and not for the loop.
_SLOW_S = 0.05
# Of a cancelled call grpc first says that its input ends, and only then cancels the handler.
_CANCELLATION_S = 0.5


class Door(grpc.GenericRpcHandler):
    """Finds the handler of a method: for Evaluate another one while the loop is behind."""

    def __init__(
        self, handlers: grpc.GenericRpcHandler, service: GradientService, workshop: Workshop
    ) -> None:
        self._handlers = handlers
        self._service = service
        self._workshop = workshop
        self._intake = workshop.intake
        self._guarded = grpc.stream_stream_rpc_method_handler(self._enter, *encoding.EVALUATE)

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of a method, None for one that is not known."""
        if self._intake.is_behind and handler_call_details.method == _METHOD:
            return self._guarded
        return self._handlers.service(handler_call_details)

    async def _enter(self, _requests: object, context: Context) -> None:
        if not self._intake.enter(context, peer=caller_of(context), now=time.monotonic()):
            self._refuse(context)
            return
        try:
            request = await self._read(context)
            reply = cast("Reply | None", await self._service.evaluate(request, context))
            # With any status but OK there is none.
            if reply is not None:
                await context.write(reply)
        except (InvalidDataError, StalledError) as error:
            await self._call(context).answer(partial(_fail, error))
        finally:
            self._intake.leave(context, now=time.monotonic())

    async def _read(self, context: Context) -> Any:
        timeout = self._workshop.settings.stall_timeout_s
        reading = asyncio.ensure_future(context.read())
        # A read cannot be cancelled: one that is not awaited any more ends with its call.
        reading.add_done_callback(_note_error)
        await asyncio.wait({reading}, timeout=_SLOW_S)
        if not reading.done():
            with self._intake.aside(context, clock=time.monotonic):
                await asyncio.wait({reading}, timeout=timeout)
        if not reading.done():
            raise StalledError(
                f"no request for {timeout} s (GRADWIRE_STALL_TIMEOUT_S)", timeout_s=timeout
            )
        request = reading.result()
        if request is grpc.aio.EOF:
            await asyncio.sleep(_CANCELLATION_S)
            raise InvalidDataError("message", "half-close came first; a request is needed")
        return request

    def _refuse(self, context: Context) -> None:
        message, details = _words(self._intake.retry_after_s(time.monotonic()))
        call = self._call(context)
        details = details.replace(_ANY_ID, call.request_id.encode())
        details = details.replace(_ANY_TRACE, call.traceparent.encode())
        context.set_code(grpc.StatusCode.RESOURCE_EXHAUSTED)
        context.set_details(message)
        trailers: tuple[tuple[str, str | bytes], ...] = (
            ("gradwire-request-id", call.request_id),
            ("traceparent", call.traceparent),
            ("grpc-status-details-bin", details),
        )
        context.set_trailing_metadata(trailers)

    def _call(self, context: Context) -> Call:
        return Call("Evaluate", context, self._workshop.active)


# Stand in for names of the same length.
_ANY_ID = b"i" * 32
_ANY_TRACE = b"t" * 55


@lru_cache(1024)
def _words(retry_after_s: float) -> tuple[str, bytes]:
    """Return message and details of a refusal: encoding them anew for each would cost too much."""
    error = OverloadedError(
        "the server has as many requests to read as it is through with in time "
        f"(its setting GRADWIRE_MAX_QUEUE_S); retry after {retry_after_s} s",
        retry_after_s=retry_after_s,
        limit="max_queue_s",
    )
    refused = failure(error).within(request_id=_ANY_ID.decode(), traceparent=_ANY_TRACE.decode())
    return refused.message, refused.details()


async def _fail(error: Exception) -> None:
    raise error


def _note_error(reading: asyncio.Future[Any]) -> None:
    """Take note of an error that nobody waits for."""
    if not reading.cancelled():
        reading.exception()
