"""Who may not call gets nothing but a refusal, of every method, before anything of it is read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from every_method import (
    EVERY,
    HEALTH,
    REFLECTION,
    REQUESTS,
    SERVICE,
    SHARED,
    UNKNOWN,
    bearer,
    call,
    methods_of_the_schema,
    own_address,
)
from gradwire import v1
from gradwire_server.config.tokens import Scope, add_token
from gradwire_server.rpc.interceptors import SCOPES
from papers import Papers, pair, trusting
from raw_calls import RawClient, published_request, wait_idle
from refusals import check_refusal
from serving import ServerThread, serving

UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
PERMISSION_DENIED = grpc.StatusCode.PERMISSION_DENIED
YESTERDAY = datetime.now(UTC).date() - timedelta(days=2)


class Guarded:
    """A server with a tokens file, and tokens of each kind."""

    def __init__(self, server: ServerThread, path: Path) -> None:
        self.server = server
        self.tokens = {
            scope.value: add_token(path, name=scope.value, scopes=[scope]) for scope in Scope
        }
        self.both = add_token(path, name="both", scopes=list(Scope))
        self.expired = add_token(path, name="old", scopes=list(Scope), expires=YESTERDAY)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    path = tmp_path_factory.mktemp("guarded") / "tokens"
    add_token(path, name="first", scopes=list(Scope))
    with serving(tokens=str(path)) as server:
        yield Guarded(server, path)


@pytest.fixture
def channel(guarded: Guarded) -> Iterator[grpc.Channel]:
    with RawClient(guarded.server.address) as client:
        yield client.channel


def test_every_method_has_a_scope() -> None:
    named = {f"{SERVICE}/GetServerInfo", *SCOPES}  # the rest needs INSPECT
    assert named == methods_of_the_schema() == EVERY.keys() - {REFLECTION} | {SHARED}


@pytest.mark.parametrize("method", [*EVERY, SHARED, UNKNOWN])
def test_nobody_without_a_valid_token_gets_an_answer(
    guarded: Guarded, channel: grpc.Channel, method: str
) -> None:
    messages, token = EVERY.get(method, (b"",)), guarded.both
    shown: list[tuple[tuple[str, str], ...]] = [
        (),
        (("authorization", token),),
        (("authorization", f"Basic {token}"),),
        (bearer(token[:-1]),),
        (bearer(token + "x"),),
        (bearer(guarded.expired),),
        (bearer(token), bearer(token)),
        (("authorization", ""),),
        (("x-authorization", f"Bearer {token}"),),
    ]
    for metadata in shown:
        replies, refusal = call(channel, method, messages, *metadata)
        check_refusal(refusal, UNAUTHENTICATED, "UNAUTHENTICATED")
        # Streams say it in a message besides.
        in_band = method in {f"{SERVICE}/EvaluateStream", f"{SERVICE}/EvaluateMany"}
        assert len(replies) == in_band


@pytest.mark.parametrize("scope", REQUESTS)
def test_a_token_opens_the_methods_of_its_scopes_and_no_others(
    guarded: Guarded, channel: grpc.Channel, scope: str
) -> None:
    for needed, methods in REQUESTS.items():
        for method, messages in methods.items():
            for token in (guarded.tokens[scope], guarded.both):
                replies, refusal = call(channel, method, messages, bearer(token))
                if needed == scope or token == guarded.both:
                    assert refusal is None
                    assert replies
                else:
                    refused = check_refusal(refusal, PERMISSION_DENIED, "PERMISSION_DENIED")
                    assert f"lacks the scope {needed}" in refused.message


def test_who_may_call_hears_that_a_method_is_unknown(
    guarded: Guarded, channel: grpc.Channel
) -> None:
    _, refusal = call(channel, UNKNOWN, (b"",), bearer(guarded.tokens["evaluate"]))
    assert refusal is not None
    assert refusal.code is grpc.StatusCode.UNIMPLEMENTED


def test_health_is_for_everybody(channel: grpc.Channel) -> None:
    assert call(channel, HEALTH, (b"",)) == ([b"\x08\x01"], None)


def test_a_stream_is_refused_before_it_is_read(guarded: Guarded, channel: grpc.Channel) -> None:
    never = threading.Event()

    def messages() -> Iterator[bytes]:
        never.wait()
        yield b""

    try:
        for method in (f"{SERVICE}/Evaluate", f"{SERVICE}/EvaluateStream", REFLECTION):
            _, refusal = call(channel, method, messages())
            check_refusal(refusal, UNAUTHENTICATED, "UNAUTHENTICATED")
    finally:
        never.set()
    wait_idle(guarded.server)


def test_what_is_refused_takes_no_room_of_others(guarded: Guarded, channel: grpc.Channel) -> None:
    admission = guarded.server.server.service.admission
    entered = admission.entered
    for method, messages in EVERY.items():
        call(channel, method, messages, bearer("none"))
    assert admission.entered == entered


@pytest.fixture(scope="module")
def away() -> Iterator[str]:
    """Run a server that is called from an address which is not loopback."""
    own = own_address()
    if own is None:
        pytest.skip("this machine has no address but loopback")
    with serving(address=f"{own}:0", insecure=True) as server:
        yield server.address


def test_strangers_may_evaluate_and_not_look(away: str) -> None:
    with RawClient(away) as client:
        for scope, methods in REQUESTS.items():
            for method, messages in methods.items():
                replies, refusal = call(client.channel, method, messages)
                if scope == "evaluate":
                    assert refusal is None
                    assert replies
                else:
                    check_refusal(refusal, PERMISSION_DENIED, "PERMISSION_DENIED")
                    assert not replies


def test_strangers_may_do_what_anonymous_scopes_says(away: str) -> None:
    settings: dict[str, Any] = {"address": away.rpartition(":")[0] + ":0", "insecure": True}
    with serving(**settings, anonymous_scopes="") as server, RawClient(server.address) as client:
        for method, messages in EVERY.items():
            _, refusal = call(client.channel, method, messages)
            check_refusal(refusal, PERMISSION_DENIED, "PERMISSION_DENIED")
        assert call(client.channel, HEALTH, (b"",))[1] is None
    scopes = "evaluate,inspect"
    with (
        serving(**settings, anonymous_scopes=scopes) as server,
        RawClient(server.address) as client,
    ):
        for method, messages in EVERY.items():
            assert call(client.channel, method, messages)[1] is None


def test_strangers_with_a_certificate_may_do_all(away: str, tmp_path: Path) -> None:
    host = away.rpartition(":")[0]
    papers = Papers(tmp_path)
    papers.write(name=host)
    with (
        serving(address=f"{host}:0", anonymous_scopes="", **papers.mutual) as server,
        RawClient(server.address, trusting(papers.roots, pair(papers.authority))) as client,
    ):
        for method, messages in EVERY.items():
            assert call(client.channel, method, messages)[1] is None


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:0", "unix:{}/socket"])
def test_this_machine_may_do_all_and_in_any_way(address: str, tmp_path: Path) -> None:
    listening = {"address": address.format(tmp_path), "anonymous_scopes": ""}
    with serving(**listening) as server, RawClient(server.address) as client:
        client.check_alive()
        for method, messages in EVERY.items():
            replies, refusal = call(client.channel, method, messages)
            assert refusal is None
            assert replies
        info = client.stub.GetServerInfo(v1.GetServerInfoRequest())
        assert info.backend
        # A call that is asked whence it comes fails as any other does.
        request = published_request()
        request.data = b""
        check_refusal(
            client.evaluate(request).refusal,
            grpc.StatusCode.INVALID_ARGUMENT,
            "INVALID_DATA",
            field="data",
        )
        _, refusal = call(client.channel, f"{SERVICE}/Evaluate", ())
        check_refusal(refusal, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_DATA", field="message")
        wait_idle(server)


def test_the_log_counts_refusals_and_names_no_token(
    guarded: Guarded, channel: grpc.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gradwire_server")
    secret = guarded.both[:-1] + "!"
    for _ in range(20):
        call(channel, f"{SERVICE}/Evaluate", (b"",), bearer(secret))
    call(channel, f"{SERVICE}/ListOperators", (b"",), bearer(guarded.both))
    lines = [(record.getMessage(), getattr(record, "facts", {})) for record in caplog.records]
    assert sum(event == "refused" for event, _ in lines) <= 2
    assert not [facts for _, facts in lines if "token" in str(facts.values()).lower()]
    assert secret not in str(lines)
    assert guarded.both not in str(lines)
