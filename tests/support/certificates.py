"""Certificates for tests, of authorities of their own, as files that servers are told of."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import trustme

from gradwire import Client, RetryPolicy

Pair = tuple[bytes, bytes]
_YESTERDAY = datetime.now(UTC) - timedelta(days=1)


class Papers:
    """The files of one server, which can be written anew; mutual: clients show certificates."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.authority = trustme.CA()
        chain, key, roots = (str(folder / f"{name}.pem") for name in ("chain", "key", "ca"))
        self.settings: dict[str, Any] = {"tls_certificate": chain, "tls_key": key}
        self.mutual: dict[str, Any] = {**self.settings, "tls_client_ca": roots}
        self.write()
        self.write_authorities(self.authority)

    @property
    def flags(self) -> list[str]:
        return [f"--{name.replace('_', '-')}={path}" for name, path in self.settings.items()]

    @property
    def roots(self) -> bytes:
        return self.authority.cert_pem.bytes()

    def write(
        self,
        authority: trustme.CA | None = None,
        *,
        name: str = "127.0.0.1",
        expired: bool = False,
        not_after: datetime | None = None,
    ) -> None:
        issued = (authority or self.authority).issue_cert(
            name, not_after=_YESTERDAY if expired else not_after
        )
        # The key first: for a moment the two do not belong together.
        self.put("key.pem", issued.private_key_pem.bytes())
        self.put("chain.pem", issued.cert_chain_pems[0].bytes())

    def write_authorities(self, *authorities: trustme.CA) -> None:
        """Say whose clients are let in."""
        self.put("ca.pem", b"".join(each.cert_pem.bytes() for each in authorities))

    def put(self, name: str, content: bytes) -> None:
        beside = self._folder / f"{name}.new"
        beside.write_bytes(content)
        beside.replace(self._folder / name)

    def read(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()

    def context(self, shown: Pair | None = None) -> ssl.SSLContext:
        """Return the TLS of an HTTP client that trusts the authority and shows a certificate."""
        context = ssl.create_default_context(cadata=self.roots.decode())
        if shown is not None:
            self.put("own.pem", b"".join(shown))
            context.load_cert_chain(self._folder / "own.pem")
        return context


def pair(authority: trustme.CA, *, expired: bool = False) -> Pair:
    issued = authority.issue_cert("client.test", not_after=_YESTERDAY if expired else None)
    return issued.private_key_pem.bytes(), issued.cert_chain_pems[0].bytes()


def trusting(roots: bytes, shown: Pair | None = None) -> grpc.ChannelCredentials:
    """Return the credentials of a client that trusts roots and shows a certificate."""
    return grpc.ssl_channel_credentials(roots, *(shown or (None, None)))


def impatient(address: str, credentials: grpc.ChannelCredentials | None) -> Client:
    return Client(address, credentials=credentials, retry=RetryPolicy(max_attempts=1))
