"""Health is for everybody; the rest of the HTTP port is for who may look into the server."""

from __future__ import annotations

import base64
import contextlib
import http.client
import ssl
import urllib.request
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme

from gradwire_server.config.tokens import Scope, add_token
from support import scraping
from support.processes import run_command
from support.raw_calls import wait_until
from support.serving import serving

SECRETS = ("/", "/status.json", "/metrics", "/nothing")
HEALTH = ("/healthz", "/readyz")


@dataclass(frozen=True, slots=True)
class Papers:
    """Certificates of one authority, in a folder."""

    authority: trustme.CA
    folder: Path

    def issue(self, *, not_after: datetime | None = None) -> None:
        """Write a certificate for 127.0.0.1, in place of the one there is."""
        server = self.authority.issue_cert("127.0.0.1", not_after=not_after)
        server.private_key_pem.write_to_path(self.folder / "key.pem")
        server.cert_chain_pems[0].write_to_path(self.folder / "chain.pem")

    @property
    def settings(self) -> dict[str, str]:
        """Those of a server with the certificate."""
        names = {"tls_certificate": "chain.pem", "tls_key": "key.pem"}
        return {setting: str(self.folder / name) for setting, name in names.items()}

    def client(self, *, of: trustme.CA | None = None) -> ssl.SSLContext:
        """Return what a client trusts, with a certificate of its own if an authority is given."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=self.authority.cert_pem.bytes().decode())
        if of is not None:
            own = self.folder / "client.pem"
            of.issue_cert("client.test").private_key_and_cert_chain_pem.write_to_path(own)
            context.load_cert_chain(own)
        return context


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    made = Papers(trustme.CA(), tmp_path)
    made.issue()
    return made


def get(
    address: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    *,
    tls: ssl.SSLContext | None = None,
) -> http.client.HTTPResponse:
    """Return an answer, read."""
    if tls is None:
        connection = http.client.HTTPConnection(address, timeout=30)
    else:
        connection = http.client.HTTPSConnection(address, timeout=30, context=tls)
    with contextlib.closing(connection):
        connection.request("GET", path, headers=dict(headers or {}))
        answer = connection.getresponse()
        answer.read()
        return answer


def status(address: str, path: str, token: str = "", *, tls: ssl.SSLContext | None = None) -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return get(address, path, headers, tls=tls).status


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def test_with_tokens_all_but_health_takes_one_that_may_inspect(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    reader = add_token(tokens, name="reader", scopes={Scope.INSPECT})
    trainer = add_token(tokens, name="trainer", scopes={Scope.EVALUATE})
    with serving(http_port="0", tokens=str(tokens)) as server:
        address = server.server.instruments.address
        for path in HEALTH:
            assert status(address, path) == status(address, path, "wrong") == 200
        for path in SECRETS:
            allowed = 404 if path == "/nothing" else 200
            assert status(address, path, reader) == allowed
            assert status(address, path, trainer) == 403
            for nobody in ("", "wrong", f"{reader}x", "\xff"):
                assert status(address, path, nobody) == 401
            assert get(address, path, basic("anyone", reader)).status == allowed
            assert get(address, path, basic(reader, "")).status == 401
            assert get(address, path, {"Authorization": "Basic ="}).status == 401
        challenge = get(address, "/").getheader("WWW-Authenticate", "")
        assert challenge.startswith("Basic ")
        assert ', Bearer realm="' in challenge


def test_a_token_that_is_added_is_taken_and_one_revoked_is_not(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    add_token(tokens, name="first", scopes={Scope.EVALUATE})
    with serving(http_port="0", tokens=str(tokens)) as server:
        address = server.server.instruments.address
        assert status(address, "/", "later") == 401
        later = add_token(tokens, name="later", scopes={Scope.INSPECT})
        wait_until(lambda: status(address, "/", later) == 200)
        tokens.write_text("# none\n")
        wait_until(lambda: status(address, "/", later) == 401)


def test_an_open_port_asks_nobody_for_a_token(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    add_token(tokens, name="reader", scopes={Scope.INSPECT})
    with serving(http_port="0.0.0.0:0", http_open=True, tokens=str(tokens)) as server:
        port = server.server.instruments.address.rpartition(":")[2]
        assert status(f"127.0.0.1:{port}", "/") == 200


def test_where_the_server_has_tls_the_port_has_it_too(papers: Papers) -> None:
    with serving(**papers.settings, http_port="0") as server:
        address = server.server.instruments.address
        assert status(address, "/", tls=papers.client()) == 200
        assert status(address, "/") == 400
        stranger = ssl.create_default_context()
        with pytest.raises(ssl.SSLCertVerificationError):
            get(address, "/", tls=stranger)
        old = papers.client()
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            get(address, "/", tls=old)


def test_a_certificate_that_is_replaced_is_shown(papers: Papers) -> None:
    with serving(**papers.settings, http_port="0") as server:
        address = server.server.instruments.address
        host, port = address.split(":")

        def shown() -> str:
            return ssl.get_server_certificate((host, int(port)))

        first = shown()
        papers.issue()
        wait_until(lambda: shown() != first)
        (papers.folder / "chain.pem").write_text("nothing")
        assert status(address, "/", tls=papers.client()) == 200


def test_the_metrics_tell_when_the_certificate_expires(papers: Papers) -> None:
    def expires_s() -> float:
        url = f"https://{server.server.instruments.address}/metrics"
        with urllib.request.urlopen(url, context=papers.client()) as answer:
            told = scraping.read(answer.read().decode())
        return told.value("gradwire_certificate_expiration_timestamp_seconds")

    first, second = (datetime(2100 + years, 1, 2, 3, 4, 5, tzinfo=UTC) for years in (0, 1))
    papers.issue(not_after=first)
    with serving(**papers.settings, http_port="0") as server:
        assert expires_s() == first.timestamp()
        papers.issue(not_after=second)
        wait_until(lambda: expires_s() == second.timestamp())


def test_with_authorities_a_certificate_of_theirs_stands_for_a_token(papers: Papers) -> None:
    papers.authority.cert_pem.write_to_path(papers.folder / "ca.pem")
    tls_client_ca = str(papers.folder / "ca.pem")
    flags = {**papers.settings, "tls_client_ca": tls_client_ca, "http_port": "0"}
    with serving(**flags) as server:
        address = server.server.instruments.address
        assert status(address, "/", tls=papers.client(of=papers.authority)) == 200
        assert status(address, "/healthz", tls=papers.client()) == 200
        for path in (*SECRETS, *HEALTH):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                get(address, path, tls=papers.client(of=trustme.CA()))


def test_files_that_cannot_be_used_are_told_in_one_line(papers: Papers) -> None:
    (papers.folder / "key.pem").write_text("-----BEGIN NOTHING-----")
    variables = {f"GRADWIRE_{name.upper()}": path for name, path in papers.settings.items()}
    flags = ("--address", "127.0.0.1:0", "--backend", "numpy_cpu", "--http-port", "0")
    done = run_command(*flags, env=variables)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "Error: " in done.stderr
