"""The tokens file: SHA-256 hashes of accepted tokens, with scopes and expiry.

    # name  sha256  scopes  last day (UTC), optional
    trainer 5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8 evaluate 2027-06-30

The file never contains a token. A token is 32 random bytes, so its plain hash reveals nothing about
it. Changes are written to a second file that replaces the first atomically, since servers read it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import tempfile
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from hashlib import sha256
from pathlib import Path

from gradwire._wire.files import read_small

_HEADER = "# name sha256 scopes [last day, UTC]: written by gradwire-server token\n"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_NAMES = "up to 64 letters, digits, '.', '_' and '-' are one"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_TOKEN_BYTES = 32


class Scope(StrEnum):
    """Permissions of a caller: to evaluate operators, or to inspect the server."""

    EVALUATE = "evaluate"
    INSPECT = "inspect"


@dataclass(frozen=True, slots=True)
class Token:
    """One line of the file.

    digest   SHA-256 of the token, 32 bytes
    expires  last day on which it is valid, UTC; None for no expiry
    """

    name: str
    digest: bytes
    scopes: frozenset[Scope]
    expires: date | None


def digest_of(token: str) -> bytes:
    """Return the SHA-256 of a token."""
    return sha256(token.encode("utf-8", "surrogateescape")).digest()


def read_scopes(text: str) -> frozenset[Scope]:
    """Parse scopes such as "evaluate,inspect".

    Empty text is no scope. Raises ValueError for an unknown one.
    """
    words = [word.strip() for word in text.split(",")] if text else []
    for word in words:
        if word not in set(Scope):
            raise ValueError(f"{word!r} is not a scope; give some of {', '.join(Scope)}")
    return frozenset(map(Scope, words))


def read_tokens(content: bytes) -> tuple[Token, ...]:
    """Parse a file's content; ValueError names the invalid line without quoting it."""
    if not content.strip():
        raise ValueError("the file is empty; one that lets nobody in has a comment at least")
    tokens: dict[str, Token] = {}
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            token = _read_line(words)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        if token.name in tokens:
            raise ValueError(f"line {number}: the name {token.name} is there already")
        tokens[token.name] = token
    return tuple(tokens.values())


def _read_line(words: list[str]) -> Token:
    if not 3 <= len(words) <= 4:  # noqa: PLR2004 - the last one is optional
        raise ValueError(f"{len(words)} words; name, sha256, scopes and maybe a date are needed")
    name, digest, scopes = words[:3]
    if not _NAME.fullmatch(name):
        raise ValueError(f"the first word is not a name: {_NAMES}")
    if not _DIGEST.fullmatch(digest):
        raise ValueError("the second word is not a SHA-256: 64 hexadecimal digits, lower case")
    expires = None
    if words[3:]:
        try:
            expires = date.fromisoformat(words[3])
        except ValueError:
            raise ValueError("the fourth word is not a date such as 2027-06-30") from None
    return Token(name, bytes.fromhex(digest), read_scopes(scopes), expires)


def add_token(
    path: Path, *, name: str, scopes: Iterable[Scope], expires: date | None = None
) -> str:
    """Make a token, add its line to the file, and return it.

    The token itself is stored nowhere. A missing file is created, readable by its user only. Raises
    ValueError if the name exists or is invalid, or the file is not a valid tokens file; OSError as
    files do.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name[:80]!r} is not a name: {_NAMES}")
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    digest, opens = digest_of(token).hex(), ",".join(sorted(scopes))
    with _changing(path) as lines:
        lines.append(f"{name} {digest} {opens} {expires or ''}".rstrip())
        read_tokens("\n".join(lines).encode())
    return token


def revoke_token(path: Path, name: str) -> None:
    """Remove a token's line from the file.

    Raises ValueError for an unknown name.
    """
    with _changing(path) as lines:
        kept = [line for line in lines if line.partition("#")[0].split()[:1] != [name]]
        if len(kept) == len(lines):
            raise ValueError(f"no token is named {name}")
        lines[:] = kept


@contextlib.contextmanager
def _changing(path: Path) -> Generator[list[str]]:
    """Yield the lines of a file, and write the modified lines back.

    The new file replaces the old one.
    """
    path = path.resolve()
    # Concurrent changes are serialized; the folder is locked, since the file is replaced.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        try:
            content = read_small(path)
        except FileNotFoundError:
            content = _HEADER.encode()
        read_tokens(content)
        lines = content.decode("utf-8", "surrogateescape").splitlines()
        yield lines
        _replace(path, "".join(f"{line}\n" for line in lines))
        os.fsync(folder)
    finally:
        os.close(folder)


def _replace(path: Path, text: str) -> None:
    descriptor, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            with contextlib.suppress(FileNotFoundError):
                # Servers of other users keep their permission to read the file.
                known = path.stat()
                os.fchmod(descriptor, known.st_mode & 0o644)
                with contextlib.suppress(PermissionError):
                    os.fchown(descriptor, known.st_uid, known.st_gid)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        Path(beside).replace(path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
