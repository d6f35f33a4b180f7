"""Whatever way a server's error comes, it becomes the same exception."""

import copy
import pickle

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2, error_details_pb2, status_pb2

from gradwire import errors, v1
from gradwire._wire.statuses import BY_REASON, from_in_band, from_status
from gradwire.errors import GradwireError, InvalidRequestError, LimitExceededError

# One row for each reason: status code, exception, and the built-in one it may be caught as.
TABLE = {
    "INVALID_FIELD": ("INVALID_ARGUMENT", InvalidRequestError, ValueError),
    "INVALID_DATA": ("INVALID_ARGUMENT", InvalidRequestError, ValueError),
    "UNKNOWN_FIELD": ("UNIMPLEMENTED", errors.UnsupportedOperatorError, GradwireError),
    "UNKNOWN_OPERATOR": ("UNIMPLEMENTED", errors.UnsupportedOperatorError, GradwireError),
    "USE_STREAM": ("FAILED_PRECONDITION", errors.UseStreamError, LimitExceededError),
    "LIMIT_EXCEEDED": ("FAILED_PRECONDITION", LimitExceededError, GradwireError),
    "TABLE_TOO_LARGE": ("FAILED_PRECONDITION", LimitExceededError, GradwireError),
    "LAYOUT_NOT_STREAMABLE": ("FAILED_PRECONDITION", LimitExceededError, GradwireError),
    "OVERLOADED": ("RESOURCE_EXHAUSTED", errors.OverloadedError, GradwireError),
    "OUT_OF_MEMORY": ("RESOURCE_EXHAUSTED", errors.OutOfMemoryError, GradwireError),
    "DEADLINE_EXCEEDED": ("DEADLINE_EXCEEDED", errors.DeadlineExceededError, TimeoutError),
    "STALLED": ("DEADLINE_EXCEEDED", errors.DeadlineExceededError, TimeoutError),
    "DRAINING": ("UNAVAILABLE", errors.UnavailableError, ConnectionError),
    "EVALUATION_CHANGED": ("ABORTED", errors.EvaluationChangedError, GradwireError),
    "INTERNAL": ("INTERNAL", errors.ServerError, GradwireError),
    "STARTING": ("UNAVAILABLE", errors.UnavailableError, ConnectionError),
    "DEVICE_LOST": ("UNAVAILABLE", errors.UnavailableError, ConnectionError),
    "UNAUTHENTICATED": ("UNAUTHENTICATED", errors.AuthenticationError, GradwireError),
    "PERMISSION_DENIED": ("PERMISSION_DENIED", errors.PermissionDeniedError, GradwireError),
    "UNKNOWN_SEGMENT": ("UNAVAILABLE", errors.UnavailableError, ConnectionError),
    "CHECKSUM_MISMATCH": ("DATA_LOSS", errors.DataLossError, GradwireError),
}

METADATA = {"limit": "max_elements", "request_id": "r-1"}
FIELD = "operator.dml_resample_grad.scales[2]"
MESSAGE = f"{FIELD}: is nan; give numbers"
# As the caller wrote it.
TOLD = "scales[2]: is nan; give numbers"


def details(*each):
    status = status_pb2.Status()
    for detail in each:
        status.details.add().Pack(detail)
    return status.SerializeToString()


def info(reason, domain="gradwire.v1"):
    return error_details_pb2.ErrorInfo(reason=reason, domain=domain, metadata=METADATA)


Bad = error_details_pb2.BadRequest
BAD = Bad(field_violations=[Bad.FieldViolation(field=FIELD, description="is nan")])
DELAY = Duration(seconds=1, nanos=500_000_000)
RETRY = error_details_pb2.RetryInfo(retry_delay=DELAY)


def by_status(code, reason):
    return from_status(code, MESSAGE, details(info(reason), BAD, RETRY))


def by_number(code, reason):
    number = grpc.StatusCode[code].value[0]
    return from_status(number, MESSAGE, details(RETRY, BAD, info(reason)))


