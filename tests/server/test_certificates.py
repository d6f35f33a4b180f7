"""With certificates calls are private and of known clients; they are read anew while calls run."""

from __future__ import annotations

import json
import logging
import socket
import ssl
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import grpc
import pytest
import trustme

from gradwire_server.config.addresses import split
from gradwire_server.config.settings import Settings
from gradwire_server.config.tokens import Scope, add_token, revoke_token
from gradwire_server.security.certificates import Certificates
from support.certificates import Pair, Papers, pair, trusting
from support.load import repeated
from support.processes import running_command
from support.raw_calls import (
    EVERY,
    SERVICE,
    RawClient,
    bearer,
    call,
    own_address,
    published_request,
    wait_until,
)
from support.scraping import get, scrape
from support.servers import serving


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    return Papers(tmp_path)


def is_served(address: str, roots: bytes, shown: Pair | None = None) -> bool:
    """Call on a connection of its own."""
    with RawClient(address, trusting(roots, shown)) as client:
        refusal = client.evaluate(published_request(), timeout_s=20).refusal
    assert refusal is None or refusal.code is grpc.StatusCode.UNAVAILABLE, refusal
    return refusal is None


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the server's lines of certificates."""
    messages = [each.getMessage() for each in caplog.records if each.name == "gradwire_server"]
    return [message for message in messages if message.startswith("certificate")]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_connections_that_are_no_tls_leave_nothing_but_json_in_the_log(
    papers: Papers, tmp_path: Path, workers: str
) -> None:
    flags = (*papers.flags, "--log-format", "json", "--workers", workers)
    with running_command(*flags, log=tmp_path / "log") as command:
        for _ in range(10):
            with socket.create_connection(split(command.address)) as junk:
                junk.sendall(b"GET / HTTP/1.1\r\n\r\n" * 20)
                while junk.recv(1 << 10):
                    pass
        assert is_served(command.address, papers.roots)
        lines = command.log.splitlines()
    assert lines
    assert papers.settings["tls_key"] not in command.log
    assert all(isinstance(json.loads(line), dict) for line in lines)


def test_new_connections_get_the_new_certificate_and_those_of_new_authorities_are_let_in(
    papers: Papers,
) -> None:
    other = trustme.CA()
    roots = other.cert_pem.bytes()
    ours, theirs = pair(papers.authority), pair(other)
    with serving(**papers.mutual) as server:
        assert not is_served(server.address, papers.roots, theirs)
        with RawClient(server.address, trusting(papers.roots, ours)) as old:
            old.check_alive()
            papers.write(other)
            wait_until(lambda: is_served(server.address, roots, ours))
            assert not is_served(server.address, papers.roots, ours)
            papers.write_authorities(papers.authority, other)
            wait_until(lambda: is_served(server.address, roots, theirs))
            assert is_served(server.address, roots, ours)
            papers.write_authorities(other)
            wait_until(lambda: not is_served(server.address, roots, ours))
            assert is_served(server.address, roots, theirs)
            old.check_alive()
        papers.write()
        wait_until(lambda: is_served(server.address, papers.roots, theirs))


