"""Diagnosis of failed connections: gRPC reports the error of a single address.

A name such as localhost stands for several addresses, of which one may refuse a connection while
a server at another one hangs up because it wants TLS.
"""

from __future__ import annotations

import contextlib
import socket
import ssl

from gradwire._core.options import Options, host_and_port
from gradwire._wire.statuses import hung_up
from gradwire.errors import UnavailableError

# Seconds for each step with one address.
_STEP_S = 1.0
_WANTS_TLS = "wants TLS (credentials, --tls-ca), which this client does not speak"


def explained(error: UnavailableError, options: Options) -> UnavailableError:
    """Return the error with the answer of each address, if no connection was established.

    Takes up to a few seconds, and connects.
    """
    if not error.unreachable or hung_up(str(error)) or options.credentials is not None:
        return error
    places = [found for each in options.target if (found := host_and_port(each))]
    answers = [(name, _answer(where)) for place in places for name, where in _addresses(*place)]
    tls = [name for name, answer in answers if answer == _WANTS_TLS]
    if not tls:
        return error
    others = [f"{name} {answer}" for name, answer in answers if name not in tls]
    better = UnavailableError(
        "; ".join([f"the server at {tls[0]} {_WANTS_TLS}", *others]),
        reason=error.reason,
        request_id=error.request_id,
        metadata=error.metadata,
    )
    better.status, better.lasting = error.status, True
    return better


def _addresses(
    host: str, port: int
) -> list[tuple[str, tuple[socket.AddressFamily, tuple[object, ...]]]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # the second for names that DNS cannot hold
        return []
    return [
        (
            f"[{where[0]}]:{port}" if family is socket.AF_INET6 else f"{where[0]}:{port}",
            (family, where),
        )
        for family, _, _, _, where in found
    ]


def _answer(where: tuple[socket.AddressFamily, tuple[object, ...]]) -> str:
    """Connect; return the outcome in words."""
    family, address = where
    with contextlib.closing(socket.socket(family)) as plain:
        plain.settimeout(_STEP_S)
        try:
            plain.connect(address)
        except OSError as error:
            return f"does not answer: {error.strerror or error}"
        return _WANTS_TLS if _speaks_tls(plain) else "takes connections"


def _speaks_tls(plain: socket.socket) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Nothing is sent beyond the handshake, so the peer need not be verified.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with context.wrap_socket(plain):
            return True
    except ssl.SSLError as error:
        # An alert shows that the server speaks TLS.
        return "ALERT" in (error.reason or "")
    except OSError:
        return False
