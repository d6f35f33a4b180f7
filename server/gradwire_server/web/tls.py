"""TLS of the HTTP port: the certificate of the gRPC port, read anew when its files change."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable

from gradwire._reloaded import Reloaded
from gradwire_server.settings import Settings

_log = logging.getLogger("gradwire_server")


def contexts(settings: Settings) -> Callable[[], ssl.SSLContext] | None:
    """Return what gives the context of the moment; None where settings want no TLS.

    Where they name authorities, a caller may show a certificate of theirs, which then stands for a
    token, and one of others is refused. One that shows none may still ask for health: what probes
    has no certificate.

    Raises ValueError where the files cannot be used.
    """
    if not settings.tls_certificate:
        return None
    files = (settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
    try:
        reloaded = Reloaded(
            [file for file in files if file], lambda _: _context(settings), on_error=_keep
        )
    except OSError as error:
        raise ValueError(f"the TLS files cannot be read: {error}") from error
    return reloaded.get


def _context(settings: Settings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        # An empty password: OpenSSL would ask for that of an encrypted key on the terminal.
        context.load_cert_chain(settings.tls_certificate, settings.tls_key, password="")
        if settings.tls_client_ca:
            context.load_verify_locations(settings.tls_client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"the TLS files cannot be used: {error}") from error
    return context


def _keep(error: Exception) -> None:
    facts = {"port": "http", "error": str(error), "kept": "the certificate there was"}
    _log.error("TLS files cannot be used", extra={"facts": facts})
