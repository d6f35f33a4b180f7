"""Checks of a request's Host header and permissions."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Iterable
from contextlib import suppress
from http import HTTPStatus

from gradwire_server.admin_http.listener import Answer, Request
from gradwire_server.errors import MissingScopeError
from gradwire_server.observability.logs import Refusals
from gradwire_server.security.authorization import Authorizer, Scope

# Browsers ask for a name and a token, of which the token counts; programs send Bearer. If that had
# no parameter, Chromium would understand neither.
_CHALLENGE = {
    "WWW-Authenticate": 'Basic realm="gradwire: any name, a token as password", charset="UTF-8", '
    'Bearer realm="gradwire"'
}
_HOST = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]+))(?::[0-9]*)?")


class AccessCheck:
    """Refuses requests with a foreign Host or without permission.

    names     accepted host names, beside localhost and any IP address
    is_open   whether reading needs no permission
    """

    def __init__(self, authorizer: Authorizer, names: Iterable[str], *, is_open: bool) -> None:
        self._authorizer = authorizer
        self._names = {name.lower() for name in names if name}
        self._is_open = is_open
        self._refusals = Refusals()

    def wrong_host(self, request: Request) -> Answer | None:
        """Return an error for a request with a foreign Host, otherwise None.

        This prevents DNS rebinding: an attacker's page whose name resolves to this server could
        have the browser send requests to it.
        """
        host = request.headers.get("host", "")
        if not host or self._is_ours(host):
            return None
        return Answer.text(
            HTTPStatus.MISDIRECTED_REQUEST,
            "the name in Host is not one of this server's names; add it to --http-hosts",
        )

    def refusal(self, request: Request) -> Answer | None:
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
        why, status, headers = "unauthenticated", HTTPStatus.UNAUTHORIZED, _CHALLENGE
        if isinstance(refused, MissingScopeError):
            why, status, headers = "permission_denied", HTTPStatus.FORBIDDEN, {}
        self._refusals.note(why, peer=request.peer, port="http")
        return Answer.text(status, refused.message, **headers)

    def _is_ours(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = (found[1] or found[2]).lower()
        with suppress(ValueError):
            # An IP address cannot be rebound.
            return bool(ipaddress.ip_address(name))
        return name in self._names or name == "localhost" or name.endswith(".localhost")


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
