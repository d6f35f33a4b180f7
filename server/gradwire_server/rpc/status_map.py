"""gRPC statuses of exceptions, in the forms that are sent."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode

from gradwire import v1
from gradwire.errors import DataLossError
from gradwire_server import errors
from gradwire_server.observability.recording import ErrorStatus

DOMAIN = "gradwire.v1"

# grpcio turns larger trailers into RESOURCE_EXHAUSTED, so message and details stay under 4 KiB.
_MAX_MESSAGE = 600
_MAX_FACT = 200

# Status, reason and message of exceptions of the interpreter.
INTERPRETERS: dict[type[BaseException], tuple[str, str, str]] = {
    MemoryError: ("RESOURCE_EXHAUSTED", "OUT_OF_MEMORY", "memory ran out during the evaluation"),
    TimeoutError: ("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED", "the deadline has passed"),
    BaseException: (
        "INTERNAL",
        "INTERNAL",
        "internal error; the server's log has more under this request_id",
    ),
}


class EncodedStatus(ErrorStatus):
    """An error in the forms that are sent to a caller."""

    @property
    def code(self) -> StatusCode:
        """The status code."""
        return StatusCode[self.status]

    def in_band(self) -> v1.Error:
        """Encode the error as a stream's last message."""
        error = v1.Error(
            code=self.code.value[0],
            reason=v1.ErrorReason.Value(f"ERROR_REASON_{self.reason_name}"),
            message=self.message,
            metadata=self.facts,
            field_violations=[
                v1.Error.FieldViolation(field=path, description=text)
                for path, text in self.violations
            ],
        )
        if self.retry_after_s is not None:
            error.retry_after.CopyFrom(duration(self.retry_after_s))
        return error

    def details(self) -> bytes:
        """Encode the error as the trailing metadata `grpc-status-details-bin`."""
        parts: list[Message] = [
            error_details_pb2.ErrorInfo(reason=self.reason_name, domain=DOMAIN, metadata=self.facts)
        ]
        if self.violations:
            request = error_details_pb2.BadRequest()
            for path, text in self.violations:
                request.field_violations.add(field=path, description=text)
            parts.append(request)
        if self.retry_after_s is not None:
            parts.append(error_details_pb2.RetryInfo(retry_delay=duration(self.retry_after_s)))
        status = status_pb2.Status(code=self.code.value[0], message=self.message)
        for part in parts:
            status.details.add().Pack(part)
        return status.SerializeToString()


def failure(error: BaseException) -> EncodedStatus:
    """Return the status of an exception.

    Exceptions without one are INTERNAL, without details.
    """
    if isinstance(error, DataLossError):  # raised by code that both sides share
        error = errors.ChecksumError(str(error))
    if not isinstance(error, errors.EvaluationError):
        return EncodedStatus(
            *next(told for kind, told in INTERPRETERS.items() if isinstance(error, kind))
        )
    field = error if isinstance(error, errors.InvalidFieldError) else None
    return EncodedStatus(
        *error.status,
        _short(error.message, _MAX_MESSAGE),
        {name: _short(fact, _MAX_FACT) for name, fact in error.facts.items()},
        ((field.field, _short(field.description, _MAX_MESSAGE)),) if field else (),
        error.retry_after_s if isinstance(error, errors.RetryLaterError) else None,
    )


def _short(text: str, length: int) -> str:
    if not (text.isascii() and text.isprintable()):
        # The text may quote the caller: in a status each non-ASCII byte is encoded as three.
        text = ascii(text[: length + 1])[1:-1]
    return text if len(text) <= length else text[: length - 3] + "..."


def duration(seconds: float) -> Duration:
    """Convert seconds to a Duration."""
    return Duration(seconds=int(seconds), nanos=int(seconds % 1 * 1e9))
