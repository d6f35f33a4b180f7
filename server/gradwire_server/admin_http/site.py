"""Answers of the HTTP port, after checks of Host and permissions.

Health is public; metrics and status are for authorized callers.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import json
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus

from prometheus_client.exposition import choose_encoder

from gradwire_server.admin_http import page
from gradwire_server.admin_http.listener import Answer, Listener, Request
from gradwire_server.admin_http.status import is_alive, is_ready, status
from gradwire_server.config.addresses import split
from gradwire_server.config.settings import Settings
from gradwire_server.errors import MissingScopeError
from gradwire_server.observability.cells import Ledger
from gradwire_server.observability.exposition import Exposition
from gradwire_server.observability.logs import Refusals
from gradwire_server.security.authorization import Authorizer, Scope
from gradwire_server.security.certificates import load_certificates

_PROBES = {
    "/healthz": (is_alive, "alive", "the event loop hangs"),
    "/readyz": (is_ready, "serving", "not serving"),
}
# Browsers ask for a name and a token, of which the token counts; programs send Bearer. If that had
# no parameter, Chromium would understand neither.
_CHALLENGE = {
    "WWW-Authenticate": 'Basic realm="gradwire: any name, a token as password", charset="UTF-8", '
    'Bearer realm="gradwire"'
}
_HOST = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]+))(?::[0-9]*)?")


class Site(Listener):
    """Serves the HTTP port, from construction until close().

    served  gRPC address of the server

    Raises OSError if the address cannot be bound, ValueError if a setting names files that cannot
    be used.
    """

    def __init__(self, settings: Settings, ledgers: Sequence[Ledger], *, served: str) -> None:
        host, port = split(settings.http_address)
        self._ledgers = ledgers
        self._status = partial(status, settings, ledgers, address=served, started=time.monotonic())
        self._authorizer = Authorizer(settings)
        self._is_open = settings.http_open
        # Beside localhost and any IP address.
        names = (host, *settings.http_hosts.replace(" ", "").split(","))
        self._names = {name.lower() for name in names if name}
        self._refusals = Refusals()
        certificates = load_certificates(settings) if settings.tls_certificate else None
        try:
            super().__init__(host, port, certificates=certificates)
        except OSError as error:
            reason = error.strerror or error
            raise OSError(f"--http-port {settings.http_port} cannot be had: {reason}") from error

    def respond(self, request: Request) -> Answer:
        """Answer a request.

        One with a foreign Host is refused. This prevents DNS rebinding: an attacker's page whose
        name resolves to this server could have the browser send requests to it.
        """
        host = request.headers.get("host", "")
        if host and not self._is_ours(host):
            return Answer.text(
                HTTPStatus.MISDIRECTED_REQUEST,
                "the name in Host is not one of this server's names; add it to --http-hosts",
            )
        if request.path in _PROBES:
            passes, well, ill = _PROBES[request.path]
            if passes([ledger.read() for ledger in self._ledgers]):
                return Answer.text(HTTPStatus.OK, well)
            return Answer.text(HTTPStatus.SERVICE_UNAVAILABLE, ill)
        return self._refusal(request) or self._content(request)

    def _is_ours(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = (found[1] or found[2]).lower()
        with suppress(ValueError):
            # An IP address cannot be rebound.
            return bool(ipaddress.ip_address(name))
        return name in self._names or name == "localhost" or name.endswith(".localhost")

    def _refusal(self, request: Request) -> Answer | None:
        """Return an error for a caller without the inspect scope, otherwise None."""
        if self._is_open:
            return None
        refused = self._authorizer.refusal(
            Scope.INSPECT,
            authorization=_as_bearer(request.headers.get("authorization")),
            peer=request.peer,
            certified=request.certified,
        )
        if refused is None:
            return None
        self._refusals.note(refused.status[0].lower(), peer=request.peer, port="http")
        if isinstance(refused, MissingScopeError):
            return Answer.text(HTTPStatus.FORBIDDEN, refused.message)
        return Answer.text(HTTPStatus.UNAUTHORIZED, refused.message, **_CHALLENGE)

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
                encode, kind = choose_encoder(request.headers.get("accept", ""))
                expires_s = self.certificates.get().expires_s if self.certificates else None
                body = encode(Exposition([ledger.read() for ledger in self._ledgers], expires_s))
            case _:
                return Answer.text(
                    HTTPStatus.NOT_FOUND,
                    "not found; the paths are /, /status.json, /metrics, /healthz and /readyz",
                )
        return Answer(HTTPStatus.OK, kind, body, policy)


def _as_bearer(authorization: str | None) -> str | None:
    """Convert Basic credentials of a browser to Bearer.

    The password is the token.
    """
    scheme, _, encoded = (authorization or "").partition(" ")
    if scheme.lower() != "basic":
        return authorization
    try:
        token = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return authorization
    return f"Bearer {token}"
