"""Listener of the HTTP port, with requests and answers.

Connections are accepted in threads outside the event loop. The number of open connections is
bounded, a further one closes the oldest, since an answer takes milliseconds, and each connection
has one request, read in bounded memory and time, and one answer.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

import h11

from gradwire_server.security.certificates import Certificates

# A request line and headers of browsers with many cookies have some 4 KiB.
MOST_HEAD_BYTES = 16 << 10
_MOST_OPEN = 32
# Time limit of a connection.
_MOST_OPEN_S = 10.0
_READ_BYTES = 4096
_VERSIONS = (b"1.0", b"1.1")
_METHODS = (b"GET", b"HEAD")
_TLS_HANDSHAKE = b"\x16"
# Delay after a failed accept, for example for lack of file descriptors.
_NEXT_TRY_S = 0.1
_POLL_S = 0.1
# Name the methods; forbid framing, caching, content sniffing, and reading by other sites.
_ALWAYS = {
    "Allow": "GET, HEAD",
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
    more: Mapping[str, str]

    @classmethod
    def text(cls, status: HTTPStatus, text: str, **more: str) -> Answer:
        """Return a response of plain text; `more` are headers."""
        return cls(status, "text/plain; charset=utf-8", f"{text}\n".encode(), more)


@dataclass(frozen=True, slots=True)
class Request:
    """Parsed request.

    path       without its query
    headers    last value of each, by name in lower case
    peer       address of the caller, in grpc's form
    certified  whether TLS has checked a certificate of the caller
    """

    path: str
    headers: Mapping[str, str]
    peer: str
    certified: bool

    @classmethod
    def of(cls, event: h11.Request, *, peer: str, certified: bool) -> Request:
        """Return a request that h11 has read.

        Raises h11.RemoteProtocolError if it is unsupported here.
        """
        path = event.target.decode("ascii").partition("?")[0]
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
        elif event.method not in _METHODS:
            raise h11.RemoteProtocolError(
                "GET and HEAD are supported", error_status_hint=HTTPStatus.METHOD_NOT_ALLOWED
            )
        elif "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
            told = "a request here has no body"
        if told:
            raise h11.RemoteProtocolError(told)
        return cls(path, headers, peer, certified)


class Listener(socketserver.ThreadingTCPServer, ABC):
    """Answers on an address from construction until close(); a subclass has respond().

    certificates  for TLS; None for plain HTTP
    address       HOST:PORT with the port bound

    Raises OSError if the address cannot be bound.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, *, certificates: Certificates | None) -> None:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        self.address_family, _, _, _, place = found[0]
        self.certificates = certificates
        # With the time at which each was accepted, the oldest first.
        self._open: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__((str(place[0]), port), socketserver.BaseRequestHandler)
        self.address = f"{host}:{self.server_address[1]}"
        self._thread = threading.Thread(
            target=self.serve_forever, args=(_POLL_S,), name="gradwire-http", daemon=True
        )
        self._thread.start()

    @abstractmethod
    def respond(self, request: Request) -> Answer:
        """Answer a request."""

    def close(self) -> None:
        """Stop answering."""
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

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer the one request of a connection."""
        connection: socket.socket = request
        host, port, *_ = client_address
        peer = f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
        certificates = self.certificates
        is_tls = connection.recv(1, socket.MSG_PEEK) == _TLS_HANDSHAKE
        if is_tls != (certificates is not None):
            told = "this port uses no TLS; use http" if is_tls else "this port uses TLS; use https"
            _send(connection, h11.Connection(h11.SERVER), Answer.text(HTTPStatus.BAD_REQUEST, told))
        elif certificates is None:
            self._answer(connection, peer=peer, certified=False)
        else:
            # Wrap a duplicate: the server closes the original socket itself.
            context = certificates.get().context
            with context.wrap_socket(connection.dup(), server_side=True) as secured:
                certified = bool(secured.getpeercert(binary_form=True))
                self._answer(secured, peer=peer, certified=certified)

    def _answer(self, connection: socket.socket, *, peer: str, certified: bool) -> None:
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD_BYTES)
        is_head = False
        try:
            while (event := http.next_event()) is h11.NEED_DATA:
                http.receive_data(connection.recv(_READ_BYTES))
            if not isinstance(event, h11.Request):
                return
            is_head = event.method == b"HEAD"
            answer = self.respond(Request.of(event, peer=peer, certified=certified))
        except h11.RemoteProtocolError as error:
            answer = Answer.text(HTTPStatus(error.error_status_hint), str(error))
        _send(connection, http, answer, with_body=not is_head)


def _send(
    connection: socket.socket, http: h11.Connection, answer: Answer, *, with_body: bool = True
) -> None:
    headers = {
        "Date": formatdate(usegmt=True),
        "Content-Type": answer.content_type,
        "Content-Length": str(len(answer.body)),
        "Connection": "close",
        **_ALWAYS,
        **answer.more,
    }
    status = answer.status
    response = h11.Response(
        status_code=status, reason=status.phrase.encode(), headers=list(headers.items())
    )
    head = http.send(response) or b""
    connection.sendall(head + answer.body if with_body else head)
