"""RPC handlers of this service, health and reflection; grpc options and certificates."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from gradwire_server.config.settings import Settings
from gradwire_server.observability import logs
from gradwire_server.rpc.batch import ManyStream
from gradwire_server.rpc.call_context import STREAM, Context
from gradwire_server.rpc.health import HEALTH, Health
from gradwire_server.rpc.message_budget import MessageBudget
from gradwire_server.rpc.open_inference import descriptors
from gradwire_server.rpc.open_inference.service import InferenceService
from gradwire_server.rpc.segments import Segments
from gradwire_server.rpc.service_context import ServiceContext
from gradwire_server.rpc.stream import EvaluationStream
from gradwire_server.rpc.unary import NAME, GradientService
from gradwire_server.security.certificates import LoadedCertificates, load_certificates


def of_methods(service: ServiceContext, segments: Segments, health: Health) -> dict[str, Any]:
    """Return the handlers of all RPCs, by path."""
    budget = MessageBudget(service.admission, service.settings)
    found = {
        f"/{NAME}/EvaluateStream": STREAM(partial(EvaluationStream.serve, service)),
        f"/{NAME}/EvaluateMany": STREAM(partial(ManyStream.serve, service)),
        **GradientService(service, budget, segments).handlers(),
        **health.handlers,
    }
    names = [NAME, HEALTH, reflection.SERVICE_NAME]
    if service.settings.serves_open_inference:
        found |= InferenceService(service, budget).handlers()
        names.append(descriptors.NAME)
    schema: Any = reflection_pb2
    reflecting: Any = reflection.aio.ReflectionServicer(names, descriptors.BothPools())

    async def reflect(requests: Any, context: Context) -> None:
        async for reply in reflecting.ServerReflectionInfo(requests, context):
            await context.write(reply)

    # Not by add_ServerReflectionServicer_to_server, which registers the method individually:
    # after each call of any method, grpc.aio waits again for a call of each such method.
    found[f"/{reflection.SERVICE_NAME}/ServerReflectionInfo"] = STREAM(
        reflect,
        schema.ServerReflectionRequest.FromString,
        schema.ServerReflectionResponse.SerializeToString,
    )
    return found


# Time until a lost peer, or a connection dropped by the network, is detected. Without the
# EventEngine, so are some connections that were reset before their first request.
_KEEPALIVE_MS = 20_000
_KEEPALIVE_TIMEOUT_MS = 20_000
# Clients that wait for a call may send keepalive pings this often.
_LEAST_PING_INTERVAL_MS = 10_000
# Time for calls on a connection that is too old for new ones.
_AGE_GRACE_MS = 3_600_000


def options(settings: Settings, *, shares_port: bool) -> list[tuple[str, Any]]:
    """Return the options of grpc's core.

    shares_port  whether other processes listen on the address too
    """
    limit, max_age_s = settings.max_message_bytes, settings.max_connection_age_s
    told: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", limit),
        ("grpc.max_send_message_length", limit),
        # Two servers on one port share its calls; they must do so only on request.
        ("grpc.so_reuseport", int(shares_port)),
        ("grpc.max_concurrent_streams", settings.max_connection_calls),
        # Otherwise ended streams count for a while, and calls are refused instead of delayed.
        ("grpc.http.overload_protection", 0),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _LEAST_PING_INTERVAL_MS),
    ]
    if max_age_s:
        # Without a grace period, unread replies are kept as long as the caller stays connected.
        told += [
            ("grpc.max_connection_age_ms", min(math.ceil(max_age_s * 1000), 2**31 - 1)),
            ("grpc.max_connection_age_grace_ms", _AGE_GRACE_MS),
        ]
    return told


def credentials(settings: Settings) -> grpc.ServerCredentials:
    """Read the certificates of a server with TLS.

    Raises ValueError if they cannot be used.

    grpc asks for changed certificates at each connection.
    """
    certificates = load_certificates(settings)
    shown = certificates.get()

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown
        loaded = certificates.get()
        if loaded is shown:
            return None
        shown = loaded
        logs.info("certificates reloaded")
        return _configuration(loaded, settings)

    fetcher: Any = changed  # its None, for no change, is documented and not in the types
    # grpc's default is TLS 1.2 and newer.
    return grpc.dynamic_ssl_server_credentials(
        _configuration(shown, settings), fetcher, shown.authorities is not None
    )


def _configuration(
    loaded: LoadedCertificates, settings: Settings
) -> grpc.ServerCertificateConfiguration:
    if loaded.expires_s is not None and loaded.expires_s < time.time():
        path = settings.tls_certificate
        logs.warning("certificate has expired", tls_certificate=path, clients="refuse it")
    pair = (loaded.key, loaded.chain)
    return grpc.ssl_server_certificate_configuration([pair], loaded.authorities)
