"""The server's certificates, reloaded when their files change.

New connections use the new certificates, existing ones are unaffected. Unusable files, such as
incomplete ones or a key of another certificate, are logged, and the previous ones stay in use.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from gradwire._wire.files import Reloaded
from gradwire_server.config.settings import Settings, flag
from gradwire_server.observability import logs

# X509_V_FLAG_NO_CHECK_TIME of OpenSSL's x509_vfy.h.
_NO_CHECK_TIME = 0x200000
_NAMES = ("tls_key", "tls_certificate", "tls_client_ca")


@dataclass(frozen=True, slots=True, eq=False)
class LoadedCertificates:
    """Key, certificates and client authorities of a server.

    key, chain   its private key and its certificates, as PEM
    authorities  of accepted client certificates, as PEM; None if clients need none
    context      the same for HTTP, TLS 1.2 or newer
    expires_s    expiry of the certificate, in seconds since 1970; None if unknown
    """

    key: bytes
    chain: bytes
    authorities: bytes | None
    context: ssl.SSLContext
    expires_s: float | None


Certificates: TypeAlias = Reloaded[LoadedCertificates]


def load_certificates(settings: Settings) -> Certificates:
    """Load the certificates named by the settings.

    Raises ValueError if they cannot be used.
    """
    paths = {name: path for name in _NAMES if (path := getattr(settings, name))}
    try:
        return Reloaded(tuple(paths.values()), partial(_made, paths), on_error=_keep)
    except OSError as error:
        raise ValueError(f"{', '.join(map(flag, paths))}: {error}") from error


def _made(paths: Mapping[str, str], contents: tuple[bytes, ...]) -> LoadedCertificates:
    """Return the certificates; its context is for HTTP.

    gRPC reports no errors in files. With authorities, a client certificate of theirs replaces a
    token, and other certificates are refused. Callers without a certificate may still request
    health, since probes have none.
    """
    found = dict(zip(paths, contents, strict=True))
    for name, content in found.items():
        if b"-----BEGIN " not in content:
            raise ValueError(f"{flag(name)} is {paths[name]}, which is not a PEM file")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Keys with a password are refused without a prompt.
        context.load_cert_chain(paths["tls_certificate"], paths["tls_key"], password=lambda: b"")
    except OSError as error:  # ssl.SSLError is one
        raise ValueError(
            f"--tls-certificate and --tls-key cannot be used together: {reason(error)}"
        ) from error
    authorities = found.get("tls_client_ca")
    if authorities is not None:
        try:
            context.load_verify_locations(cadata=authorities.decode("ascii", "replace"))
        except OSError as error:
            raise ValueError(f"--tls-client-ca cannot be used: {reason(error)}") from error
        context.verify_mode = ssl.CERT_OPTIONAL
    key, chain = found["tls_key"], found["tls_certificate"]
    return LoadedCertificates(key, chain, authorities, context, _expires_s(chain, context))


def _expires_s(chain: bytes, shown: ssl.SSLContext) -> float | None:
    """Return the certificate's expiry.

    It comes from an in-memory handshake with a client that trusts the certificate. Python's ssl
    decodes the dates of verified certificates only.
    """
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        trusting.load_verify_locations(cadata=chain.decode("ascii", "replace"))
        client = trusting.wrap_bio(to_client, to_server)
        server = shown.wrap_bio(to_server, to_client, server_side=True)
        for side in (client, server, client):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
        seen = client.getpeercert() or {}
    except (ssl.SSLError, ValueError):
        return None
    until = seen.get("notAfter")
    return ssl.cert_time_to_seconds(until) if isinstance(until, str) else None


def _keep(error: Exception) -> None:
    kept = "the certificates as they were"
    logs.error("certificates cannot be used", error=str(error), kept=kept)


def reason(error: Exception) -> str:
    """Return the reason of OpenSSL or the system, or else the text."""
    named = getattr(error, "reason", None) or getattr(error, "strerror", None)
    return str(named or error)
