"""A refusal that is made in little time says what any other would."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from gated import gated, laborious, wait_for
from gradwire_server.errors import OverloadedError
from gradwire_server.failures import failure
from gradwire_server.refusals import overload_details
from raw_calls import RawClient, wait_idle
from refusals import check_refusal

# How long a call takes here.
LONG_S = 0.02
WORDS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=128)


@given(message=WORDS, milliseconds=st.integers(1, 10_000), limit=WORDS, name=WORDS, trace=WORDS)
def test_its_details_are_those_of_the_table(
    message: str, milliseconds: int, limit: str, name: str, trace: str
) -> None:
    error = OverloadedError(4 * message, retry_after_s=milliseconds / 1e3, limit=limit)
    expected = failure(error).within(request_id=name, traceparent=trace).details()
    written = overload_details(error, name, trace)
    one, other = (status_pb2.Status.FromString(each) for each in (written, expected))
    assert (one.code, one.message) == (other.code, other.message)
    for kind in (error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo):
        found, wanted = kind(), kind()
        assert sum(detail.Unpack(found) for detail in one.details) == 1
        assert sum(detail.Unpack(wanted) for detail in other.details) == 1
        assert found == wanted
    assert len(one.details) == len(other.details)


@contextmanager
def full() -> Generator[RawClient]:
    """Run a server that knows laborious calls, has two in its slots, and lets none wait."""
    with (
        gated(max_queue_s=0.001, max_standing_queue_s=0.001) as (server, gate),
        RawClient(server.address) as client,
    ):
        first = client.stub.Evaluate.future(laborious())
        wait_for(server, computing=1, waiting=0)
        time.sleep(LONG_S)
        gate.set()
        first.result()
        wait_idle(server)
        gate.clear()
        calls = [client.stub.Evaluate.future(laborious()) for _ in range(2)]
        wait_for(server, computing=2, waiting=0)
        yield client
        gate.set()
        for call in calls:
            call.result()
        wait_idle(server)


@pytest.mark.parametrize("name", ["", "a name of its own"])
def test_a_full_server_says_when_to_come_back(name: str) -> None:
    request = laborious()
    request.request_id = name
    with full() as client:
        refusal = client.evaluate(request).refusal
    checked = check_refusal(refusal, grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
    assert checked.info.metadata["limit"] in {"max_queue_s", "max_standing_queue_s"}
    assert checked.retry_after_s is not None
    assert checked.retry_after_s > LONG_S
    assert name in checked.trailers["gradwire-request-id"]


def test_a_full_server_tells_what_is_wrong_with_a_request() -> None:
    long, unprintable = laborious(), laborious()
    long.data += bytes(1)
    unprintable.request_id = "\n"
    with full() as client:
        for request, field in ((long, "data"), (unprintable, "request_id")):
            refusal = client.evaluate(request).refusal
            assert refusal is not None
            assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
            assert [path for path, _ in refusal.violations] == [field]
