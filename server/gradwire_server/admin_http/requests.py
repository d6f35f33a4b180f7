"""One request of a connection, read in bounded memory and time, and one answer."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from http.client import HTTPException, parse_headers
from io import BytesIO

# A request line and headers of browsers with many cookies have some 4 KiB.
MOST_HEAD_BYTES = 16 << 10
_READ_BYTES = 4096
_END = b"\r\n\r\n"
_VERSIONS = ("HTTP/1.0", "HTTP/1.1")
_METHODS = ("GET", "HEAD")
# Nothing here is for other sites: not to be framed, kept, guessed at, or read from their pages.
_ALWAYS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request gets.

    more  headers, by name, beside those that every answer has; they win over those
    """

    status: HTTPStatus
    content_type: str
    body: bytes
    more: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def text(cls, status: HTTPStatus, text: str, **more: str) -> Answer:
        """Make one of plain text; underscores in the names of headers stand for hyphens."""
        headers = {name.replace("_", "-"): value for name, value in more.items()}
        return cls(status, "text/plain; charset=utf-8", f"{text}\n".encode(), headers)

    def encode(self, *, with_body: bool = True) -> bytes:
        """Write it as HTTP/1.1."""
        headers = {
            "Date": formatdate(usegmt=True),
            "Content-Type": self.content_type,
            "Content-Length": str(len(self.body)),
            "Connection": "close",
            **_ALWAYS,
            **self.more,
        }
        lines = [f"HTTP/1.1 {self.status.value} {self.status.phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        return head + self.body if with_body else head


class BadRequestError(Exception):
    """A request that is none, or too much of one; `answer` says so."""

    def __init__(self, status: HTTPStatus, text: str, **more: str) -> None:
        super().__init__(text)
        self.answer = Answer.text(status, text, **more)


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked.

    path       without its query
    host       of the header Host, with its port; empty where HTTP/1.0 sends none
    headers    the last of each name, by its name in lower case
    peer       where it comes from, as grpc has it
    certified  whether TLS has checked a certificate of the caller
    """

    method: str
    path: str
    host: str
    headers: Mapping[str, str]
    peer: str
    certified: bool


def read_head(connection: socket.socket, *, patience_s: float) -> bytes | None:
    """Return a request up to the empty line; None where the caller goes without one.

    patience_s  for all of it: who sends a byte now and then is not waited for

    Raises BadRequestError where it is too long or not HTTP, TimeoutError.
    """
    until = time.monotonic() + patience_s
    head = b""
    while _END not in head and len(head) <= MOST_HEAD_BYTES:
        if head and not head[:1].isalpha():
            raise BadRequestError(HTTPStatus.BAD_REQUEST, "this port speaks HTTP, without TLS")
        connection.settimeout(max(1e-3, until - time.monotonic()))
        came = connection.recv(_READ_BYTES)
        if not came:
            return None
        head += came
    head = head.partition(_END)[0]
    if len(head) > MOST_HEAD_BYTES:
        raise BadRequestError(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"a request line and headers of at most {MOST_HEAD_BYTES} bytes are read",
        )
    return head


def parse(head: bytes, *, peer: str, certified: bool) -> Request:
    """Read a request's head; raise BadRequestError where it asks for what there is not."""
    line, _, rest = head.partition(b"\r\n")
    words = line.decode("latin-1").split(" ")
    if len(words) != 3 or words[2] not in _VERSIONS or not words[1].startswith("/"):  # noqa: PLR2004
        raise BadRequestError(HTTPStatus.BAD_REQUEST, "GET /path HTTP/1.1 is understood")
    method, target, version = words
    if method not in _METHODS:
        raise BadRequestError(
            HTTPStatus.METHOD_NOT_ALLOWED,
            "nothing can be changed here: GET or HEAD",
            Allow="GET, HEAD",
        )
    try:
        headers = parse_headers(BytesIO(rest + _END))
    except HTTPException as error:
        raise BadRequestError(HTTPStatus.BAD_REQUEST, "these are no headers") from error
    hosts = headers.get_all("Host", [])
    if (len(hosts) != 1 and (hosts or version != "HTTP/1.0")) or not all(map(str.strip, hosts)):
        raise BadRequestError(HTTPStatus.BAD_REQUEST, "one header Host with a name is needed")
    if len(headers.get_all("Authorization", [])) > 1:
        # Whoever stands in front may have looked at another one.
        raise BadRequestError(HTTPStatus.BAD_REQUEST, "one header Authorization at most is read")
    if "Transfer-Encoding" in headers or headers.get("Content-Length", "0") != "0":
        raise BadRequestError(HTTPStatus.BAD_REQUEST, "a request here has no body")
    return Request(
        method=method,
        path=target.partition("?")[0],
        host=str(hosts[0]).strip() if hosts else "",
        headers={name.lower(): str(value) for name, value in headers.items()},
        peer=peer,
        certified=certified,
    )
