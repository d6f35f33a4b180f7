"""The health service, grpc.health.v1.Health, with bounded memory per request.

Every caller may use it. A request has a few bytes and normally arrives with its call. Incomplete
requests are awaited for some seconds, and only a few at a time: one more ends the oldest. This
bounds the memory of callers that announce long messages and send little. A watching call keeps no
part of its request.
"""

from __future__ import annotations

import asyncio
from typing import Any, Never

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from gradwire_server.rpc.call_context import CANCELLATION_S, STREAM, UNARY, Context
from gradwire_server.rpc.unary import NAME

HEALTH = "grpc.health.v1.Health"

_KNOWN = ("", NAME)
_TOLD = health_pb2.HealthCheckResponse
# grpc buffers the received part of an unfinished request, up to --max-message-bytes.
_MOST_AWAITED = 16
_PATIENCE_S = 5.0
# The name of a service has some dozen bytes.
_MOST_BYTES = 4096
# grpcio-health-checking 1.76 lacks the RPC List.
HAS_LIST = "List" in health_pb2.DESCRIPTOR.services_by_name["Health"].methods_by_name


class Health:
    """Health of the server and its service.

    It is NOT_SERVING until tell() reports otherwise. Used from one event loop only.

    handlers  of its RPCs, by path
    """

    def __init__(self) -> None:
        self._serving = False
        self._changed = asyncio.Event()
        self._awaited: dict[asyncio.Timeout, None] = {}
        # The wire format is the schema's; the handlers read the requests themselves.
        self.handlers = {
            f"/{HEALTH}/Check": UNARY(self._check),
            f"/{HEALTH}/Watch": STREAM(self._watch),
        }
        if HAS_LIST:
            self.handlers[f"/{HEALTH}/List"] = UNARY(self._list)

    def tell(self, *, serving: bool) -> None:
        """Report from now on that the server serves, or not."""
        self._serving = serving
        self._changed.set()
        self._changed = asyncio.Event()

    async def _check(self, _requests: object, context: Context) -> bytes:
        if not await self._asks_known(context):
            await context.abort(grpc.StatusCode.NOT_FOUND, "no service of that name is here")
        return self._status().SerializeToString()

    async def _list(self, _requests: object, context: Context) -> bytes:
        await self._asks_known(context)
        statuses = dict.fromkeys(_KNOWN, self._status())
        untyped: Any = health_pb2  # its types are of an older schema
        listed: bytes = untyped.HealthListResponse(statuses=statuses).SerializeToString()
        return listed

    async def _watch(self, _requests: object, context: Context) -> None:
        is_known = await self._asks_known(context)
        last = None
        while True:
            changed, status = self._changed, self._status(is_known=is_known)
            if status != last:
                await context.write(status.SerializeToString())
            last = status
            await changed.wait()

    def _status(self, *, is_known: bool = True) -> health_pb2.HealthCheckResponse:
        if not is_known:
            return _TOLD(status=_TOLD.SERVICE_UNKNOWN)
        return _TOLD(status=_TOLD.SERVING if self._serving else _TOLD.NOT_SERVING)

    async def _asks_known(self, context: Context) -> bool:
        """Read the request of a call; return whether its service is here.

        Aborts the call if it does not arrive in time or is too long.
        """
        try:
            async with asyncio.timeout(_PATIENCE_S) as patience:
                if len(self._awaited) >= _MOST_AWAITED:
                    oldest = next(iter(self._awaited))
                    del self._awaited[oldest]
                    oldest.reschedule(0)
                self._awaited[patience] = None
                try:
                    message = await context.read()
                finally:
                    self._awaited.pop(patience, None)
        except TimeoutError:
            await context.abort(
                grpc.StatusCode.DEADLINE_EXCEEDED, "the request did not come in time"
            )
        if message is grpc.aio.EOF:
            await asyncio.sleep(CANCELLATION_S)
            await _refuse(context, "no request came; a call has one")
        if len(message) > _MOST_BYTES:
            await _refuse(context, f"a request of at most {_MOST_BYTES} bytes is read")
        try:
            return health_pb2.HealthCheckRequest.FromString(message).service in _KNOWN
        except DecodeError:
            await _refuse(context, "the request is not a HealthCheckRequest")


async def _refuse(context: Context, message: str) -> Never:
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
