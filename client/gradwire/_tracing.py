"""A span for every call, and its context on the way to the server, where OpenTelemetry is in use.

A process that has not imported OpenTelemetry can have neither a tracer nor an active span, so that
this package neither needs nor imports it.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from gradwire.errors import GradwireError

Context = tuple[tuple[str, str], ...]


class CallSpan(Protocol):
    """The span of one try of a call.

    metadata  what the call must send, None for nothing
    """

    metadata: Context | None

    def note(self, answer: object) -> None:
        """Tell how the call ended: a GradwireError, or anything else where it succeeded."""
        ...


class _NoSpan:
    """Stands where nothing is traced."""

    def __init__(self) -> None:
        self.metadata: Context | None = None

    def note(self, answer: object) -> None:
        """Do nothing."""


_NO_SPAN = nullcontext(_NoSpan())


def call_span(method: str, *, target: str) -> AbstractContextManager[CallSpan]:
    """Start the span of a try of a method, as a child of the span that is active here.

    Nothing is traced of a call without a name, which goes to another service.
    """
    if not method or "opentelemetry.trace" not in sys.modules:
        return _NO_SPAN
    from gradwire._spans import client_span  # noqa: PLC0415 - it imports OpenTelemetry

    return client_span(method, target=target)


def method_of(request: object) -> str:
    """Return the name of the method that takes a request."""
    return type(request).__name__.removesuffix("Request")


def status_of(answer: object) -> str:
    """Return the name of the status code that an answer stands for."""
    return (answer.status or "UNKNOWN") if isinstance(answer, GradwireError) else "OK"
