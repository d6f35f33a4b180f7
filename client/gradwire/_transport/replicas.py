"""Current replicas behind a target that names a list of them.

    replicas+http://HOST:PORT/PATH      or replicas+https://, verified by the system's authorities

The address answers GET with `{"replicas": ["HOST:PORT", ...]}`. gRPC for Python takes no resolvers
of its own, and DNS reports a new server late: so a thread asks when a call finds the list old or
has failed, and updates the pool of connections. A missing, malformed or empty list leaves the one
before in use: its source may be gone while the replicas serve.
"""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError

from gradwire._core.options import ip_version, is_host_port, is_list
from gradwire.errors import UnavailableError

Listener = Callable[[Sequence[str]], object]

# Seconds after which a list is old: when a call uses it, and after a call has failed.
FRESH_S = 2.0
SOON_S = 0.25
# Timeout of one request, in seconds.
_PATIENCE_S = 2.0
_MOST_BYTES = 1 << 20
_ADDRESS = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")


def resolve(target: str) -> tuple[str, ...]:
    """Return the addresses that a target stands for: its replicas, or itself.

    Raises UnavailableError if no list arrives, or if it names no replica.
    """
    if not is_list(target):
        return (target,)
    try:
        request = urllib.request.Request(  # noqa: S310 - http or https
            target.removeprefix("replicas+"), headers={"Accept": "application/json"}
        )
        with _OPENER.open(request, timeout=_PATIENCE_S) as response:
            return _read(response.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError, HTTPException) as error:
        reason: object = error
        if isinstance(error, HTTPException):
            reason = "it answers with no HTTP, or cuts it off"
        elif isinstance(error, HTTPError):
            error.close()
        elif isinstance(error, URLError):
            reason = error.reason
        raise UnavailableError(f"no replicas are known from {target}: {reason}") from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirections, which could lead to a list in plain text."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Return no other request."""


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)


def _read(body: bytes) -> tuple[str, ...]:
    try:
        replicas = tuple(dict.fromkeys(map(_target, json.loads(body)["replicas"])))
    except (TypeError, LookupError):
        raise ValueError("the answer is not a list of replicas") from None
    if not replicas:
        raise ValueError("it lists none now")
    return replicas


def _target(value: object) -> str:
    """Return gRPC's target for HOST:PORT; raise ValueError for other values."""
    if not (isinstance(value, str) and _ADDRESS.fullmatch(value) and is_host_port(value)):
        raise ValueError("the answer is not a list of HOST:PORT")
    # A name may equal a scheme, such as unix, and would then lead elsewhere.
    return value if ip_version(value) else f"dns:///{value}"


class Replicas:
    """Replicas behind one target, in one process; safe for threads.

    addresses  the last known addresses
    """

    def __init__(self, target: str) -> None:
        self._target = target
        # Held while a thread asks.
        self._asking = threading.Lock()
        self._listeners: list[Listener] = []
        self._looked_at = -FRESH_S
        self._failure = UnavailableError(f"no replicas are known from {target} yet")
        self._looked = threading.Event()
        self.addresses: tuple[str, ...] = ()

    def subscribe(self, listener: Listener) -> None:
        """Call a listener with the addresses after every change.

        The call comes from another thread.
        """
        self._listeners.append(listener)

    def wait(self) -> None:
        """Wait until the first request is answered, or has failed."""
        self.refresh()
        self._looked.wait()

    @property
    def failure(self) -> UnavailableError:
        """Return the error to raise if there is no replica."""
        failure = UnavailableError(str(self._failure))
        failure.unreachable = True
        return failure

    def refresh(self, *, age_s: float = FRESH_S) -> None:
        """Ask again in a thread if the last answer is old."""
        old = time.monotonic() - self._looked_at >= age_s
        if old and self._asking.acquire(blocking=False):
            threading.Thread(target=self._refresh, name="gradwire-replicas", daemon=True).start()

    def _refresh(self) -> None:
        try:
            self.look()
        finally:
            self._asking.release()

    def look(self) -> None:
        """Ask now, in the calling thread."""
        try:
            addresses = resolve(self._target)
        except UnavailableError as error:
            self._failure = error
        else:
            if addresses != self.addresses:
                self.addresses = addresses
                for listener in self._listeners:
                    listener(addresses)
        finally:
            self._looked_at = time.monotonic()
            self._looked.set()
