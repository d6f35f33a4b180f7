"""Servers of other releases, as a caller sees them: this one's, with other answers on the way."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import cast

import grpc
from google.protobuf.message import Message

from gradwire import v1

Change = Callable[[str, bytes], bytes | None]
# Field 110, which no message has: a text.
_UNKNOWN = b"\xf2\x06\x05newer"
_ANSWERS: dict[str, type[Message]] = {
    "Evaluate": v1.EvaluateResponse,
    "EvaluateStream": v1.EvaluateStreamResponse,
    "EvaluateMany": v1.EvaluateManyResponse,
    "ListOperators": v1.ListOperatorsResponse,
    "GetServerInfo": v1.GetServerInfoResponse,
}


def newer(method: str, answer: bytes) -> bytes:
    """Add a field that this release does not know to every message of an answer."""
    message = _ANSWERS[method].FromString(answer)
    _grow(message)
    return message.SerializeToString()


def older(method: str, answer: bytes) -> bytes | None:
    """Know no EvaluateMany, and tell nothing but the version of the server."""
    if method == "EvaluateMany":
        return None
    if method == "GetServerInfo":
        told = v1.GetServerInfoResponse.FromString(answer)
        return v1.GetServerInfoResponse(version=told.version).SerializeToString()
    return answer


def _grow(message: Message) -> None:
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in value if field.is_repeated else [value]:
            _grow(each)
    message.MergeFromString(_UNKNOWN)


class _Proxy(grpc.GenericRpcHandler):
    """Asks a server, and changes its answers."""

    def __init__(self, address: str, change: Change, *, trailers: bool) -> None:
        self._channel = grpc.insecure_channel(address)
        self._change = change
        self._trailers = trailers

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        method = handler_call_details.method

        def answer(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            ask: grpc.StreamStreamMultiCallable[bytes, bytes]
            ask = self._channel.stream_stream(method)
            call = ask(requests)
            try:
                for each in call:
                    changed = self._change(method.rpartition("/")[2], each)
                    if changed is None:
                        call.cancel()
                        context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
                    else:
                        yield changed
            except grpc.RpcError as error:
                failed = cast("grpc.Call", error)
                if self._trailers:
                    context.set_trailing_metadata(tuple(failed.trailing_metadata() or ()))
                context.abort(failed.code(), failed.details() or "")
            if self._trailers:
                context.set_trailing_metadata(tuple(call.trailing_metadata() or ()))

        return grpc.stream_stream_rpc_method_handler(answer)


@contextmanager
def skewed(address: str, change: Change, *, trailers: bool = True) -> Generator[str]:
    """Run a server of another release in front of one; yield its address.

    trailers  whether it sends trailing metadata
    """
    server = grpc.server(
        ThreadPoolExecutor(8), handlers=[_Proxy(address, change, trailers=trailers)]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
