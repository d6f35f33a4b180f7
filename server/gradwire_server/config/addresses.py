"""Addresses: whether one is free to listen on, how several processes hold a port, and URLs."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

Place = tuple[socket.AddressFamily, Any]

# How often a free port is looked for that is free on every address of a host.
_TRIES = 16


def check_free(address: str) -> None:
    """Refuse an address where a server answers: grpc would take over a part of it, or all."""
    if address.startswith("unix:"):
        path = address.removeprefix("unix:").removeprefix("//")
        places: list[Place] = [(socket.AF_UNIX, path)]
    else:
        host, port = split(address)
        # A port of our choice is free; of a host that is not there grpc tells, with the address.
        places = _places(host, port) if port else []
    for family, place in places:
        with socket.socket(family) as probe:
            probe.settimeout(1.0)
            if probe.connect_ex(place) == 0:
                raise OSError(f"address {address} is taken: a server answers there")


def split(address: str) -> tuple[str, int]:
    """Return the host and the port of HOST:PORT."""
    host, _, port = address.rpartition(":")
    return host, int(port)


@contextmanager
def held(address: str) -> Generator[str]:
    """Hold HOST:PORT for processes that listen on it with SO_REUSEPORT; yield it with the port.

    Port 0 becomes a free one. The sockets that hold it are bound and never listen, so that no
    connection comes to them. Raises OSError where anything else has the port.
    """
    check_free(address)
    host, port = split(address)
    for _ in range(_TRIES):
        with ExitStack() as sockets:
            try:
                taken = _hold(host, port, sockets)
            except OSError as error:
                if error.errno == errno.EADDRINUSE and not port:
                    continue
                raise OSError(f"address {address} cannot be had: {error.strerror}") from error
            yield f"{host}:{taken}"
            return
    raise OSError(f"address {address}: no port is free on every address of {host}")


def _hold(host: str, port: int, sockets: ExitStack) -> int:
    """Bind every address of a host to one port, chosen by the first for port 0; return the port."""
    places = _places(host, port)
    if not places:
        raise OSError(errno.EADDRNOTAVAIL, "there is no such host")
    missing: OSError | None = None
    bound = 0
    for family, place in places:
        spot = (place[0], bound or port, *place[2:])
        try:
            if spot[1]:
                # A port that others share would be shared with them too: first without sharing.
                with socket.socket(family) as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(spot)
            holder = sockets.enter_context(socket.socket(family))
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            # Connections of an earlier server in TIME_WAIT do not keep the port, and the probe of
            # another supervisor fails as long as this one holds it.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(spot)
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
            # A name may have an IPv6 address where the machine has none.
            missing = error
        else:
            bound = holder.getsockname()[1]
    if missing is not None and not bound:
        raise missing
    return bound


def _places(host: str, port: int) -> list[Place]:
    """Return the socket addresses a host stands for."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return []
    return [(family, place) for family, _, _, _, place in found]


def is_host_and_port(address: str) -> bool:
    """Tell whether a text is of the form HOST:PORT."""
    host, _, port = address.rpartition(":")
    return bool(host) and port.isascii() and port.isdecimal() and int(port) < 1 << 16


def is_loopback(address: str) -> bool:
    """Tell whether the host of HOST:PORT is this machine's own, which no other one reaches."""
    host = address.rpartition(":")[0].strip("[]")
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def is_http_url(text: str) -> bool:
    """Tell whether a text is the URL of a server that speaks HTTP."""
    try:
        url = urlsplit(text)
        return (
            url.scheme in {"http", "https"}
            and bool(url.hostname)
            and url.port != 0
            and text.isascii()
            and text.isprintable()
            and " " not in text
        )
    except ValueError:  # of a port that is no number, or of half an IPv6 address
        return False
