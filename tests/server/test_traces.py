"""Each call has a name and a trace, the caller's or new ones, and returns both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raw_calls import RawClient, as_stream, published_request
from serving import serving


@pytest.fixture(scope="module")
def client() -> Iterator[RawClient]:
    with serving() as server, RawClient(server.address) as client:
        yield client
        client.check_alive()


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "nonsense",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "x" * 4000,
    ],
)
def test_a_malformed_traceparent_starts_a_new_trace(client: RawClient, traceparent: str) -> None:
    answer = client.evaluate(published_request(), traceparent=traceparent)
    assert answer.refusal is None
    version, trace, span, flags = answer.trailers["traceparent"].split("-")
    assert (version, flags) == ("00", "00")
    assert int(trace, 16)
    assert int(span, 16)


def test_a_trace_and_a_name_return_in_every_reply(client: RawClient) -> None:
    for answer in (
        client.evaluate(published_request()),
        client.stream(as_stream(published_request())),
    ):
        assert answer.trailers["gradwire-request-id"] == published_request().request_id
        assert answer.trailers["traceparent"].startswith("00-0af7651916cd43dd8448eb211c80319c-")


def test_an_unnamed_request_is_given_a_name(client: RawClient) -> None:
    request = published_request()
    request.request_id = ""
    names = {client.evaluate(request).trailers["gradwire-request-id"] for _ in range(3)}
    assert len(names) == 3
    assert all(len(name) == 32 for name in names)


@pytest.mark.parametrize("name", [" ", " a ", "~" * 128, "%25 \"'\\"])
def test_any_printable_name_returns_as_it_is(client: RawClient, name: str) -> None:
    request = published_request()
    request.request_id = name
    answer = client.evaluate(request)
    assert answer.refusal is None
    assert answer.trailers["gradwire-request-id"] == name
