"""Health of a server, from its standard health service.

The two messages of `grpc.health.v1.Health.Check` are small enough to be read and written by hand,
which spares every user of the SDK a dependency.
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from gradwire._core.options import channel_targets, read_target
from gradwire._transport.channels import (
    HEALTH_METHOD,
    check_credentials,
    from_rpc_error,
    open_channel,
)
from gradwire._transport.replicas import resolve
from gradwire._transport.unary import SERVING, check_request, read_status

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
            with open_channel(one, credentials) as channel:
                check = channel.unary_unary(HEALTH_METHOD)
                told = read_status(check(check_request(service), timeout=timeout_s))
        except grpc.RpcError as error:
            failure = from_rpc_error(error)
            told = "SERVICE_UNKNOWN" if failure.status == "NOT_FOUND" else told
        if told == SERVING:
            break
    if not told and failure is not None:
        raise failure
    return told
