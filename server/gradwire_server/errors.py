"""Exceptions of the server's core; each names its status.

EvaluationError
├── InvalidFieldError           an attribute, shape, dtype or stride is not valid
│   └── InvalidDataError            the bytes are not those the descriptor promises
├── UnknownFieldError           the request carries a field this server does not know
├── UnknownOperatorError        the operator is not known to this server
├── UnknownModelError           no operator or configuration has the model's name
├── UnsupportedCallError        the call exists in a protocol, and this server does not serve it
├── MessageTooLargeError        too large for a unary call
├── RequestLimitError           a limit of this server; a retry does not help
│   ├── TableTooLargeError          the weight tables
│   └── LayoutNotStreamableError    axis orders differ and the tensor cannot be held whole
├── RetryLaterError             not now; a retry helps
│   ├── ServerFullError             the server is full
│   ├── StartingError               the server is getting ready
│   └── DeviceLostError             the device is lost; another process opens it, or has another one
├── StalledError                no progress for the stall timeout
├── DrainingError               the server is shutting down
├── UnauthenticatedError        a token is missing, or not taken
├── MissingScopeError           the caller's token lacks a scope
├── ChecksumError               a message changed on its way
├── UnknownSegmentError         shared memory is not registered here
└── DigestMismatchError         the evaluation to resume is another one
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

# Retry delay while a server starts, has lost its device, or has not measured how fast it drains.
RETRY_AFTER_S = 0.25


class EvaluationError(Exception):
    """Base of every error a request can be answered with.

    status   names of the gRPC status and of the reason, without the prefix of the enum
    message  for people: names the field, what came and what would do
    facts    each variable part of the message, by name
    """

    status: ClassVar[tuple[str, str]] = "INTERNAL", "INTERNAL"

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts = {name: str(value) for name, value in facts.items()}


class InvalidFieldError(EvaluationError):
    """An attribute, shape, dtype or stride is not valid.

    field is its path in the request.
    """

    status = "INVALID_ARGUMENT", "INVALID_FIELD"

    def __init__(self, field: str, message: str, **facts: object) -> None:
        super().__init__(f"{field}: {message}", field=field, **facts)
        self.field = field
        self.description = message


class InvalidDataError(InvalidFieldError):
    """The bytes contradict their descriptor, or messages are out of order."""

    status = "INVALID_ARGUMENT", "INVALID_DATA"


class UnknownFieldError(EvaluationError):
    """The request carries a field this server does not know."""

    status = "UNIMPLEMENTED", "UNKNOWN_FIELD"


class UnknownOperatorError(EvaluationError):
    """The operator is not known to this server."""

    status = "UNIMPLEMENTED", "UNKNOWN_OPERATOR"


class UnknownModelError(EvaluationError):
    """No operator or configuration has this name and version."""

    status = "NOT_FOUND", "UNKNOWN_OPERATOR"


class UnsupportedCallError(EvaluationError):
    """The server does not serve this call of a protocol."""

    status = "UNIMPLEMENTED", "UNKNOWN_OPERATOR"


class MessageTooLargeError(EvaluationError):
    """Request or result is too large for a unary call."""

    status = "FAILED_PRECONDITION", "USE_STREAM"


class RequestLimitError(EvaluationError):
    """A limit of this server is exceeded; a retry does not help."""

    status = "FAILED_PRECONDITION", "LIMIT_EXCEEDED"


class TableTooLargeError(RequestLimitError):
    """The weight tables would exceed this server's limit."""

    status = "FAILED_PRECONDITION", "TABLE_TOO_LARGE"


class LayoutNotStreamableError(RequestLimitError):
    """The tensor is too large for a change of axis order.

    Input and output axis orders differ, and the tensor is too large to hold whole.
    """

    status = "FAILED_PRECONDITION", "LAYOUT_NOT_STREAMABLE"


class RetryLaterError(EvaluationError):
    """Not now; a retry after retry_after_s seconds is welcome."""

    def __init__(
        self, message: str, *, retry_after_s: float = RETRY_AFTER_S, **facts: object
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s, **facts)
        self.retry_after_s = retry_after_s


class ServerFullError(RetryLaterError):
    """The server is full."""

    status = "RESOURCE_EXHAUSTED", "OVERLOADED"


class StartingError(RetryLaterError):
    """The server is getting ready."""

    status = "UNAVAILABLE", "STARTING"


class DeviceLostError(RetryLaterError):
    """The device is lost for this process, with its results.

    A backend raises it where an error of the device lasts. Only another process can open the
    device: a server's worker ends and is replaced, and callers may retry after retry_after_s.
    """

    status = "UNAVAILABLE", "DEVICE_LOST"


class StalledError(EvaluationError):
    """The stream made no progress for the stall timeout."""

    status = "DEADLINE_EXCEEDED", "STALLED"


class DrainingError(EvaluationError):
    """The server is shutting down."""

    status = "UNAVAILABLE", "DRAINING"


class DigestMismatchError(EvaluationError):
    """The evaluation to resume is not the one this server computes."""

    status = "ABORTED", "EVALUATION_CHANGED"


class UnauthenticatedError(EvaluationError):
    """A token is missing, or not taken."""

    status = "UNAUTHENTICATED", "UNAUTHENTICATED"


class MissingScopeError(EvaluationError):
    """The caller's token lacks a scope."""

    status = "PERMISSION_DENIED", "PERMISSION_DENIED"


class ChecksumError(EvaluationError):
    """A checksum is missing, or does not match the message."""

    status = "DATA_LOSS", "CHECKSUM_MISMATCH"


class UnknownSegmentError(EvaluationError):
    """The shared memory named is not registered with this worker."""

    status = "UNAVAILABLE", "UNKNOWN_SEGMENT"


def beyond(came: str, limit: str, allowed: object) -> str:
    """Describe an exceeded limit, and the setting to raise."""
    return f"{came}; this server allows {allowed} (its setting GRADWIRE_{limit.upper()})"


_MANY = {"axis": "axes", "spatial axis": "spatial axes"}


def counted(amount: int, noun: str) -> str:
    """Return a count with its noun: "1 axis", "2 axes", "0 values"."""
    return f"{amount} {noun if amount == 1 else _MANY.get(noun, f'{noun}s')}"


def shortest(value: float) -> str:
    """Write a float32 with the fewest digits that identify it."""
    return str(np.float32(value))
