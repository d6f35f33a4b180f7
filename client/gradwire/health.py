"""Health of a server, from its standard health service.

The two messages of `grpc.health.v1.Health.Check` are small enough to be read and written by hand,
which spares every user of the SDK a dependency.
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from gradwire._core.options import channel_targets, read_target
from gradwire._transport.channels import check_credentials, from_rpc_error, open_channel
from gradwire._transport.replicas import resolve
from gradwire._transport.unary import HEALTH_METHOD, SERVING, check_request, read_status
from gradwire.errors import GradwireError

__all__ = ["SERVING", "health"]


def health(
    target: str | Sequence[str] | None = None,
    *,
    service: str = "",
    timeout_s: float = 5.0,
    credentials: grpc.ChannelCredentials | None = None,
) -> str:
    """Return the health of a service: "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN" or "UNKNOWN".

    target   as for Client; the best of several servers counts
    service  its full name; by default the server as a whole

    Raises UnavailableError if no server answers, DeadlineExceededError if it takes too long.
    """
    check_credentials(credentials)
    told, failure = "", None
    addresses = [one for named in read_target(target) for one in resolve(named)]
    for one in channel_targets(addresses, secure=credentials is not None):
        try:
            told = _health(one, service, timeout_s=timeout_s, credentials=credentials)
        except GradwireError as error:
            failure = error
        if told == SERVING:
            break
    if not told and failure is not None:
        raise failure
    return told


def _health(
    target: str, service: str, *, timeout_s: float, credentials: grpc.ChannelCredentials | None
) -> str:
    with open_channel(target, credentials) as channel:
        check: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(HEALTH_METHOD)
        try:
            return read_status(check(check_request(service), timeout=timeout_s))
        except grpc.RpcError as error:
            failure = from_rpc_error(error)
        if failure.status == "NOT_FOUND":
            return "SERVICE_UNKNOWN"
        raise failure