BROKEN = {
    "chain.pem": (b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\nx\n"),
    "key.pem": (b"", b"-----BEGIN PRIVATE KEY-----\nx\n", pair(trustme.CA())[0]),
    "ca.pem": (b"", b"-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_used_is_refused_at_first_and_kept_out_later(
    papers: Papers, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    shown, good = pair(papers.authority), papers.read(name)
    with serving(**papers.mutual) as server, caplog.at_level(logging.ERROR, "gradwire_server"):
        for broken in BROKEN[name]:
            caplog.clear()
            papers.put(name, broken)
            with pytest.raises(ValueError, match=r"^--tls-"):
                Certificates(Settings(**papers.mutual))
            wait_until(lambda: is_served(server.address, papers.roots, shown) and told(caplog))
            assert told(caplog) == ["certificates cannot be used"]
            assert "PRIVATE" not in str([vars(each) for each in caplog.records])
        papers.put(name, good)
        assert is_served(server.address, papers.roots, shown)


def test_a_certificate_that_has_expired_is_told_of_once_each_time_it_is_read(
    papers: Papers, caplog: pytest.LogCaptureFixture
) -> None:
    shown = pair(papers.authority)
    papers.write(expired=True)
    with caplog.at_level(logging.INFO, "gradwire_server"), serving(**papers.mutual) as server:
        assert told(caplog) == ["certificate has expired"]
        assert not is_served(server.address, papers.roots, shown)
        papers.write()
        wait_until(lambda: is_served(server.address, papers.roots, shown))
        assert told(caplog) == ["certificate has expired", "certificates reloaded"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_rotation_of_certificates_and_tokens_under_load_loses_no_call(
    papers: Papers, path: Path, tmp_path: Path, workers: str
) -> None:
    """Clients trust both authorities, as one has them do; each call has its own connection."""
    other = trustme.CA()
    roots, shown = papers.roots + other.cert_pem.bytes(), pair(papers.authority)
    tokens = [add_token(path, name="0", scopes=list(Scope))]

    def code(method: str, token: str, roots: bytes = roots) -> grpc.StatusCode:
        with RawClient(server.address, trusting(roots, shown)) as client:
            refusal = call(client.channel, method, EVERY[method], bearer(token))[1]
        return grpc.StatusCode.OK if refusal is None else refusal.code

    def ask() -> list[grpc.StatusCode] | None:
        codes = [code(method, tokens[-1]) for method in EVERY]
        return None if set(codes) == {grpc.StatusCode.OK} else codes

    def are(expected: grpc.StatusCode, token: str, roots: bytes) -> bool:
        """Ask on connections of their own, which any worker may take."""
        method = f"{SERVICE}/ListOperators"
        return all(code(method, token, roots) is expected for _ in range(8))

    flags = [*papers.flags, f"--tls-client-ca={papers.mutual['tls_client_ca']}", "--no-warm-up"]
    flags += ["--tokens", str(path), "--workers", workers]
    with running_command(*flags, log=tmp_path / "log") as server, repeated(ask) as load:
        for number, authority in enumerate((other, papers.authority, other)):
            papers.write(authority)
            papers.write_authorities(papers.authority, authority)
            # Taken at once by each worker; then the old one is revoked, and none takes it.
            tokens.append(add_token(path, name=str(number + 1), scopes=list(Scope)))
            load.wait_for_more(6)
            revoke_token(path, str(number))
            own = authority.cert_pem.bytes()
            wait_until(partial(are, grpc.StatusCode.OK, tokens[-1], own))
            wait_until(partial(are, grpc.StatusCode.UNAUTHENTICATED, tokens[-2], own))
    assert not [token for token in tokens if token in server.log]


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
def test_tls_is_1_2_or_newer_on_both_ports(papers: Papers) -> None:
    def shakes_hands(place: tuple[str, int], version: ssl.TLSVersion) -> bool:
        context = papers.context()
        # Or OpenSSL would not even ask for one as old.
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = context.maximum_version = version
        context.set_alpn_protocols(["h2", "http/1.1"])
        try:
            with (
                socket.create_connection(place) as plain,
                context.wrap_socket(plain, server_hostname=place[0]),
            ):
                return True
        except OSError:
            return False

    with serving(**papers.settings, http_port="0") as server:
        for place in map(split, (server.address, server.http_address)):
            assert not shakes_hands(place, ssl.TLSVersion.TLSv1_1)
            assert shakes_hands(place, ssl.TLSVersion.TLSv1_2)
            assert shakes_hands(place, ssl.TLSVersion.TLSv1_3)
        assert get(server.http_address, "/")[0] == 400


def test_the_http_port_shows_a_replaced_certificate_and_tells_when_it_expires(
    papers: Papers,
) -> None:
    def shown() -> tuple[str, float]:
        told = scrape(server.http_address, tls=papers.context())
        ends_s = told.value("gradwire_certificate_expiration_timestamp_seconds")
        return ssl.get_server_certificate(split(server.http_address)), ends_s

    ends = [datetime(2100 + years, 1, 2, 3, 4, 5, tzinfo=UTC) for years in (0, 1)]
    papers.write(not_after=ends[0])
    with serving(**papers.settings, http_port="0") as server:
        first, expires_s = shown()
        assert expires_s == ends[0].timestamp()
        papers.write(not_after=ends[1])
        wait_until(lambda: shown()[0] != first and shown()[1] == ends[1].timestamp())
        papers.put("chain.pem", b"nothing")
        assert get(server.http_address, "/", tls=papers.context())[0] == 200


def test_over_http_a_certificate_of_a_known_client_stands_for_a_token(papers: Papers) -> None:
    own = own_address()
    if own is None:
        pytest.skip("this machine has no address but loopback, whose callers may inspect anyway")
    papers.write(name=own)
    with serving(**papers.mutual, http_port=f"{own}:0") as server:
        for shown, status in ((None, 403), (pair(papers.authority), 200)):
            tls = papers.context(shown)
            assert get(server.http_address, "/", tls=tls)[0] == status
            assert get(server.http_address, "/healthz", tls=tls)[0] == 200
