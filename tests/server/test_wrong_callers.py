"""Of all protocols and ports, whoever should not call gets a refusal that tells nothing else."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
import trustme

from every_method import EVERY, REFLECTION, SERVICE, UNKNOWN, bearer, call
from gradwire_server.config.tokens import Scope, add_token, revoke_token
from gradwire_server.config.version import VERSION
from gradwire_server.rpc.health import has_list
from papers import Pair, Papers, pair, trusting
from raw_calls import RawClient, wait_until
from serving import ServerThread, serving

TOMORROW = datetime.now(UTC) + timedelta(days=1)
# Names of methods that are like those there are, beside these themselves.
METHODS = (
    *EVERY,
    UNKNOWN,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.health.v1.Health/../gradwire.v1.GradientService/GetServerInfo",
    f"/{SERVICE}/Evaluate",
    f"{SERVICE}/GetServerInfo/",
    f"{SERVICE}/GetServerInfo?service=grpc.health.v1.Health",
    "/gradwire.v1.gradientservice/getserverinfo",
    "/a/b",
)
HEALTH = tuple(f"/grpc.health.v1.Health/{method}" for method in ("Check", *["List"] * has_list()))
PATHS = ("/", "/status.json", "/metrics", "/nothing", "//metrics", "/healthz/../metrics")


class Place(NamedTuple):
    """A server with tokens, and certificates where it lets in clients of its authority only."""

    server: ServerThread
    papers: Papers | None
    tokens: dict[str, str]


@pytest.fixture(
    scope="module",
    params=[("127.0.0.1:0", False), ("127.0.0.1:0", True), ("unix:{}/s", False)],
    ids=str,
)
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("place")
    path = folder / "tokens"
    tokens = {scope.value: add_token(path, name=f"is-{scope}", scopes=[scope]) for scope in Scope}
    tokens["revoked"] = add_token(path, name="is-revoked", scopes=list(Scope))
    revoke_token(path, "is-revoked")
    address, tls = request.param
    papers = Papers(folder) if tls else None
    settings = {} if papers is None else papers.mutual
    with serving(
        address=address.format(folder), http_port="0", tokens=str(path), **settings
    ) as server:
        yield Place(server, papers, tokens)


def client_of(place: Place, shown: Pair | None = None) -> RawClient:
    if place.papers is None:
        return RawClient(place.server.address)
    return RawClient(place.server.address, trusting(place.papers.roots, shown))


def ask(
    place: Place, path: str, authorization: str | None, shown: Pair | None, folder: Path
) -> tuple[int, str]:
    """Return what the HTTP port answers; raise OSError where it does not."""
    address = place.server.server.instruments.address
    connection = http.client.HTTPConnection(address, timeout=30)
    if place.papers is not None:
        context = ssl.create_default_context(cadata=place.papers.roots.decode())
        context.check_hostname = False
        if shown is not None:
            own = folder / "own.pem"
            own.write_bytes(b"".join(shown))
            context.load_cert_chain(own)
        connection = http.client.HTTPSConnection(address, timeout=30, context=context)
    with closing(connection):
        headers = {} if authorization is None else {"Authorization": authorization}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, f"{answer.headers}{answer.read().decode()}"


def check_silent(told: str, place: Place) -> None:
    """Assert that a refusal tells nothing of the server, nor a token."""
    secrets = (VERSION, place.server.server.service.backend.name, "is-revoked", "Traceback")
    for secret in (*secrets, *place.tokens.values()):
        assert secret not in told


def test_without_a_token_that_is_taken_there_is_no_answer(place: Place, tmp_path: Path) -> None:
    shown = None if place.papers is None else pair(place.papers.authority)
    revoked = place.tokens["revoked"]
    with client_of(place, shown) as client:
        for token in (None, revoked, revoked[::-1]):
            metadata = () if token is None else (bearer(token),)
            for method in METHODS:
                _, refusal = call(client.channel, method, EVERY.get(method, (b"",)), *metadata)
                assert refusal is not None
                assert refusal.code is grpc.StatusCode.UNAUTHENTICATED, method
                check_silent(repr(refusal), place)
            for method in HEALTH:
                assert call(client.channel, method, (b"",), *metadata)[1] is None
            authorization = None if token is None else f"Bearer {token}"
            for path in PATHS:
                status, told = ask(place, path, authorization, shown, tmp_path)
                assert status == 401
                check_silent(told, place)


def test_a_token_of_the_other_scope_opens_nothing(place: Place, tmp_path: Path) -> None:
    shown = None if place.papers is None else pair(place.papers.authority)
    looks = (f"{SERVICE}/GetServerInfo", REFLECTION)
    with client_of(place, shown) as client:
        for method in METHODS:
            # What there is not, whoever may evaluate is told so.
            token = place.tokens["evaluate" if method in looks else "inspect"]
            _, refusal = call(client.channel, method, EVERY.get(method, (b"",)), bearer(token))
            assert refusal is not None
            assert refusal.code is grpc.StatusCode.PERMISSION_DENIED, method
            check_silent(repr(refusal), place)
    for path in PATHS:
        status, told = ask(place, path, f"Bearer {place.tokens['evaluate']}", shown, tmp_path)
        assert status == 403
        check_silent(told, place)


@pytest.mark.parametrize("place", [("127.0.0.1:0", True)], indirect=True, ids=str)
@pytest.mark.parametrize("wrong", ["none", "another's", "expired", "of tomorrow", "plain text"])
def test_without_papers_a_token_and_a_question_of_health_get_nowhere(
    place: Place, wrong: str, tmp_path: Path
) -> None:
    assert place.papers is not None
    authority = place.papers.authority
    later = authority.issue_cert("client.test", not_before=TOMORROW)
    shown = {
        "another's": pair(trustme.CA()),
        "expired": pair(authority, expired=True),
        "of tomorrow": (later.private_key_pem.bytes(), later.cert_chain_pems[0].bytes()),
    }.get(wrong)
    bare = place._replace(papers=None) if wrong == "plain text" else place
    token = place.tokens["inspect"]
    with client_of(bare, shown) as client:
        for method in (*METHODS, *HEALTH):
            replies, refusal = call(client.channel, method, (b"",), bearer(token))
            assert refusal is not None
            assert (refusal.code, replies) == (grpc.StatusCode.UNAVAILABLE, [])
    if shown is not None:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            ask(place, "/healthz", f"Bearer {token}", shown, tmp_path)
    elif wrong == "plain text":
        assert ask(bare, "/", f"Bearer {token}", None, tmp_path)[0] == 400


def test_the_http_port_tells_the_log_whom_it_refuses_and_no_token(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gradwire_server")
    shown = None if place.papers is None else pair(place.papers.authority)

    def told() -> list[dict[str, object]]:
        ask(place, "/metrics", f"Bearer {place.tokens['revoked']}", shown, tmp_path)
        lines = [each.__dict__ for each in caplog.records if each.getMessage() == "refused"]
        return [line["facts"] for line in lines if line["facts"].get("port") == "http"]

    wait_until(told)
    (facts, *_) = told()
    assert facts["unauthenticated"]
    assert str(facts["peer"]).startswith("ipv4:127.0.0.1:")
    assert place.tokens["revoked"] not in str(caplog.records)
