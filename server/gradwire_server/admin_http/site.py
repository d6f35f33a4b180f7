"""Paths of the HTTP port: health, metrics and status.

Health is public; metrics and status are for authorized callers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus

from gradwire_server.admin_http import page
from gradwire_server.admin_http.access import AccessCheck
from gradwire_server.admin_http.listener import Answer, Listener, Request
from gradwire_server.admin_http.status import is_alive, is_ready, status
from gradwire_server.config.addresses import split
from gradwire_server.config.settings import Settings
from gradwire_server.observability.cells import Ledger
from gradwire_server.observability.exposition import Exposition
from gradwire_server.security.authorization import Authorizer
from gradwire_server.security.certificates import Certificates

_PROBES = {
    "/healthz": (is_alive, "alive", "the event loop hangs"),
    "/readyz": (is_ready, "serving", "not serving"),
}


class Site:
    """Serves the HTTP port, from construction until close().

    address  HOST:PORT with the port bound

    served  gRPC address of the server

    Raises OSError if the address cannot be bound, ValueError if a setting names files that cannot
    be used.
    """

    def __init__(self, settings: Settings, ledgers: Sequence[Ledger], *, served: str) -> None:
        certificates = Certificates.of(settings)
        host, port = split(settings.http_address)
        self._ledgers = ledgers
        self._status = partial(status, settings, ledgers, address=served, started=time.monotonic())
        names = (host, *settings.http_hosts.replace(" ", "").split(","))
        self._guard = AccessCheck(Authorizer(settings), names, is_open=settings.http_open)
        self._exposition = Exposition(
            ledgers, lambda: certificates.get().expires_s if certificates else None
        )
        try:
            self._listener = Listener(host, port, self.respond, certificates=certificates)
        except OSError as error:
            reason = error.strerror or error
            raise OSError(f"--http-port {settings.http_port} cannot be had: {reason}") from error
        self.address = self._listener.address

    def close(self) -> None:
        """Stop answering."""
        self._listener.close()

    def respond(self, request: Request) -> Answer:
        """Answer a request."""
        refused = self._guard.wrong_host(request)
        if refused is not None:
            return refused
        if request.path in _PROBES:
            passes, well, ill = _PROBES[request.path]
            if passes([ledger.read() for ledger in self._ledgers]):
                return Answer.text(HTTPStatus.OK, well)
            return Answer.text(HTTPStatus.SERVICE_UNAVAILABLE, ill)
        return self._guard.refusal(request) or self._content(request)

    def _content(self, request: Request) -> Answer:
        policy = dict[str, str]()
        match request.path:
            case "/":
                kind, body = "text/html; charset=utf-8", page.render(self._status())
                policy = {"Content-Security-Policy": page.CONTENT_SECURITY_POLICY}
            case "/status.json":
                kind = "application/json"
                body = json.dumps(self._status(), indent=2).encode() + b"\n"
            case "/metrics":
                body, kind = self._exposition.encode(request.headers.get("accept", ""))
            case _:
                return Answer.text(
                    HTTPStatus.NOT_FOUND,
                    "not found; the paths are /, /status.json, /metrics, /healthz and /readyz",
                )
        return Answer(HTTPStatus.OK, kind, body, policy)
