"""Authorization of calls, for every protocol and port.

Health is for everybody. With a tokens file, every other call needs a token with its scope,
independent of the call's origin and certificate. Without a tokens file, callers of this machine and
callers whose certificate TLS has checked may do everything; `anonymous_scopes` limits all others.
The module is independent of protocols: its caller passes the header and the peer's address.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from urllib.parse import unquote

from gradwire._wire.files import Reloaded
from gradwire_server.config.addresses import is_loopback
from gradwire_server.config.settings import Settings
from gradwire_server.config.tokens import Scope, Token, digest_of, read_tokens
from gradwire_server.errors import EvaluationError, MissingScopeError, UnauthenticatedError
from gradwire_server.observability import logs
from gradwire_server.security.certificates import reason

__all__ = ["Authorizer", "Scope"]


class Authorizer:
    """Authorizes calls or refuses them. Thread-safe.

    clock  seconds since 1970, by which tokens expire

    Raises ValueError if the tokens file is invalid.
    """

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.time) -> None:
        self._anonymous = settings.scopes_of_strangers
        self._clock = clock
        self._tokens: Reloaded[dict[bytes, Token]] | None = None
        if settings.tokens:
            try:
                self._tokens = Reloaded((settings.tokens,), _by_digest, on_error=_keep)
            except (OSError, ValueError) as error:
                raise ValueError(f"--tokens is {settings.tokens}: {reason(error)}") from error

    def is_open(self, scope: Scope) -> bool:
        """Return whether a scope needs no authentication."""
        return self._tokens is None and scope in self._anonymous

    def refusal(
        self,
        scope: Scope,
        *,
        authorization: str | None,
        peer: str,
        certified: bool = False,
    ) -> EvaluationError | None:
        """Return the error of a refused call; None if it is admitted.

        UnauthenticatedError where a token is missing or not taken (401 in HTTP), MissingScopeError
        where a scope is missing (403). Their messages tell nothing that the caller does not know.

        authorization  value of the header of that name, "Bearer TOKEN"; None where there is none
        peer           address of the caller, in grpc's form: "ipv4:127.0.0.1:5", "unix:..."
        certified      whether TLS has checked a certificate of the caller
        """
        if self._tokens is not None:
            return self._of_token(self._tokens, scope, authorization)
        if scope in self._anonymous or certified or is_local(peer):
            return None
        return MissingScopeError(
            f"this call needs the scope {scope.value}, which callers of other machines do "
            "not have: call from the server's own machine, use a client certificate signed by one "
            "of its --tls-client-ca, or set --tokens or --anonymous-scopes on the server",
        )

    def _of_token(
        self, tokens: Reloaded[dict[bytes, Token]], scope: Scope, authorization: str | None
    ) -> EvaluationError | None:
        if authorization is None:
            return UnauthenticatedError("a token is needed: send it as authorization: Bearer TOKEN")
        scheme, _, shown = authorization.partition(" ")
        if scheme.lower() != "bearer" or not shown:
            return UnauthenticatedError("authorization is not of the form Bearer TOKEN")
        # Of a hash of 32 random bytes, the time of a look-up reveals nothing.
        digest = digest_of(shown.strip())
        found = tokens.get().get(digest)
        if found is None and tokens.look():
            # It was added a moment ago.
            found = tokens.get().get(digest)
        if found is None:
            return UnauthenticatedError("the server does not know this token")
        today = datetime.fromtimestamp(self._clock(), UTC).date()
        if found.expires is not None and today > found.expires:
            return UnauthenticatedError(
                f"the token {found.name} expired on {found.expires}; use another one"
            )
        if scope not in found.scopes:
            return MissingScopeError(
                f"the token {found.name} lacks the scope {scope.value}, which this call "
                "needs; use one that has it",
            )
        return None


def warn_if_open(settings: Settings) -> None:
    """Warn if callers on other machines need no token and no certificate."""
    asks = settings.is_local or settings.tokens or settings.tls_client_ca
    if settings.scopes_of_strangers and not asks:
        logs.warning(
            "no tokens: every client that reaches the server may call it",
            address=settings.address,
            anonymous_scopes=settings.anonymous_scopes,
        )


def _by_digest(contents: tuple[bytes, ...]) -> dict[bytes, Token]:
    return {token.digest: token for token in read_tokens(contents[0])}


@lru_cache(maxsize=1 << 10)
def is_local(peer: str) -> bool:
    """Return whether a peer is on this machine.

    The peer has grpc's form; loopback and unix sockets are on this machine.
    """
    family, _, rest = peer.partition(":")
    if family in {"unix", "unix-abstract"}:
        return True
    return family in {"ipv4", "ipv6"} and is_loopback(unquote(rest))


def _keep(error: Exception) -> None:
    logs.error("tokens cannot be read", error=reason(error), kept="the tokens as they were")
