"""Certificates and authorities are read anew while calls run; what cannot be used is kept out."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from pathlib import Path

import grpc
import pytest
import trustme

from gradwire_server.config.settings import Settings
from gradwire_server.security.certificates import Certificates
from papers import Pair, Papers, pair, trusting
from raw_calls import RawClient, published_request, wait_until
from serving import serving


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    return Papers(tmp_path)


def is_served(address: str, roots: bytes, shown: Pair | None = None) -> bool:
    """Call on a connection of its own."""
    with RawClient(address, trusting(roots, shown)) as client:
        refusal = client.evaluate(published_request(), timeout_s=20).refusal
    assert refusal is None or refusal.code is grpc.StatusCode.UNAVAILABLE, refusal
    return refusal is None


def test_new_connections_get_the_new_certificate_and_old_ones_go_on(papers: Papers) -> None:
    other = trustme.CA()
    with serving(**papers.settings) as server:
        with RawClient(server.address, trusting(papers.roots)) as old:
            old.check_alive()
            papers.write(other)
            wait_until(lambda: is_served(server.address, other.cert_pem.bytes()))
            assert not is_served(server.address, papers.roots)
            old.check_alive()
        papers.write()
        wait_until(lambda: is_served(server.address, papers.roots))


def test_clients_of_a_new_authority_are_let_in_and_those_of_an_old_one_no_more(
    papers: Papers,
) -> None:
    other = trustme.CA()
    ours, theirs = pair(papers.authority), pair(other)
    with serving(**papers.mutual) as server:
        assert is_served(server.address, papers.roots, ours)
        assert not is_served(server.address, papers.roots, theirs)
        papers.write_authorities(papers.authority, other)
        wait_until(lambda: is_served(server.address, papers.roots, theirs))
        assert is_served(server.address, papers.roots, ours)
        papers.write_authorities(other)
        wait_until(lambda: not is_served(server.address, papers.roots, ours))
        assert is_served(server.address, papers.roots, theirs)


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
            wait_until(lambda: is_served(server.address, papers.roots, shown) and caplog.records)
            (record,) = caplog.records
            assert record.getMessage() == "certificates cannot be used"
            assert "PRIVATE" not in str(vars(record))
        papers.put(name, good)
        assert is_served(server.address, papers.roots, shown)
    for broken in BROKEN[name]:
        papers.put(name, broken)
        with pytest.raises(ValueError, match=r"^--tls-"):
            Certificates(Settings(**papers.mutual))


@pytest.mark.parametrize("mutual", [False, True])
def test_a_certificate_that_has_expired_is_told_of_once_each_time_it_is_read(
    papers: Papers, caplog: pytest.LogCaptureFixture, *, mutual: bool
) -> None:
    def told() -> list[str]:
        messages = [record.getMessage() for record in caplog.records]
        return [message for message in messages if message.startswith("certificate")]

    papers.write(expired=True)
    with (
        caplog.at_level(logging.INFO, "gradwire_server"),
        serving(**(papers.mutual if mutual else papers.settings)) as server,
    ):
        assert told() == ["certificate has expired"]
        assert not is_served(server.address, papers.roots, pair(papers.authority))
        papers.write()
        wait_until(lambda: is_served(server.address, papers.roots, pair(papers.authority)))
        assert told() == ["certificate has expired", "certificates reloaded"]


def test_a_file_that_is_missing_is_named(papers: Papers, tmp_path: Path) -> None:
    (tmp_path / "key.pem").unlink()
    with pytest.raises(ValueError, match=r"^--tls-key cannot be read: .*No such file"):
        Certificates(Settings(**papers.settings))


@pytest.mark.slow
def test_rotation_under_load_loses_no_call(papers: Papers) -> None:
    """Clients trust both authorities, as one has them do; each call has its own connection."""
    other = trustme.CA()
    roots, shown = papers.roots + other.cert_pem.bytes(), pair(papers.authority)
    with serving(**papers.mutual) as server:
        stop, failures, calls = threading.Event(), list[object](), [0]

        def load() -> None:
            while not stop.is_set():
                with RawClient(server.address, trusting(roots, shown)) as client:
                    refusal = client.evaluate(published_request()).refusal
                calls[0] += 1
                if refusal is not None:
                    failures.append(refusal)

        threads = [threading.Thread(target=load) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for authority in (other, papers.authority, other):
                papers.write(authority)
                papers.write_authorities(papers.authority, authority)
                wait_until(
                    lambda authority=authority: is_served(  # type: ignore[misc]
                        server.address, authority.cert_pem.bytes(), shown
                    )
                )
                done = calls[0]
                wait_until(lambda done=done: calls[0] > done + 9)  # type: ignore[misc]
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert not failures


def shakes_hands(address: str, roots: bytes, version: ssl.TLSVersion) -> bool:
    """Shake hands in one version of TLS."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cadata=roots.decode())
    # Or OpenSSL would not even ask for one as old.
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, int(port))) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return True
    except OSError:
        return False


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
def test_tls_is_1_2_or_newer(papers: Papers) -> None:
    with serving(**papers.settings) as server:
        assert not shakes_hands(server.address, papers.roots, ssl.TLSVersion.TLSv1_1)
        assert shakes_hands(server.address, papers.roots, ssl.TLSVersion.TLSv1_2)
        assert shakes_hands(server.address, papers.roots, ssl.TLSVersion.TLSv1_3)
