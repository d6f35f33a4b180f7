"""One place says who may do what: by token where there is a file of them, else by place."""

from __future__ import annotations

import logging
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from gradwire_server.config.settings import Settings
from gradwire_server.config.tokens import add_token, read_tokens, revoke_token
from gradwire_server.security.authorization import Authorizer, Scope, is_local, warn_if_open
from support.raw_calls import wait_until

HERE, AWAY = "ipv4:127.0.0.1:40000", "ipv4:192.0.2.7:40000"
LOCAL = (
    HERE,
    "ipv4:127.1.2.3:1",
    "ipv6:[::1]:5",
    "ipv6:%5B::1%5D:5",
    "ipv6:[::ffff:127.0.0.1]:5",
    "unix:",
    "unix:/run/x",
    "unix-abstract:x",
)
DISTANT = (
    AWAY,
    "ipv4:0.0.0.0:1",
    "ipv4:127.0.0.1.example.org:1",
    "ipv6:[2001:db8::1]:5",
    "ipv6:%5Bfe80::1%25eth0%5D:5",
    "ipv6:[::ffff:192.0.2.1]:5",
    "dns:localhost:1",
    "localhost",
    "",
)


def authorizer(path: Path, *, at: date = date(2026, 11, 1)) -> Authorizer:
    seconds = datetime(at.year, at.month, at.day, 23, 59, tzinfo=UTC).timestamp()
    return Authorizer(Settings(tokens=str(path)), clock=lambda: seconds)


def verdict(guard: Authorizer, scope: Scope, authorization: str | bytes | None, **call: str) -> str:
    refusal = guard.refusal(scope, authorization=authorization, peer=call.get("peer", HERE))
    return "" if refusal is None else ("forbidden" if refusal.authenticated else "unknown")


@pytest.mark.parametrize("peer", LOCAL)
def test_callers_of_this_machine_are_told_from_others(peer: str) -> None:
    assert is_local(peer)
    guard = Authorizer(Settings())
    assert [verdict(guard, scope, None, peer=peer) for scope in Scope] == ["", ""]


def test_who_shows_no_certificate_where_one_would_do_is_told_so() -> None:
    guard = Authorizer(Settings(tls_certificate="c", tls_key="k", tls_client_ca="ca"))
    refusal = guard.refusal(Scope.INSPECT, authorization=None, peer=AWAY)
    assert refusal is not None
    assert "use a client certificate signed by one of its --tls-client-ca" in refusal.message


TLS: dict[str, Any] = {"tls_certificate": "c", "tls_key": "k"}


@pytest.mark.parametrize(
    ("given", "warns"),
    [
        ({"insecure": True}, True),
        (TLS, True),
        ({**TLS, "tls_client_ca": "ca"}, False),
        ({"insecure": True, "tokens": "tokens"}, False),
        ({"insecure": True, "anonymous_scopes": ""}, False),
        ({"address": "127.0.0.1:0"}, False),
        ({"address": "unix:/run/gradwire"}, False),
    ],
    ids=str,
)
def test_the_log_warns_of_an_address_that_every_client_may_call(
    caplog: pytest.LogCaptureFixture, given: dict[str, Any], *, warns: bool
) -> None:
    settings: dict[str, Any] = {"address": "0.0.0.0:0", **given}
    warn_if_open(Settings(**settings))
    assert caplog.messages == (
        ["no tokens: every client that reaches the server may call it"] if warns else []
    )


@pytest.mark.parametrize("peer", DISTANT)
def test_callers_of_other_machines_have_the_scopes_of_strangers(peer: str) -> None:
    assert not is_local(peer)
    for scopes, expected in (
        ("evaluate", ["", "forbidden"]),
        ("", ["forbidden", "forbidden"]),
        ("evaluate,inspect", ["", ""]),
    ):
        guard = Authorizer(Settings(anonymous_scopes=scopes))
        assert [verdict(guard, scope, "Bearer x", peer=peer) for scope in Scope] == expected
        certified = [
            guard.refusal(scope, authorization=None, peer=peer, certified=True) for scope in Scope
        ]
        assert certified == [None, None]


def test_with_a_file_everybody_needs_a_token_wherever_he_is(path: Path) -> None:
    token = add_token(path, name="ci", scopes=list(Scope))
    guard = authorizer(path)
    assert guard.wants_tokens
    assert not guard.is_open(Scope.EVALUATE)
    for peer in (HERE, AWAY, "unix:"):
        assert verdict(guard, Scope.EVALUATE, None, peer=peer) == "unknown"
        assert verdict(guard, Scope.INSPECT, f"Bearer {token}", peer=peer) == ""
    assert guard.refusal(Scope.EVALUATE, authorization=None, peer=HERE, certified=True) is not None


