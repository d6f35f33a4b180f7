"""Paths of the HTTP port: health, metrics and status.

Health is public; metrics and status are for authorized callers.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Generic, TypeVar

from gradwire_server.admin_http import page
from gradwire_server.admin_http.access import AccessCheck
from gradwire_server.admin_http.history import History, totals
from gradwire_server.admin_http.listener import Answer, Listener, Request
from gradwire_server.admin_http.status import Subject, is_alive, is_ready, status
from gradwire_server.config.addresses import split
from gradwire_server.config.settings import Settings
from gradwire_server.observability.cells import Ledgers
from gradwire_server.observability.exposition import Exposition, Processes
from gradwire_server.security.authorization import Authorizer
from gradwire_server.security.certificates import Certificates

# Shortest interval between renderings of the page.
_AT_MOST_EVERY_S = 0.5

T = TypeVar("T")


class Site:
    """Serves the HTTP port, from construction until close().

    address  HOST:PORT with the port bound

    certificates  for TLS; None for plain HTTP
    served        gRPC address of the server

    Raises OSError if the address cannot be bound, ValueError if the tokens file is invalid.
    """

    def __init__(
        self,
        settings: Settings,
        ledgers: Ledgers,
        *,
        served: str,
        certificates: Certificates | None = None,
    ) -> None:
        host, port = split(settings.http_address)
        self._ledgers = ledgers
        self._subject = Subject(settings, served)
        names = (host, *settings.http_hosts.replace(" ", "").split(","))
        self._guard = AccessCheck(Authorizer(settings), names, is_open=settings.http_open)
        self._exposition = Exposition(ledgers)
        self._history = History(lambda: totals(ledgers.read()))
        processes = Processes()
        self._status = _CachedAnswer(
            lambda: status(self._subject, ledgers, self._history, processes)
        )
        self._page = _CachedAnswer(lambda: page.render(self._status.get()))
        tls = None if certificates is None else certificates.http_context
        try:
            self._listener = Listener(host, port, self.respond, tls=tls)
        except OSError as error:
            reason = error.strerror or error
            raise OSError(f"--http-port {settings.http_port} cannot be had: {reason}") from error
        self.address = self._listener.address
        self._history.start()
        self._listener.start()

    def close(self) -> None:
        """Stop answering."""
        self._listener.close()
        self._history.close()

    def respond(self, request: Request) -> Answer:
        """Answer a request."""
        probes = {"/healthz": self._healthz, "/readyz": self._readyz}
        refused = self._guard.wrong_host(request)
        if refused is None and request.path in probes:
            return probes[request.path]()
        return refused or self._guard.refusal(request) or self._content(request)

    def _content(self, request: Request) -> Answer:
        if request.path == "/":
            policy = {"Content-Security-Policy": page.CONTENT_SECURITY_POLICY}
            return Answer(HTTPStatus.OK, "text/html; charset=utf-8", self._page.get(), policy)
        if request.path == "/status.json":
            body = json.dumps(self._status.get(), indent=2).encode() + b"\n"
            return Answer(HTTPStatus.OK, "application/json", body)
        if request.path == "/metrics":
            body, content_type = self._exposition.encode(request.headers.get("accept", ""))
            return Answer(HTTPStatus.OK, content_type, body)
        return Answer.text(
            HTTPStatus.NOT_FOUND,
            "not found; the paths are /, /status.json, /metrics, /healthz and /readyz",
        )

    def _healthz(self) -> Answer:
        """Return whether the server is alive.

        It is not alive if every serving event loop hangs.
        """
        if is_alive(self._ledgers.read(), self._history.silent_s()):
            return Answer.text(HTTPStatus.OK, "alive")
        return Answer.text(HTTPStatus.SERVICE_UNAVAILABLE, "the event loop hangs")

    def _readyz(self) -> Answer:
        if is_ready(self._ledgers):
            return Answer.text(HTTPStatus.OK, "serving")
        return Answer.text(HTTPStatus.SERVICE_UNAVAILABLE, "not serving")


class _CachedAnswer(Generic[T]):
    """A value recomputed on demand, at most every _AT_MOST_EVERY_S. Thread-safe."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: tuple[float, T] | None = None

    def get(self) -> T:
        """Return the value."""
        with self._lock:
            now = time.monotonic()
            if self._made is None or now - self._made[0] >= _AT_MOST_EVERY_S:
                self._made = (now, self._make())
            return self._made[1]
