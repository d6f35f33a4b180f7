"""What GetServerInfo tells of a server."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from gradwire import ops, v1
from gradwire_server.config.settings import Settings
from gradwire_server.config.version import VERSION
from gradwire_server.engine import NUMERICS_VERSION


def server_info(settings: Settings, backend: str, backend_reason: str) -> v1.GetServerInfoResponse:
    """Return its version, backend and limits."""
    return v1.GetServerInfoResponse(
        version=VERSION,
        numerics_version=NUMERICS_VERSION,
        backend=backend,
        backend_reason=backend_reason,
        operators=list(ops.OPERATORS),
        limits=_limits(settings),
    )


def _limits(settings: Settings) -> v1.Limits:
    limits = v1.Limits()
    for name in limits.DESCRIPTOR.fields_by_name:
        if hasattr(settings, name):
            setattr(limits, name, getattr(settings, name))
    stall = Duration()
    stall.FromNanoseconds(int(settings.stall_timeout_s * 1e9))
    limits.stall_timeout.CopyFrom(stall)
    return limits
