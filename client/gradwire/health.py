"""Health of a server, from its standard health service.

The two messages of `grpc.health.v1.Health.Check` are small enough to be read and written here,
which spares every user of the SDK a dependency.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import grpc

from gradwire._core.options import channel_targets, read_target
from gradwire._core.retries import LASTING_ATTEMPTS
from gradwire._transport.channels import check_credentials, from_rpc_error, open_channel
from gradwire._transport.replicas import resolve
from gradwire.errors import CallCancelledError, GradwireError, UnavailableError

SERVING: Final = "SERVING"
METHOD: Final = "/grpc.health.v1.Health/Check"

# grpc.health.v1.HealthCheckResponse.ServingStatus
_STATUSES: Final = ("UNKNOWN", SERVING, "NOT_SERVING", "SERVICE_UNKNOWN")
_SERVICE_TAG: Final = b"\x0a"
_STATUS_TAG: Final = 0x08

# Seconds that one check may take, and between two of them, while a client waits for a server.
_CHECK_S: Final = 5.0
_PAUSE_S: Final = 0.1


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

    Raises UnavailableError where no server answers, DeadlineExceededError where it takes too long.
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
        check: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(METHOD)
        try:
            return read_status(check(check_request(service), timeout=timeout_s))
        except grpc.RpcError as error:
            if _is_unknown_service(error):
                return "SERVICE_UNKNOWN"
            failure = from_rpc_error(error)
        raise failure


def check_request(service: str = "") -> bytes:
    """Encode a HealthCheckRequest."""
    name = service.encode()
    if len(name) > 0x7F:  # noqa: PLR2004 - the length takes one byte
        raise ValueError(f"service is {len(name)} bytes long; give at most 127")
    return _SERVICE_TAG + bytes((len(name),)) + name if name else b""


def read_status(response: bytes) -> str:
    """Decode a HealthCheckResponse."""
    status = response[1] if len(response) > 1 and response[0] == _STATUS_TAG else 0
    return _STATUSES[status] if status < len(_STATUSES) else _STATUSES[0]


class Patience:
    """Schedule of wait_ready() of both clients.

    one_server  whether each check goes to the same server, as far as is known
    """

    def __init__(self, timeout_s: float, *, one_server: bool = False) -> None:
        self._timeout_s = timeout_s
        self._one_server = one_server
        self._in_vain = 0
        self._until = time.monotonic() + timeout_s

    @property
    def check_s(self) -> float:
        """Seconds that the next check may take."""
        return min(_CHECK_S, max(0.0, self._until - time.monotonic()))

    def pause_s(self, reply: bytes | GradwireError) -> float | None:
        """Return the seconds until the next check, or None once the server serves.

        reply  reply or error of the last check

        Raises UnavailableError when time is over, or the server would go on to answer as it does.
        """
        if isinstance(reply, CallCancelledError):
            raise reply
        if isinstance(reply, UnavailableError) and reply.lasting and self._one_server:
            self._in_vain += 1
            if self._in_vain >= LASTING_ATTEMPTS:
                raise reply
        last = reply if isinstance(reply, GradwireError) else read_status(reply)
        if last == SERVING:
            return None
        if time.monotonic() + _PAUSE_S < self._until:
            return _PAUSE_S
        late = UnavailableError(f"no server was ready within {self._timeout_s} s: {last}")
        late.unreachable = isinstance(last, UnavailableError) and last.unreachable
        raise late


def _is_unknown_service(error: grpc.RpcError) -> bool:
    return isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.NOT_FOUND
