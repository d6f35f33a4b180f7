"""What a refused call says, and what every refusal must say."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from gradwire import v1

DOMAIN = "gradwire.v1"

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A status that is not OK.

    trailers  trailing metadata of text
    details   the metadata `grpc-status-details-bin`; empty where none came
    in_band   the error that a stream ended with
    """

    code: grpc.StatusCode
    message: str
    trailers: Mapping[str, str]
    details: bytes
    in_band: v1.Error | None = None

    @property
    def status(self) -> status_pb2.Status:
        return status_pb2.Status.FromString(self.details)

    @property
    def info(self) -> error_details_pb2.ErrorInfo:
        return self._detail(error_details_pb2.ErrorInfo())

    @property
    def violations(self) -> list[tuple[str, str]]:
        request = self._detail(error_details_pb2.BadRequest())
        return [(each.field, each.description) for each in request.field_violations]

    @property
    def retry_after_s(self) -> float | None:
        """Seconds of RetryInfo; None where there is none."""
        retry = self._detail(error_details_pb2.RetryInfo())
        given = retry.HasField("retry_delay")
        return retry.retry_delay.ToNanoseconds() / 1e9 if given else None

    def _detail(self, kind: M) -> M:
        for detail in self.status.details:
            if detail.Unpack(kind):
                break
        return kind


def refusal_of(error: object, in_band: v1.Error | None = None) -> Refusal:
    call: Any = error
    metadata: Any = call.trailing_metadata() or ()
    details = next((value for key, value in metadata if key == "grpc-status-details-bin"), b"")
    return Refusal(call.code(), call.details() or "", trailers_of(call), details, in_band)


def trailers_of(call: Any) -> dict[str, str]:
    pairs = call.trailing_metadata() or ()
    return {key: value for key, value in pairs if isinstance(value, str)}


def check_refusal(
    refusal: Refusal | None, code: grpc.StatusCode, reason: str, *, field: str | None = None
) -> Refusal:
    """Assert that a call was refused in this way, and in every point as any refusal must be."""
    assert refusal is not None, "the call was answered"
    said = (refusal.code, refusal.info.reason, refusal.message)
    assert said[:2] == (code, reason), said
    assert refusal.info.domain == DOMAIN
    assert refusal.message
    assert refusal.message.isprintable()
    status = refusal.status
    assert (status.code, status.message) == (code.value[0], refusal.message)
    assert [path for path, _ in refusal.violations] == ([] if field is None else [field]), said
    assert field is None or refusal.message.startswith(f"{field}: ")
    later = reason in {"OVERLOADED", "STARTING", "DEVICE_LOST"}
    assert (refusal.retry_after_s is not None) == later
    for key, trailer in (("request_id", "gradwire-request-id"), ("traceparent", "traceparent")):
        assert refusal.info.metadata[key] == refusal.trailers[trailer] != ""
    # As they travel: a message is percent-encoded.
    assert len(urllib.parse.quote(refusal.message)) + len(refusal.details) < 4096
    return refusal


def check_in_band(refusal: Refusal) -> None:
    """Assert that a stream said in its last message just what its status says."""
    error = refusal.in_band
    assert error is not None, "no error came in-band"
    assert error.code == refusal.code.value[0]
    assert v1.ErrorReason.Name(error.reason) == f"ERROR_REASON_{refusal.info.reason}"
    assert error.message == refusal.message
    assert dict(error.metadata) == dict(refusal.info.metadata)
    fields = [(each.field, each.description) for each in error.field_violations]
    assert fields == refusal.violations
    retry = error.retry_after.ToNanoseconds() / 1e9 if error.HasField("retry_after") else None
    assert retry == refusal.retry_after_s