def test_a_token_is_taken_whole_and_in_its_form_only(path: Path) -> None:
    token = add_token(path, name="ci", scopes=list(Scope))
    guard = authorizer(path)
    for good in (
        f"Bearer {token}",
        f"bearer {token}",
        f"BEARER {token}",
        f"Bearer {token}".encode(),
    ):
        assert verdict(guard, Scope.EVALUATE, good) == ""
    digest = read_tokens(path.read_bytes())[0].digest.hex()
    shown = (f"{token[:-1]}", f"{token}x", f"{token} {token}", token.swapcase(), "\udcff", digest)
    bad: tuple[str | bytes, ...] = (token, f"Basic {token}", "Bearer", "Bearer ", "", b"\xff\xfe")
    for each in (*bad, *(f"Bearer {text}" for text in shown)):
        assert verdict(guard, Scope.EVALUATE, each) == "unknown"


def test_a_token_opens_what_its_scopes_name_until_the_end_of_its_last_day(path: Path) -> None:
    token = add_token(path, name="a", scopes=[Scope.EVALUATE], expires=date(2026, 11, 1))
    bearer = f"Bearer {token}"
    guard = authorizer(path)
    assert verdict(guard, Scope.EVALUATE, bearer) == ""
    assert verdict(guard, Scope.INSPECT, bearer) == "forbidden"
    late = authorizer(path, at=date(2026, 11, 2))
    refusal = late.refusal(Scope.EVALUATE, authorization=bearer, peer=HERE)
    assert refusal is not None
    assert not refusal.authenticated
    assert "expired on 2026-11-01" in refusal.message


def test_no_refusal_holds_a_token_or_a_path(path: Path) -> None:
    token = add_token(path, name="a", scopes=[Scope.EVALUATE])
    guard = authorizer(path)
    for shown in (None, f"Bearer {token}", f"Bearer {token}x", token):
        refusal = guard.refusal(Scope.INSPECT, authorization=shown, peer=AWAY)
        assert refusal is not None
        assert token not in refusal.message
        assert str(path.parent) not in refusal.message
        assert refusal.message.isprintable()


def test_a_new_token_is_taken_at_once_and_a_revoked_one_within_a_second(path: Path) -> None:
    first = add_token(path, name="first", scopes=[Scope.EVALUATE])
    guard = authorizer(path)
    assert verdict(guard, Scope.EVALUATE, f"Bearer {first}") == ""
    second = add_token(path, name="second", scopes=[Scope.EVALUATE])
    assert verdict(guard, Scope.EVALUATE, f"Bearer {second}") == ""
    revoke_token(path, "first")
    wait_until(lambda: verdict(guard, Scope.EVALUATE, f"Bearer {first}") == "unknown")
    assert verdict(guard, Scope.EVALUATE, f"Bearer {second}") == ""


@pytest.mark.parametrize(
    "broken",
    [b"", b"\n \n", b"ci\n", b"ci abc evaluate\n", b"\xff\xfe\x00", b"ci " + b"a" * 64 + b" all\n"],
    ids=repr,
)
def test_a_broken_file_is_refused_at_first_and_kept_out_later(
    path: Path, broken: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_bytes(broken)
    with pytest.raises(ValueError, match=r"^--tokens is "):
        authorizer(path)
    path.unlink()
    token = add_token(path, name="ci", scopes=[Scope.EVALUATE])
    guard = authorizer(path)
    path.write_bytes(broken)
    with caplog.at_level(logging.ERROR, "gradwire_server"):
        assert verdict(guard, Scope.EVALUATE, "Bearer other") == "unknown"
        assert verdict(guard, Scope.EVALUATE, "Bearer other") == "unknown"
    assert [record.message for record in caplog.records] == ["tokens cannot be read"]
    assert verdict(guard, Scope.EVALUATE, f"Bearer {token}") == ""


def test_a_missing_file_is_refused_at_first(path: Path) -> None:
    with pytest.raises(ValueError, match=r"^--tokens is .*No such file"):
        authorizer(path)


def test_no_setting_takes_a_scope_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"^--anonymous-scopes is all: 'all' is not a scope"):
        Settings(anonymous_scopes="all")
