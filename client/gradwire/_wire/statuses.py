"""Conversion of a server's errors to exceptions.

An error arrives as the status of the call, whose details are a `google.rpc.Status` in the trailing
metadata `grpc-status-details-bin`, and, on a stream, before that as a v1.Error. The reason selects
the exception; without a known reason, as in a status made by a proxy, the status code does.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2

from gradwire import v1
from gradwire.errors import (
    AuthenticationError,
    CallCancelledError,
    DataLossError,
    DeadlineExceededError,
    EvaluationChangedError,
    GradwireError,
    InvalidRequestError,
    LimitExceededError,
    OutOfMemoryError,
    OverloadedError,
    PermissionDeniedError,
    ServerError,
    UnavailableError,
    UnsupportedOperatorError,
    UseStreamError,
    named_as_arguments,
)

ERROR_DOMAIN = "gradwire.v1"
STATUS_DETAILS_KEY = "grpc-status-details-bin"

BY_REASON: dict[str, type[GradwireError]] = {
    "INVALID_FIELD": InvalidRequestError,
    "INVALID_DATA": InvalidRequestError,
    "UNKNOWN_FIELD": UnsupportedOperatorError,
    "UNKNOWN_OPERATOR": UnsupportedOperatorError,
    "USE_STREAM": UseStreamError,
    "LIMIT_EXCEEDED": LimitExceededError,
    "TABLE_TOO_LARGE": LimitExceededError,
    "LAYOUT_NOT_STREAMABLE": LimitExceededError,
    "OVERLOADED": OverloadedError,
    "OUT_OF_MEMORY": OutOfMemoryError,
    "DEADLINE_EXCEEDED": DeadlineExceededError,
    "STALLED": DeadlineExceededError,
    "DRAINING": UnavailableError,
    "EVALUATION_CHANGED": EvaluationChangedError,
    "INTERNAL": ServerError,
    "STARTING": UnavailableError,
    "DEVICE_LOST": UnavailableError,
    "UNAUTHENTICATED": AuthenticationError,
    "PERMISSION_DENIED": PermissionDeniedError,
    "UNKNOWN_SEGMENT": UnavailableError,
    "CHECKSUM_MISMATCH": DataLossError,
}

# Other codes become ServerError. RESOURCE_EXHAUSTED without a reason of this service is grpc's own
# status for a message over its limit: a retry does not help.
BY_CODE: dict[str, type[GradwireError]] = {
    "CANCELLED": CallCancelledError,
    "INVALID_ARGUMENT": InvalidRequestError,
    "DEADLINE_EXCEEDED": DeadlineExceededError,
    "RESOURCE_EXHAUSTED": LimitExceededError,
    "FAILED_PRECONDITION": LimitExceededError,
    "UNIMPLEMENTED": UnsupportedOperatorError,
    "UNAVAILABLE": UnavailableError,
    "UNAUTHENTICATED": AuthenticationError,
    "PERMISSION_DENIED": PermissionDeniedError,
}


def from_status(
    code: int | str,
    message: str,
    details: bytes | None,
) -> GradwireError:
    """Turn the status of a call into an exception.

    code     number or name of the gRPC status code
    details  value of the trailing metadata `grpc-status-details-bin`, if any
    """
    info = error_details_pb2.ErrorInfo()
    request = error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    with contextlib.suppress(DecodeError):
        for detail in status_pb2.Status.FromString(details or b"").details:
            for known in (info, request, retry):
                detail.Unpack(known)
    if info.domain != ERROR_DOMAIN:
        return _exception(code, message)
    return _exception(
        code,
        message,
        reason=info.reason,
        metadata=info.metadata,
        violations=request.field_violations,
        retry_after=retry.retry_delay if retry.HasField("retry_delay") else None,
    )


def from_in_band(error: v1.Error, *, request_id: str | None = None) -> GradwireError:
    """Turn the error message of a stream into an exception."""
    reason = _name(v1.ErrorReason, error.reason, "").removeprefix("ERROR_REASON_")
    return _exception(
        error.code,
        error.message,
        reason=reason if error.reason else "",
        metadata=error.metadata,
        violations=error.field_violations,
        retry_after=error.retry_after if error.HasField("retry_after") else None,
        request_id=request_id,
    )


def _exception(
    code: int | str,
    message: str,
    *,
    reason: str = "",
    metadata: Mapping[str, str] = MappingProxyType({}),
    violations: Sequence[Any] = (),
    retry_after: Duration | None = None,
    request_id: str | None = None,
) -> GradwireError:
    """Make the exception of an error.

    reason       name of v1.ErrorReason without its prefix; empty if missing
    retry_after  None if a retry does not help
    """
    status = code if isinstance(code, str) else _name(code_pb2.Code, code, f"status {code}")
    kind = BY_REASON.get(reason) or BY_CODE.get(status, ServerError)
    if kind is OverloadedError and retry_after is None:
        kind = LimitExceededError
    text = named_as_arguments(message) or f"the server answered {status} without a message"
    if not reason and kind in {UnavailableError, DeadlineExceededError, CallCancelledError}:
        text = with_hint(text)
    elif not reason and kind is ServerError:
        text = f"{status}: {text}"
    request_id = request_id or metadata.get("request_id")
    error = kind(text, reason=reason, request_id=request_id, metadata=metadata)
    error.status = status
    if isinstance(error, OverloadedError | UnavailableError) and retry_after is not None:
        error.retry_after_s = max(retry_after.ToNanoseconds() / 1e9, 0.0)
    if isinstance(error, InvalidRequestError):
        error.field = violations[0].field if violations else metadata.get("field")
    if isinstance(error, UnavailableError) and not reason:
        error.lasting = is_lasting(message)
        error.unreachable = _UNREACHABLE.search(message) is not None
    return error


def _name(enum: Any, number: int, unknown: str) -> str:
    known = enum.DESCRIPTOR.values_by_number.get(number)
    return unknown if known is None else known.name


_NO_SERVER = "no server listens at target"

# Hints at the causes of grpc's messages; the first pattern that matches applies.
_HINTS = {
    "WRONG_VERSION_NUMBER": (
        "the server does not use TLS; leave out credentials (--tls-ca), or enable its TLS"
    ),
    "CERTIFICATE_VERIFY_FAILED.*has expired": "the server's certificate has expired",
    "CERTIFICATE_VERIFY_FAILED.*not yet valid": "the server's certificate is not valid yet",
    # A signature failure: the authority has the name of a trusted one, and another key.
    "CERTIFICATE_VERIFY_FAILED|certificate signature failure": (
        "the server's certificate is not signed by a trusted authority (credentials, --tls-ca)"
    ),
    # The second one of older releases.
    "Hostname Verification Check failed|is not in peer certificate": (
        "the server's certificate does not name the host in target"
    ),
    # The second beginning for a name with several addresses.
    "(failed to connect|all backends failing).*(Socket closed|Connection reset)": (
        "the server closed the connection; it probably requires TLS (credentials, --tls-ca) or a "
        "client certificate (--tls-certificate, --tls-key)"
    ),
    # A file is a unix socket.
    "Connection refused|(connect failed|failed to connect).*No such file or directory": _NO_SERVER,
    "Failed parsing HTTP/2|missing selected ALPN": (
        "the server at this port does not speak gRPC; it may be an HTTP server, such as the one of "
        "--http-port: give the gRPC port"
    ),
    "^Deadline Exceeded$": "no answer came within the timeout",
    "Channel closed|Locally cancelled by application": "the client was closed",
    "timed out before receiving SETTINGS": (
        "the program at this port takes connections and does not answer; it may be no gRPC server"
    ),
    "DNS resolution failed|errors resolving.*Domain name not found": (
        "the host name in target cannot be resolved; give another name, or its IP address"
    ),
}

# Failures that persist however long a client waits: it keeps its authorities, and the server its
# certificate. Expired and future dates are not among them, since certificates are renewed.
_LASTING = re.compile(
    "WRONG_VERSION_NUMBER|certificate signature failure|"
    "CERTIFICATE_VERIFY_FAILED.*(unable to get local issuer certificate|self signed certificate)",
    re.DOTALL,
)
_UNREACHABLE = re.compile(
    "failed to connect to all addresses|connections to all backends failing|"
    "Failed to connect to remote host|DNS resolution failed|errors resolving|DNS query cancelled"
)


def is_refused(error: UnavailableError) -> bool:
    """Whether grpc reports that nothing listens at an address."""
    return error.unreachable and "Connection refused" in str(error)


def is_lasting(message: str) -> bool:
    """Whether a message of grpc reports a failure that persists."""
    return _LASTING.search(message) is not None


def with_hint(message: str) -> str:
    """Prefix a message of grpc with its cause, if known."""
    for pattern, hint in _HINTS.items():
        if re.search(pattern, message, re.DOTALL):
            if hint is _NO_SERVER and (found := _ADDRESS.search(message)):
                hint = no_server(unquote(found[1] or found[2]))  # noqa: PLW2901
            return f"{hint}: {message}"
    return message


# An address in a message of grpc: "ipv6:%5B::1%5D:50051: ...", "unix:/run/socket: ...".
_ADDRESS = re.compile(r"ipv[46]:(\S+?:\d+): |(unix:\S+?): ")


def no_server(address: str) -> str:
    """Return the message that no server listens at an address.

    The command that starts one there is named for addresses of this machine.
    """
    local = address.startswith(("127.", "[::1]:", "localhost:", "unix:")) and "," not in address
    start = f"with `gradwire-server --address {address}`" if local else "there"
    return f"no server listens at {address}; start one {start}, or give another target"
