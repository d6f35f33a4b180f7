"""Who answers which RPC: this service, health and reflection."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, cast

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from gradwire_server.rpc import codec
from gradwire_server.rpc.batch import ManyService
from gradwire_server.rpc.call_context import ActiveCalls
from gradwire_server.rpc.health import HEALTH, Health
from gradwire_server.rpc.interceptors import AuthorizingHandler
from gradwire_server.rpc.service_context import ServiceContext
from gradwire_server.rpc.stream import StreamService
from gradwire_server.rpc.unary import NAME, GradientService
from gradwire_server.security.authorization import Authorizer

_EVALUATE = f"/{NAME}/Evaluate"


class Handlers(grpc.GenericRpcHandler):
    """Finds the handler of each RPC of gradwire.v1.GradientService, with its serializers.

    Unary ones are the same bytes on the wire, but read the request themselves.
    """

    def __init__(self, service: ServiceContext) -> None:
        self.serve(service)

    def serve(self, service: ServiceContext) -> None:
        """Answer the calls that come from now on with the parts of a service."""
        unary, stream = grpc.stream_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        plain, streams, many = (
            GradientService(service),
            StreamService(service),
            ManyService(service),
        )
        self._evaluate = plain.evaluate
        evaluate_stream: Any = streams.evaluate_stream
        evaluate_many: Any = many.evaluate_many
        list_operators: Any = plain.list_operators
        get_server_info: Any = plain.get_server_info
        self._others: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            f"/{NAME}/EvaluateStream": stream(evaluate_stream, *codec.EVALUATE_STREAM),
            f"/{NAME}/EvaluateMany": stream(evaluate_many, *codec.EVALUATE_MANY),
            f"/{NAME}/ListOperators": unary(list_operators, *codec.LIST_OPERATORS),
            f"/{NAME}/GetServerInfo": unary(get_server_info, *codec.GET_SERVER_INFO),
        }

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the handler of a call, if there is one."""
        if handler_call_details.method == _EVALUATE:
            # What grpc has read of the call: its context would read it anew each time.
            evaluate = partial(self._evaluate, handler_call_details.invocation_metadata or ())
            return grpc.stream_unary_rpc_method_handler(evaluate, *codec.EVALUATE)
        return self._others.get(handler_call_details.method)


class _Finders:
    """Takes handlers in the place of a server: those that find methods, not single methods.

    For each call of whatever method, grpc.aio waits anew for one of every method that was added by
    itself; with that of reflection, that is two instead of one.
    """

    def __init__(self, *finders: grpc.GenericRpcHandler) -> None:
        self.all = list(finders)

    def add_generic_rpc_handlers(self, finders: Iterable[grpc.GenericRpcHandler]) -> None:
        """Take them."""
        self.all.extend(finders)

    def add_registered_method_handlers(self, *_given: object) -> None:
        """Leave them to the handlers that find them."""


def add_handlers(
    server: grpc.aio.Server,
    handlers: Handlers,
    health: Health,
    authorizer: Authorizer,
    active: ActiveCalls,
) -> None:
    """Have a server answer gradwire.v1.GradientService, health and reflection, to who may call."""
    finders = _Finders(handlers, health)
    as_server = cast("grpc.aio.Server", finders)
    names = (NAME, HEALTH, reflection.SERVICE_NAME)
    untyped = cast("Any", reflection_pb2_grpc)
    untyped.add_ServerReflectionServicer_to_server(
        reflection.aio.ReflectionServicer(names), as_server
    )
    server.add_generic_rpc_handlers((AuthorizingHandler(finders.all, authorizer, active),))
