"""Accepts connections of the HTTP port in threads of its own, away from the event loop.

However many come, and whatever they say or leave out: a bounded number is open, each is read for a
bounded time, and one more closes the oldest, since an answer is over in milliseconds.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

from gradwire_server.admin_http.requests import Answer, BadRequestError, Request, parse, read_head

# Who takes longer to ask, or to read the answer, is no reader.
_PATIENCE_S = 5.0
_MOST_OPEN = 32
_TLS_HANDSHAKE = b"\x16"
# Where no connection can be accepted, for want of file descriptors, the next try waits.
_NEXT_TRY_S = 0.1

Respond = Callable[[Request], Answer]


class Listener:
    """Answers on an address from when it is made until close().

    tls      gives the context of the moment; None for plain HTTP
    address  HOST:PORT with the port bound

    Raises OSError where the address cannot be had.
    """

    def __init__(
        self,
        host: str,
        port: int,
        respond: Respond,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._server = _Server(host, port, respond, tls)
        self.address = f"{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="gradwire-http", daemon=True
        )

    def start(self) -> None:
        """Answer from now on; who has come already is answered too."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        if self._thread.ident is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(
        self,
        host: str,
        port: int,
        respond: Respond,
        tls: Callable[[], ssl.SSLContext] | None,
    ) -> None:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        self.address_family, _, _, _, place = found[0]
        self.respond, self.tls = respond, tls
        self._open: dict[socket.socket, None] = {}
        self._lock = threading.Lock()
        super().__init__((str(place[0]), port), _HttpConnection)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:
            time.sleep(_NEXT_TRY_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open[request] = None
        self._cut(down_to=_MOST_OPEN)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def server_close(self) -> None:
        super().server_close()
        self._cut(down_to=0)

    def _cut(self, *, down_to: int) -> None:
        """End the oldest connections: their threads find them so, and close them."""
        with self._lock:
            while len(self._open) > down_to:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: readers come and go, and stderr is for log lines."""


class _HttpConnection(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        """Answer one request; a connection has no other."""
        server, connection = cast("_Server", self.server), cast("socket.socket", self.request)
        connection.settimeout(_PATIENCE_S)
        with contextlib.suppress(OSError):
            if server.tls is None:
                self._answer(connection)
            elif connection.recv(1, socket.MSG_PEEK) != _TLS_HANDSHAKE:
                told = Answer.text(HTTPStatus.BAD_REQUEST, "this port speaks TLS: https")
                connection.sendall(told.encode())
            else:
                # A copy of the socket, which the server closes itself: the latter stays as it is.
                with server.tls().wrap_socket(connection.dup(), server_side=True) as secured:
                    self._answer(secured)

    def _answer(self, connection: socket.socket) -> None:
        certified = isinstance(connection, ssl.SSLSocket) and bool(
            connection.getpeercert(binary_form=True)
        )
        with_body = True
        try:
            head = read_head(connection, patience_s=_PATIENCE_S)
            if head is None:
                return
            request = parse(head, peer=_peer(self.client_address), certified=certified)
            with_body = request.method != "HEAD"
            answer = cast("_Server", self.server).respond(request)
        except BadRequestError as error:
            answer = error.answer
        except TimeoutError:
            answer = Answer.text(HTTPStatus.REQUEST_TIMEOUT, "the request did not come in time")
        connection.settimeout(_PATIENCE_S)
        connection.sendall(answer.encode(with_body=with_body))


def _peer(address: tuple[Any, ...]) -> str:
    """Write where a connection comes from as grpc does."""
    host, port = str(address[0]), address[1]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
