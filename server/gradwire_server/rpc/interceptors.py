"""Authorization of calls before their body is read.

This is the only module of the package that checks callers. It does so when a handler begins: the
metadata and the peer's address are available, and no part of the body has been requested, since
handlers read it themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import Message

from gradwire import v1
from gradwire_server.observability.recording import Metadata
from gradwire_server.rpc.call_context import (
    STREAM,
    UNARY,
    ActiveCall,
    ActiveCalls,
    Context,
    refusing,
)
from gradwire_server.rpc.open_inference import descriptors
from gradwire_server.rpc.status_map import EncodedStatus
from gradwire_server.rpc.streaming import write_last
from gradwire_server.rpc.unary import NAME
from gradwire_server.security.authorization import Authorizer, Scope

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

_FREE = "/grpc.health.v1.Health/"
# All other methods, and unknown ones, have the scope EVALUATE.
INSPECTING = {
    f"/{NAME}/GetServerInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    f"/{descriptors.NAME}/ServerMetadata",
    f"/{descriptors.NAME}/ModelStatistics",
    f"/{descriptors.NAME}/SystemSharedMemoryStatus",
}
# A caller that is still writing may lose the status, so streams end with the error in a message.
_STREAMS: dict[str, Callable[..., Message]] = {
    f"/{NAME}/EvaluateStream": v1.EvaluateStreamResponse,
    f"/{NAME}/EvaluateMany": v1.EvaluateManyResponse,
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
        self._authorizer = authorizer
        self._active = active
        self._handlers: dict[str, Handler] = {}
        for method, handler in handlers.items():
            is_free = method.startswith(_FREE) or authorizer.is_open(_scope(method))
            self._handlers[method] = handler if is_free else self._asking(method, handler)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        """Return the handler of a call."""
        method = handler_call_details.method
        return self._handlers.get(method) or self._asking(method, _UNKNOWN)

    def _asking(self, method: str, handler: Handler) -> Any:
        """Return a handler that first checks the caller."""
        make = UNARY if handler.stream_unary else STREAM
        untyped: Any = handler.stream_unary or handler.stream_stream

        async def answer(requests: Any, context: Context) -> Any:
            refusal = self._authorizer.refusal(
                _scope(method),
                authorization=_authorization(context.invocation_metadata()),
                peer=context.peer(),
                certified="x509_pem_cert" in context.auth_context(),
            )
            if refusal is None:
                return await untyped(requests, context)
            call = ActiveCall(method.rpartition("/")[2], context, self._active)
            response = _STREAMS.get(method)

            async def send_error(failed: EncodedStatus) -> None:
                if response is not None:
                    await write_last(context, response(error=failed.in_band()))

            work = partial(refusing, refusal)
            return await call.answer(work, in_band=send_error)

        return make(answer, handler.request_deserializer, handler.response_serializer)


def _scope(method: str) -> Scope:
    return Scope.INSPECT if method in INSPECTING else Scope.EVALUATE


async def _answer_unknown(_requests: object, context: Context) -> None:
    """Answer an authorized caller of an unknown method."""
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")


_UNKNOWN: Handler = STREAM(_answer_unknown)


def _authorization(metadata: Metadata | None) -> str | None:
    """Return the authorization header.

    Returns None without such a header, and an empty string, which is no token, for several.
    """
    # Only keys that end with -bin have bytes.
    found = [str(value) for key, value in metadata or () if key == "authorization"]
    if len(found) > 1:
        return ""
    return found[0] if found else None
