"""List of replicas over HTTP, for the SDK's targets `replicas+http://`.

It holds addresses and nothing else, so that it needs no token. If the server has TLS, the list has
it too, with the same certificate: a forged list could send callers and their tokens elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from http import HTTPStatus

from gradwire_server.admin_http.listener import Answer, Listener, Request
from gradwire_server.config.settings import Settings
from gradwire_server.security.certificates import load_certificates


class Listing(Listener):
    """HTTP server of the list.

    url  the target for clients

    Raises RuntimeError where the port cannot be had, ValueError where the TLS files cannot be used.
    """

    def __init__(
        self,
        name: str,
        *,
        host: str,
        port: int,
        settings: Settings,
        addresses: Callable[[], Sequence[str]],
    ) -> None:
        self._path = f"/{name}"
        self._addresses = addresses
        certificates = load_certificates(settings) if settings.tls_certificate else None
        written = f"[{host}]" if ":" in host else host
        try:
            super().__init__(written, port, certificates=certificates)
        except OSError as error:
            raise RuntimeError(
                f"port {port} of {host} cannot be had for the list: {error}; another --port would "
                "do"
            ) from error
        scheme = "replicas+https" if certificates else "replicas+http"
        self.url = f"{scheme}://{self.address}{self._path}"

    def respond(self, request: Request) -> Answer:
        """Answer a request."""
        if request.path != self._path:
            return Answer.text(HTTPStatus.NOT_FOUND, f"there is {self._path}")
        body = json.dumps({"replicas": list(self._addresses())}).encode() + b"\n"
        return Answer(HTTPStatus.OK, "application/json", body, {})
