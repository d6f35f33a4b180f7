"""Listener of the HTTP port, with requests and answers.

Connections are accepted in threads outside the event loop. The number of open connections is
bounded, a further one closes the oldest, since an answer takes milliseconds, and each connection
has one request, read in bounded memory and time, and one answer.
"""

from __future__ import annotations

import contextlib
import re
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, cast

import h11

# A request line and headers of browsers with many cookies have some 4 KiB.
MOST_HEAD_BYTES = 16 << 10
_MOST_OPEN = 32
# Time limit of a connection.
_MOST_OPEN_S = 10.0
_READ_BYTES = 4096
_VERSIONS = (b"1.0", b"1.1")
_METHODS = ("GET", "HEAD")
_TLS_HANDSHAKE = b"\x16"
# Delay after a failed accept, for example for lack of file descriptors.
_NEXT_TRY_S = 0.1
_POLL_S = 0.1
# Forbid framing, caching, content sniffing, and reading by other sites.
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
    """Answer to a request.

    more  additional headers by name; they override the default ones
    """

    status: HTTPStatus
    content_type: str
    body: bytes
    more: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def text(cls, status: HTTPStatus, text: str, **more: str) -> Answer:
        """Return a response of plain text; `more` are headers."""
        return cls(status, "text/plain; charset=utf-8", f"{text}\n".encode(), more)

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
    """Invalid or too large request; `answer` is the error to send."""

    def __init__(self, status: HTTPStatus, text: str, **more: str) -> None:
        super().__init__(text)
        self.answer = Answer.text(status, text, **more)


@dataclass(frozen=True, slots=True)
class Request:
    """Parsed request.

    path       without its query
    host       of the header Host, with its port; empty if HTTP/1.0 sends none
    headers    last value of each, by name in lower case
    peer       address of the caller, in grpc's form
    certified  whether TLS has checked a certificate of the caller
    """

    method: str
    path: str
    host: str
    headers: Mapping[str, str]
    peer: str
    certified: bool

    @classmethod
    def of(cls, head: bytes, *, peer: str, certified: bool) -> Request | None:
        """Parse a request; None if it is not complete.

        Raises BadRequestError if it is invalid or unsupported here.
        """
        http = h11.Connection(h11.SERVER)
        try:
            http.receive_data(head)
            event = http.next_event()
        except h11.RemoteProtocolError as error:
            raise BadRequestError(HTTPStatus(error.error_status_hint), str(error)) from error
        if not isinstance(event, h11.Request):
            return None
        path, method = event.target.decode("ascii").partition("?")[0], event.method.decode("ascii")
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in event.headers}
        told = ""
        if not path.startswith("/") or event.http_version not in _VERSIONS:
            told = "GET /path HTTP/1.1 is understood"
        # h11 rejects HTTP/1.1 requests without a Host header, or with several.
        elif headers.get("host") == "":
            told = "the header Host is empty"
        elif [name for name, _ in event.headers].count(b"authorization") > 1:
            # A proxy may have checked another one of them.
            told = "more than one header Authorization"
        elif method not in _METHODS:
            raise BadRequestError(
                HTTPStatus.METHOD_NOT_ALLOWED, "GET and HEAD are supported", Allow="GET, HEAD"
            )
        elif "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
            told = "a request here has no body"
        if told:
            raise BadRequestError(HTTPStatus.BAD_REQUEST, told)
        return cls(method, path, headers.get("host", ""), headers, peer, certified)


class Listener(socketserver.ThreadingTCPServer):
    """Listens on an address from construction until close(); answers after start().

    tls      returns the current context; None for plain HTTP
    address  HOST:PORT with the port bound

    Raises OSError if the address cannot be bound.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(
        self,
        host: str,
        port: int,
        respond: Callable[[Request], Answer],
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        self.address_family, _, _, _, place = found[0]
        self.respond, self.tls = respond, tls
        # With the time at which each was accepted, the oldest first.
        self._open: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__((str(place[0]), port), _HttpConnection)
        self.address = f"{host}:{self.server_address[1]}"
        self._thread = threading.Thread(
            target=self.serve_forever, args=(_POLL_S,), name="gradwire-http", daemon=True
        )

    def start(self) -> None:
        """Start answering, including connections that already wait."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        if self._thread.ident is not None:
            self.shutdown()
            self._thread.join()
        self.server_close()
        self._cut(down_to=0)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(_NEXT_TRY_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread; a further one closes the oldest."""
        with self._lock:
            self._open[request] = time.monotonic()
        self._cut(down_to=_MOST_OPEN)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Shut down connections that are open for too long."""
        self._cut(down_to=_MOST_OPEN)

    def _cut(self, *, down_to: int) -> None:
        """Shut down the oldest connections; their threads then close them."""
        with self._lock:
            for request, since in list(self._open.items()):
                if len(self._open) > down_to or time.monotonic() - since > _MOST_OPEN_S:
                    del self._open[request]
                    with contextlib.suppress(OSError):
                        request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: readers may disconnect, and stderr is for log lines."""


class _HttpConnection(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        """Answer one request; a connection has no other."""
        tls, connection = cast("Listener", self.server).tls, cast("socket.socket", self.request)
        is_tls = connection.recv(1, socket.MSG_PEEK) == _TLS_HANDSHAKE
        if is_tls != (tls is not None):
            told = "this port uses TLS; use https" if tls else "this port uses no TLS; use http"
            connection.sendall(Answer.text(HTTPStatus.BAD_REQUEST, told).encode())
        elif tls is None:
            self._answer(connection, certified=False)
        else:
            # Wrap a duplicate: the server closes the original socket itself.
            with tls().wrap_socket(connection.dup(), server_side=True) as secured:
                self._answer(secured, certified=bool(secured.getpeercert(binary_form=True)))

    def _answer(self, connection: socket.socket, *, certified: bool) -> None:
        head, peer = b"", _peer(self.client_address)
        try:
            head = _read_head(connection)
            request = Request.of(head, peer=peer, certified=certified)
            if request is None:
                return
            answer = cast("Listener", self.server).respond(request)
        except BadRequestError as error:
            answer = error.answer
        connection.sendall(answer.encode(with_body=not head.startswith(b"HEAD ")))


_END = re.compile(rb"\n\r?\n")


def _read_head(connection: socket.socket) -> bytes:
    head = b""
    # h11 takes bare line feeds too.
    while not _END.search(head) and (data := connection.recv(_READ_BYTES)):
        head += data
        if len(head) > MOST_HEAD_BYTES:
            raise BadRequestError(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"expected a request of at most {MOST_HEAD_BYTES} bytes",
            )
    return head


def _peer(address: tuple[Any, ...]) -> str:
    """Return the address of a connection in grpc's form."""
    host, port = str(address[0]), address[1]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
