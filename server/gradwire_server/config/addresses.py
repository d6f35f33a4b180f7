"""Addresses: free-port checks, ports shared by processes, and URLs."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

Place = tuple[socket.AddressFamily, Any]

# Attempts to find a port that is free on every address of a host.
_TRIES = 16


def check_free(address: str) -> None:
    """Raise OSError if a server answers on the address.

    Otherwise grpc would share or replace that server's socket.
    """
    if address.startswith("unix:"):
        path = address.removeprefix("unix:").removeprefix("//")
        places: list[Place] = [(socket.AF_UNIX, path)]
    else:
        host, port = split(address)
        # Port 0 needs no check; grpc reports unknown hosts, with the address.
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
    """Hold HOST:PORT for processes that listen with SO_REUSEPORT.

    Yields the address with its port. Port 0 becomes a free port. The sockets that hold it are bound
    and never listen, so they receive no connections. Raises OSError if the port is in use.
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
    """Bind every address of a host to one port; return the port.

    The first address chooses it if the port is 0.
    """
    missing = OSError(errno.EADDRNOTAVAIL, "there is no such host")
    bound = 0
    for family, place in _places(host, port):
        spot = (place[0], bound or port, *place[2:])
        try:
            if spot[1]:
                # Bind without SO_REUSEPORT first, so as not to share a port of other processes.
                with socket.socket(family) as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(spot)
            holder = sockets.enter_context(socket.socket(family))
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            # Connections in TIME_WAIT of an earlier server do not block the port, and the probe of
            # another supervisor fails as long as this one holds it.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(spot)
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
            # A name may resolve to an IPv6 address on a machine without IPv6.
            missing = error
        else:
            bound = holder.getsockname()[1]
    if not bound:
        raise missing
    return bound


def _places(host: str, port: int) -> list[Place]:
    """Return the socket addresses of a host."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return []
    return [(family, place) for family, _, _, _, place in found]


def is_host_and_port(address: str) -> bool:
    """Return whether a text has the form HOST:PORT."""
    host, _, port = address.rpartition(":")
    return bool(host) and port.isascii() and port.isdecimal() and int(port) < 1 << 16


def is_loopback(address: str) -> bool:
    """Return whether the host of HOST:PORT is loopback."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


def is_http_url(text: str) -> bool:
    """Return whether a text is an HTTP or HTTPS URL."""
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
    except ValueError:  # the port is not a number, or an IPv6 address is incomplete
        return False
