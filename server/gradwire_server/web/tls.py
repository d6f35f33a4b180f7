"""TLS of the HTTP port, with the certificates of the gRPC port."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from gradwire_server.certificates import Certificates
from gradwire_server.settings import Settings


def contexts(settings: Settings) -> Callable[[], ssl.SSLContext] | None:
    """Return what gives the context of the moment; None where settings want no TLS.

    Where they name authorities, a caller may show a certificate of theirs, which then stands for a
    token, and one of others is refused. One that shows none may still ask for health: what probes
    has no certificate.

    Raises ValueError where the files cannot be used.
    """
    if not settings.tls_certificate:
        return None
    certificates = Certificates(settings)

    def context() -> ssl.SSLContext:
        made = certificates.get().context
        made.set_alpn_protocols(["http/1.1"])
        if settings.tls_client_ca:
            made.verify_mode = ssl.CERT_OPTIONAL
        return made

    return context
