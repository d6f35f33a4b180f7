"""Errors the SDK raises.

GradwireError
├── InvalidRequestError         the request can never succeed; fix the caller (a ValueError)
├── UnsupportedOperatorError    this server knows no such operator or attribute
├── LimitExceededError          a limit of this server; a retry does not help
│   └── UseStreamError              too large for a unary call
├── OverloadedError             the server is full; a retry does help
├── OutOfMemoryError            memory ran out on the server
├── DeadlineExceededError       the time is over, or nothing moved for too long (a TimeoutError)
├── CallCancelledError          the call was cancelled
├── UnavailableError            no server answers, or it starts, stops or lost its GPU (a
│                               ConnectionError)
├── AuthenticationError         the server takes no call without a token, or not this one
├── PermissionDeniedError       the caller lacks the permission
├── DataLossError               a message changed on its way, as its checksum shows
├── EvaluationChangedError      the stream to resume is not the one this server computes
└── ServerError                 a fault of the server, or an answer that makes no sense

`grpc.RpcError` never reaches a caller: gradwire._wire.statuses converts statuses to these errors.
All of them can be pickled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Self

_PLURALS = {"axis": "axes"}

# Paths on the wire, and the corresponding arguments of the SDK.
_ARGUMENTS = {
    "input.sizes": "array.shape",
    "input.data_type": "array.dtype",
    "input.strides": "array.strides",
    "output.sizes": "output_shape",
    "output.data_type": "out.dtype",
    "output.strides": "out.strides",
    "input": "array",
    "data": "array",
    "output": "output_shape",
}
_PATHS = re.compile(
    r"\boperator\.(?:\w+\.)?(?=\w)|\b(?:in|out)put\.(?:sizes|data_type|strides)\b"
    r"|^(?:input|data|output)(?=:|$)"
)


def installing(extra: str) -> str:
    """Return the commands that install an extra.

    They are for the package and for a checkout.
    """
    return f'pip install "gradwire[{extra}]", or in a checkout pip install ".[{extra}]"'


def counted(amount: int, noun: str) -> str:
    """Return a count with its noun: "1 axis", "2 axes", "0 values"."""
    return f"{amount} {noun if amount == 1 else _PLURALS.get(noun, f'{noun}s')}"


def named_as_arguments(text: str) -> str:
    """Replace wire paths by the SDK's names of arguments and attributes."""
    return _PATHS.sub(lambda path: _ARGUMENTS.get(path[0], ""), text)


class GradwireError(Exception):
    """Base of every error this package raises on purpose.

    reason      name of v1.ErrorReason without its prefix, such as "INVALID_FIELD"; empty where a
                status came without one, as from a proxy
    request_id  name of the request in the server's log; None if no request was sent or answered
    metadata    each variable part of the message, by name
    status      name of the gRPC status code, such as "UNAVAILABLE"; empty where no call had one
    checked     whether the request that failed had a checksum
    """

    default_reason = ""
    status = ""
    checked = False

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        request_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = self.default_reason if reason is None else reason
        self.request_id = request_id
        self.metadata = dict(metadata or {})


class InvalidRequestError(GradwireError, ValueError):
    """The request can never succeed; the message names the argument.

    field  path on the wire of the wrong field, such as "operator.dml_resample_grad.scales[2]", or
           the argument's name if it does not travel; None if no single field is at fault. The
           message has the argument's name: array.shape for input.sizes
    """

    default_reason = "INVALID_FIELD"

    def __init__(self, message: str, *, field: str | None = None, **others: Any) -> None:
        super().__init__(message, **others)
        self.field = field

    @classmethod
    def of(cls, field: str, description: str) -> Self:
        """Make an error that names the field, its value and a remedy."""
        message = named_as_arguments(f"{field}: {description}")
        return cls(message, field=field, metadata={"field": field})

    @property
    def description(self) -> str:
        """Value that came and values that would do, without the name."""
        return str(self).removeprefix(f"{named_as_arguments(self.field or '')}: ")


class UnsupportedOperatorError(GradwireError):
    """The server does not know the operator or a field."""

    default_reason = "UNKNOWN_OPERATOR"


class LimitExceededError(GradwireError):
    """A limit of this server is exceeded; a retry does not help."""

    default_reason = "LIMIT_EXCEEDED"

    @property
    def limit(self) -> str | None:
        """Name of the limit in v1.Limits; None if unknown."""
        return self.metadata.get("limit")


class UseStreamError(LimitExceededError):
    """Request or result is too large for one message; use a stream."""

    default_reason = "USE_STREAM"


class _RetryLaterError(GradwireError):
    """Base of errors after which a later retry may succeed.

    retry_after_s  seconds after which a retry is welcome; 0 where the server named none
    """

    def __init__(self, message: str, *, retry_after_s: float = 0.0, **others: Any) -> None:
        super().__init__(message, **others)
        self.retry_after_s = retry_after_s


class OverloadedError(_RetryLaterError):
    """The server is full; a retry after retry_after_s seconds is welcome."""

    default_reason = "OVERLOADED"


class OutOfMemoryError(GradwireError):
    """The server's memory ran out during evaluation; the server stays up."""

    default_reason = "OUT_OF_MEMORY"


class DeadlineExceededError(GradwireError, TimeoutError):
    """The deadline has passed, or the stream stalled for too long."""

    default_reason = "DEADLINE_EXCEEDED"


class CallCancelledError(GradwireError):
    """The call was cancelled before its result was complete."""


class UnavailableError(_RetryLaterError, ConnectionError):
    """No server answers at the target, or the connection broke.

    It is raised too while a server starts, stops, or opens a lost GPU anew.

    retry_after_s  seconds after which a server that starts, or opens its GPU, welcomes a retry;
                   otherwise 0
    lasting        whether waiting does not help: the server does not use TLS although the client
                   does, or its certificate is not signed by a trusted authority
    unreachable    whether no connection was established, as when it was refused or the host's name
                   is not known
    """

    lasting = False
    unreachable = False


class EvaluationChangedError(GradwireError):
    """The interrupted stream does not match this server's evaluation.

    A fresh stream starts at byte 0.
    """

    default_reason = "EVALUATION_CHANGED"


class AuthenticationError(GradwireError):
    """A token is missing, unknown to the server, or expired."""

    default_reason = "UNAUTHENTICATED"


class PermissionDeniedError(GradwireError):
    """The token or caller lacks the permission for the call.

    The token lacks the call's scope, or the server allows it to other callers only.
    """

    default_reason = "PERMISSION_DENIED"


class DataLossError(GradwireError):
    """The checksum shows that a message changed on its way.

    A retry helps.
    """

    default_reason = "CHECKSUM_MISMATCH"
    status = "DATA_LOSS"


class ServerError(GradwireError):
    """A fault of the server, or an answer that makes no sense."""
