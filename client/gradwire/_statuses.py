"""The one table that turns a server's errors into exceptions.

An error comes twice: as the status of the call, whose details are a `google.rpc.Status` in the
trailing metadata `grpc-status-details-bin`, and, on a stream, before it as a v1.Error. The reason
decides; where it is missing, as with a status that a proxy made, or is newer than this package,
the status code does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2

from gradwire import v1
from gradwire._hints import is_lasting, is_unreachable, with_hint
from gradwire.errors import (
    AuthenticationError,
    CallCancelledError,
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
}

# A code that is not here means ServerError. RESOURCE_EXHAUSTED without our reason is what grpc
# itself says of a message over its own limit: a retry does not help.
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


@dataclass(frozen=True, slots=True)
class _Facts:
    """What one error says, however it came.

    code           name of the status code
    reason         name of v1.ErrorReason without its prefix; empty where none came
    field          path of the first field at fault
    retry_after_s  seconds; None where a retry does not help
    """

    code: str
    message: str
    reason: str = ""
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    field: str | None = None
    retry_after_s: float | None = None


def from_status(
    code: int | str,
    message: str,
    details: bytes | None,
    *,
    request_id: str | None = None,
) -> GradwireError:
    """Turn the status of a call into an exception.

    code        number or name of the gRPC status code
    details     value of the trailing metadata `grpc-status-details-bin`, if any
    request_id  value of the trailing metadata `gradwire-request-id`, if any
    """
    return _exception(_facts_of_status(_code_name(code), message, details), request_id)


def from_in_band(error: v1.Error, *, request_id: str | None = None) -> GradwireError:
    """Turn the error message of a stream into an exception."""
    violations = error.field_violations
    facts = _Facts(
        code=_code_name(error.code),
        message=error.message,
        reason=_reason_name(error.reason),
        metadata=dict(error.metadata),
        field=violations[0].field if violations else None,
        retry_after_s=_seconds(error.retry_after) if error.HasField("retry_after") else None,
    )
    return _exception(facts, request_id)


def _facts_of_status(code: str, message: str, details: bytes | None) -> _Facts:
    info = error_details_pb2.ErrorInfo()
    request = error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    try:
        for detail in status_pb2.Status.FromString(details or b"").details:
            for known in (info, request, retry):
                detail.Unpack(known)
    except DecodeError:
        return _Facts(code, message)
    if info.domain != ERROR_DOMAIN:
        return _Facts(code, message)
    violations = request.field_violations
    return _Facts(
        code=code,
        message=message,
        reason=info.reason,
        metadata=dict(info.metadata),
        field=violations[0].field if violations else None,
        retry_after_s=_seconds(retry.retry_delay) if retry.HasField("retry_delay") else None,
    )


def _exception(facts: _Facts, request_id: str | None) -> GradwireError:
    error = _without_status(facts, request_id)
    error.status = facts.code
    if isinstance(error, UnavailableError) and not facts.reason:
        error.lasting = is_lasting(facts.message)
        error.unreachable = is_unreachable(facts.message)
    return error


def _without_status(facts: _Facts, request_id: str | None) -> GradwireError:
    kind = BY_REASON.get(facts.reason) or BY_CODE.get(facts.code, ServerError)
    if kind is OverloadedError and facts.retry_after_s is None:
        kind = LimitExceededError
    message = (
        named_as_arguments(facts.message) or f"the server answered {facts.code} without a word"
    )
    if kind is UnavailableError and not facts.reason:
        message = with_hint(message)
    if kind is ServerError and not facts.reason:
        message = f"{facts.code}: {message}"
    request_id = request_id or facts.metadata.get("request_id")
    if kind is OverloadedError or kind is UnavailableError:
        return kind(
            message,
            retry_after_s=facts.retry_after_s or 0.0,
            reason=facts.reason,
            request_id=request_id,
            metadata=facts.metadata,
        )
    if kind is InvalidRequestError:
        return InvalidRequestError(
            message,
            field=facts.field or facts.metadata.get("field"),
            reason=facts.reason,
            request_id=request_id,
            metadata=facts.metadata,
        )
    return kind(message, reason=facts.reason, request_id=request_id, metadata=facts.metadata)


def _code_name(code: int | str) -> str:
    if isinstance(code, str):
        return code
    known = code_pb2.Code.DESCRIPTOR.values_by_number.get(code)
    return known.name if known is not None else f"status {code}"


def _reason_name(reason: v1.ErrorReason.ValueType) -> str:
    known = v1.ErrorReason.DESCRIPTOR.values_by_number.get(reason)
    if known is None or known.number == v1.ErrorReason.ERROR_REASON_UNSPECIFIED:
        return ""
    return known.name.removeprefix("ERROR_REASON_")


def _seconds(duration: Duration) -> float:
    return max(duration.ToNanoseconds() / 1e9, 0.0)
