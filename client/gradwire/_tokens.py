"""What a client shows a server that wants to know who calls: a token, with every call.

It is in no argument of a program, no repr, no error and no log; nor does it travel in plain text to
another machine.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from gradwire._reloaded import Reloaded
from gradwire._targets import is_local, is_open_list
from gradwire.errors import InvalidRequestError

TOKEN_VARIABLE = "GRADWIRE_TOKEN"  # noqa: S105 - the variable's name
FILE_VARIABLE = "GRADWIRE_TOKEN_FILE"

Sent = tuple[tuple[str, str], ...]

_log = logging.getLogger("gradwire")


class Bearer:
    """A token on its way. Any number of threads may use it."""

    def __init__(self, sent: Sent | Reloaded[Sent]) -> None:
        self._sent = sent

    def metadata(self) -> Sent:
        """Return what a call has to send; a file is read anew where it has changed."""
        return self._sent.get() if isinstance(self._sent, Reloaded) else self._sent


def read_bearer(
    token: str | None, token_file: str | None, *, target: Sequence[str], secure: bool
) -> Bearer | None:
    """Return what shows a token, or None where there is none.

    Without arguments the environment tells: GRADWIRE_TOKEN, or else GRADWIRE_TOKEN_FILE.

    Raises InvalidRequestError where a token is none, its file cannot be read, or it would travel
    to another machine in plain text.
    """
    if token is not None and token_file is not None:
        raise InvalidRequestError.of("token", "is given, and token_file is too; give one of them")
    name, file_name = "token", "token_file"
    if token is None and token_file is None:
        token, token_file = os.environ.get(TOKEN_VARIABLE), os.environ.get(FILE_VARIABLE)
        name, file_name = TOKEN_VARIABLE, FILE_VARIABLE
    if not token and not token_file and name != "token":
        return None
    distant = [address for address in target if not is_local(address)]
    if distant and not secure:
        raise InvalidRequestError.of(
            name if token is not None else file_name,
            f"a token would go to {distant[0]} in plain text, where others can read it; give "
            "credentials for TLS (--tls-ca), or no token",
        )
    told = [address for address in target if is_open_list(address)]
    if told:
        raise InvalidRequestError.of(
            name if token is not None else file_name,
            f"a token would go wherever {told[0]} says, in plain text that others can change; "
            "give replicas+https, or no token",
        )
    if token is not None and (token or token_file is None):
        return Bearer(_sent(token, name))
    return Bearer(_of_file(token_file or "", file_name))


def _of_file(path: str, name: str) -> Reloaded[Sent]:
    def keep(error: Exception) -> None:
        _log.warning("the token of before is kept: %s", error)

    try:
        return Reloaded(
            (path,),
            lambda contents: _sent(contents[0].decode("ascii", "replace").strip(), name, path),
            on_error=keep,
        )
    except OSError as error:
        raise InvalidRequestError.of(name, f"{path} cannot be read: {error.strerror}") from error


def _sent(token: str, name: str, path: str = "") -> Sent:
    if not (token.isascii() and token.isprintable()) or not token or " " in token:
        raise InvalidRequestError.of(
            name,
            f"{path}{' ' if path else ''}holds no token: one is a word of printable characters, "
            "which is not shown here",
        )
    return (("authorization", f"Bearer {token}"),)
