"""TLS of the HTTP port, with the certificates of the gRPC port."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from gradwire_server.security.certificates import Certificates


def contexts(certificates: Certificates | None) -> Callable[[], ssl.SSLContext] | None:
    """Return what gives the context of the moment; None where there is to be no TLS.

    Where there are authorities, a caller may show a certificate of theirs, which then stands for a
    token, and one of others is refused. One that shows none may still ask for health: what probes
    has no certificate.
    """
    if certificates is None:
        return None

    def context() -> ssl.SSLContext:
        papers = certificates.get()
        made = papers.context
        made.set_alpn_protocols(["http/1.1"])
        if papers.authorities is not None:
            made.verify_mode = ssl.CERT_OPTIONAL
        return made

    return context