def in_band(code, reason):
    error = v1.Error(
        code=code_pb2.Code.Value(code),
        reason=v1.ErrorReason.Value(f"ERROR_REASON_{reason}"),
        message=MESSAGE,
        metadata=METADATA,
        field_violations=[v1.Error.FieldViolation(field=FIELD, description="is nan")],
        retry_after=DELAY,
    )
    return from_in_band(v1.Error.FromString(error.SerializeToString()))


def test_every_reason_of_the_schema_has_one_exception():
    reasons = [name.removeprefix("ERROR_REASON_") for name in v1.ErrorReason.keys()]  # noqa: SIM118
    assert reasons == ["UNSPECIFIED", *TABLE]
    assert list(BY_REASON) == list(TABLE)


@pytest.mark.parametrize("way", [by_status, by_number, in_band])
@pytest.mark.parametrize("reason", TABLE)
def test_a_reason_becomes_its_exception_whichever_way_it_comes(reason, way):
    code, kind, caught_as = TABLE[reason]
    error = way(code, reason)
    assert type(error) is kind
    assert isinstance(error, caught_as)
    assert (str(error), error.reason, error.request_id) == (TOLD, reason, "r-1")
    assert error.metadata == METADATA
    if isinstance(error, InvalidRequestError):
        assert (error.field, error.description) == (FIELD, "is nan; give numbers")
    if isinstance(error, errors.OverloadedError | errors.UnavailableError):
        assert error.retry_after_s == 1.5
    if isinstance(error, LimitExceededError):
        assert error.limit == "max_elements"
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301
        assert type(twin) is type(error)
        assert (str(twin), vars(twin)) == (str(error), vars(error))


# Any other code is a ServerError.
OF_CODES = {
    "CANCELLED": errors.CallCancelledError,
    "INVALID_ARGUMENT": InvalidRequestError,
    "DEADLINE_EXCEEDED": errors.DeadlineExceededError,
    "PERMISSION_DENIED": errors.PermissionDeniedError,
    "RESOURCE_EXHAUSTED": LimitExceededError,
    "FAILED_PRECONDITION": LimitExceededError,
    "UNIMPLEMENTED": errors.UnsupportedOperatorError,
    "UNAVAILABLE": errors.UnavailableError,
    "UNAUTHENTICATED": errors.AuthenticationError,
}
CODES = [code.name for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
FOREIGN_DETAILS = [
    None,
    b"",
    b"\xff\xff",
    details(info("OVERLOADED", domain="proxy.example"), RETRY),
    details(RETRY),
    details(info("A_REASON_OF_LATER"), RETRY),
]


@pytest.mark.parametrize("given", FOREIGN_DETAILS, ids=range(len(FOREIGN_DETAILS)))
@pytest.mark.parametrize("code", CODES)
def test_without_a_reason_of_ours_the_code_decides(code, given):
    error = from_status(code, "from a proxy", given)
    assert type(error) is OF_CODES.get(code, errors.ServerError)
    assert error.reason in ("", "A_REASON_OF_LATER")
    assert str(error).endswith("from a proxy")


def test_overload_without_a_retry_delay_is_a_limit_and_not_retried():
    in_stream = v1.Error(code=8, reason=v1.ErrorReason.ERROR_REASON_OVERLOADED, message="full")
    error = from_status("RESOURCE_EXHAUSTED", "full", details(info("OVERLOADED")))
    assert type(error) is type(from_in_band(in_stream)) is LimitExceededError


def test_a_reason_of_later_on_a_stream_leaves_it_to_the_code():
    error = from_in_band(v1.Error(code=3, reason=99, message="new"))
    assert (type(error), error.reason) == (InvalidRequestError, "")


def test_a_server_error_without_words_or_reason_names_its_code():
    assert "PERMISSION_DENIED" in str(from_status(7, "", None))
    assert "status 99" in str(from_status(99, "", None))


def test_an_error_made_here_has_its_reason_too():
    error = InvalidRequestError.of("input.sizes", "has 0 axes")
    assert (error.reason, error.field, error.request_id) == ("INVALID_FIELD", "input.sizes", None)
    assert str(error) == "array.shape: has 0 axes"
    assert errors.DeadlineExceededError("over").reason == "DEADLINE_EXCEEDED"
    assert LimitExceededError("over").limit is None
