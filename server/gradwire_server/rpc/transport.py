"""What grpc's core is told of connections, and the certificates that it shows."""

from __future__ import annotations

import logging
import math
from typing import Any

import grpc

from gradwire_server.config.settings import Settings
from gradwire_server.security.certificates import Certificates, Papers

_log = logging.getLogger("gradwire_server")

# A peer that is gone, or a connection that a network has forgotten, is noticed after so long.
_KEEPALIVE_MS = 60_000
_KEEPALIVE_TIMEOUT_MS = 20_000
# Clients may ask so often whether the server is there while they wait for it.
_LEAST_PING_INTERVAL_MS = 10_000


def options(settings: Settings, *, shares_port: bool) -> list[tuple[str, Any]]:
    """Return what grpc's core is told.

    shares_port  whether other processes listen on the address too
    """
    limit, max_age_s = settings.max_message_bytes, settings.max_connection_age_s
    told: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", limit),
        ("grpc.max_send_message_length", limit),
        # Two servers on one port share its calls; not without anyone having asked for it.
        ("grpc.so_reuseport", int(shares_port)),
        ("grpc.max_concurrent_streams", settings.max_connection_calls),
        # Or streams that have ended count for a while, and calls are refused, not held back.
        ("grpc.http.overload_protection", 0),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _LEAST_PING_INTERVAL_MS),
    ]
    if max_age_s:
        # Without a grace, what a caller never reads is kept for as long as he keeps the connection.
        told += [
            ("grpc.max_connection_age_ms", _milliseconds(max_age_s)),
            (
                "grpc.max_connection_age_grace_ms",
                _milliseconds(settings.max_connection_age_grace_s),
            ),
        ]
    return told


def _milliseconds(seconds: float) -> int:
    return min(math.ceil(seconds * 1000), 2**31 - 1)


def credentials(settings: Settings) -> grpc.ServerCredentials:
    """Read the certificates of a server with TLS; raise ValueError where they cannot be used.

    For each connection grpc asks whether there are others by now.
    """
    certificates = Certificates(settings)
    shown = certificates.get()
    _warn_if_expired(shown, settings)

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown
        papers = certificates.get()
        if papers is shown:
            return None
        shown = papers
        _log.info("certificates are new")
        _warn_if_expired(papers, settings)
        return _configuration(papers)

    fetcher: Any = changed  # its None, for no change, is documented and not in the types
    # By itself grpc takes TLS 1.2 and newer.
    return grpc.dynamic_ssl_server_credentials(
        _configuration(shown), fetcher, shown.authorities is not None
    )


def _warn_if_expired(papers: Papers, settings: Settings) -> None:
    if papers.expired:
        facts = {"tls_certificate": settings.tls_certificate, "clients": "refuse it"}
        _log.warning("certificate has expired", extra={"facts": facts})


def _configuration(papers: Papers) -> grpc.ServerCertificateConfiguration:
    pair = (papers.key, papers.chain)
    return grpc.ssl_server_certificate_configuration([pair], papers.authorities)
