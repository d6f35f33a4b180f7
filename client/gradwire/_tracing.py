"""What goes with every call: its token, and where OpenTelemetry is in use a span and its context.

A process that has not imported OpenTelemetry can have neither a tracer nor an active span, so that
this package neither needs nor imports it.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from gradwire._tokens import Bearer, Sent
from gradwire.errors import GradwireError

Context = Sent


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

    def __init__(self, metadata: Context | None = None) -> None:
        self.metadata = metadata

    def note(self, answer: object) -> None:
        """Do nothing."""


_NO_SPAN = nullcontext(_NoSpan())


def call_span(
    method: str, *, target: str, bearer: Bearer | None
) -> AbstractContextManager[CallSpan]:
    """Start the span of a try of a method, as a child of the span that is active here.

    bearer  shows a token with the call, traced or not

    Nothing is traced of a call without a name, which goes to another service.
    """
    sent = None if bearer is None else bearer.metadata()
    if not method or "opentelemetry.trace" not in sys.modules:
        return _NO_SPAN if sent is None else nullcontext(_NoSpan(sent))
    from gradwire._spans import client_span  # noqa: PLC0415 - it imports OpenTelemetry

    return client_span(method, target=target, sent=sent or ())


def method_of(request: object) -> str:
    """Return the name of the method that takes a request."""
    return type(request).__name__.removesuffix("Request")


def status_of(answer: object) -> str:
    """Return the name of the status code that an answer stands for."""
    return (answer.status or "UNKNOWN") if isinstance(answer, GradwireError) else "OK"
