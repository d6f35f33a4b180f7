"""Authorization of calls before their body is read.

This is the only module of the package that checks callers. Tokens are checked when grpc looks up
the handler of a call: the metadata is available, and no part of the body has been requested.
Without tokens, authorization depends on the peer's address, which grpc gives to handlers only; such
handlers read the body themselves after the check.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeAlias, cast

import grpc

from gradwire_server.errors import MissingScopeError, UnauthenticatedError
from gradwire_server.observability.recording import Metadata
from gradwire_server.rpc.batch import ManyStream
from gradwire_server.rpc.call_context import ActiveCall, ActiveCalls, Context
from gradwire_server.rpc.open_inference import descriptors
from gradwire_server.rpc.status_map import EncodedStatus
from gradwire_server.rpc.stream import EvaluationStream
from gradwire_server.rpc.streaming import ServedStream, write_last
from gradwire_server.rpc.unary import NAME
from gradwire_server.security.authorization import Authorizer, Refusal, Scope

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

# A method in neither of them has the scope INSPECT.
_FREE = "/grpc.health.v1.Health/"
_EVALUATE = ("Evaluate", "EvaluateStream", "EvaluateMany", "EvaluateShared", "ListOperators")
SCOPES = {f"/{NAME}/{method}": Scope.EVALUATE for method in _EVALUATE}
_INSPECTING = {"ServerMetadata", "ModelStatistics", "SystemSharedMemoryStatus"}
OPEN_INFERENCE_SCOPES = {
    f"/{descriptors.NAME}/{method.name}": Scope.EVALUATE
    for method in descriptors.SERVICE.methods
    if method.name not in _INSPECTING
}
_OF_METHODS = SCOPES | OPEN_INFERENCE_SCOPES
# A caller that is still writing may lose the status, so streams end with the error in a message.
_STREAMS: dict[str, type[ServedStream]] = {
    f"/{NAME}/{stream.METHOD}": stream for stream in (EvaluationStream, ManyStream)
}


class AuthorizingHandler(grpc.GenericRpcHandler):
    """Generic handler that checks authorization before it delegates to other handlers.

    handlers  those of all methods, by path
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        authorizer: Authorizer,
        active: ActiveCalls,
    ) -> None:
        self._handlers = handlers
        self._authorizer = authorizer
        self._active = active
        # Methods open to every caller; checked first, since they are the most frequent.
        self._open = {name for name, scope in _OF_METHODS.items() if authorizer.is_open(scope)}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """Return the handler of a call.

        It is the method's own, or one that refuses the call.
        """
        method = handler_call_details.method
        handler = self._handlers.get(method)
        if method in self._open or (handler is not None and method.startswith(_FREE)):
            return handler
        # Unknown methods return UNIMPLEMENTED to authorized callers.
        scope = Scope.EVALUATE if handler is None else _OF_METHODS.get(method, Scope.INSPECT)
        if not self._authorizer.wants_tokens:
            return None if handler is None else self._asking_whence(handler, method, scope)
        refusal = self._authorizer.refusal(
            scope, authorization=_authorization(handler_call_details.invocation_metadata), peer=""
        )
        if refusal is None:
            return handler
        return _unread(partial(self._refuse, method, refusal), handler)

    def _asking_whence(self, handler: Handler, method: str, scope: Scope) -> Handler:
        """Return a handler that first checks the peer's address and certificate."""

        async def answer(requests: Any, context: Context) -> None:
            refusal = self._authorizer.refusal(
                scope,
                authorization=None,
                peer=context.peer(),
                certified="x509_pem_cert" in context.auth_context(),
            )
            if refusal is not None:
                await self._refuse(method, refusal, requests, context)
            elif handler.stream_unary is not None:
                stream_unary: Any = handler.stream_unary  # grpc's types know none of asyncio
                await _reply(stream_unary(requests, context), context)
            else:
                await _answer_stream(handler.stream_stream, requests, context)

        return _unread(answer, handler)

    async def _refuse(
        self, method: str, refusal: Refusal, _requests: object, context: Context
    ) -> None:
        kind = MissingScopeError if refusal.authenticated else UnauthenticatedError
        call = ActiveCall(method.rpartition("/")[2], context, self._active)
        stream = _STREAMS.get(method)

        async def send_error(failed: EncodedStatus) -> None:
            if stream is not None:
                await write_last(context, stream.error_message(failed))

        await call.refuse(kind(refusal.message), in_band=send_error)


async def _reply(answering: Any, context: Context) -> None:
    reply = await answering
    if not cast("int", context.code()):  # with any status but OK there is no reply
        await context.write(reply)


async def _answer_stream(answer: Any, requests: Any, context: Context) -> None:
    """Run a stream handler.

    It is a coroutine that writes, or a generator that yields.
    """
    answered = answer(requests, context)
    if isinstance(answered, Awaitable):
        await cast("Awaitable[None]", answered)
        return
    async for reply in answered:
        await context.write(reply)


def _unread(answer: Callable[[Any, Context], Awaitable[None]], like: Handler | None) -> Handler:
    """Return a handler that has grpc read no messages of its calls.

    It has the serializers of another handler.

    grpc takes the method for a bidirectional stream, which is the same on the wire.
    """
    encoded = () if like is None else (like.request_deserializer, like.response_serializer)
    untyped: Any = answer  # grpc's types know no handlers of asyncio that write themselves
    return grpc.stream_stream_rpc_method_handler(untyped, *encoded)


def _authorization(metadata: Metadata | None) -> str | bytes | None:
    """Return the authorization header.

    Returns None without such a header, and an empty string, which is no token, for several.
    """
    found = [value for key, value in metadata or () if key == "authorization"]
    if len(found) > 1:
        return ""
    return found[0] if found else None
