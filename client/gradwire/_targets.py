"""Which servers a client calls, from what it was given."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from typing import cast
from urllib.parse import urlsplit

from gradwire.errors import InvalidRequestError

VARIABLE = "GRADWIRE_TARGET"
# Where a server listens that was told nothing else.
DEFAULT = "127.0.0.1:50051"

# A comma in such a target is its own.
_WHOLE = ("ipv4:", "ipv6:", "unix")
# Of a target that names a list of replicas; _resolver.py has the rest of its URL.
_LISTS = ("replicas+http", "replicas+https")
# Schemes of gRPC whose targets name no host and port.
_OPAQUE = ("unix", "unix-abstract", "vsock", "xds", "google-c2p")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HOST_PORT = re.compile(r"(?P<host>\[[^\[\]\s/]+\]|[^\[\]:\s/]+):(?P<port>[0-9]+)", re.ASCII)
_MAX_PORT = 65535


def read_target(target: object) -> tuple[str, ...]:
    """Return the addresses of `target`: text, with commas between several, or a sequence of texts.

    None means what the environment variable GRADWIRE_TARGET says, or else DEFAULT.

    Raises InvalidRequestError where that is no address, or a part is none: gRPC would take a port
    beyond 65535 for another one, dial 443 without one, and look up "http" as a host.
    """
    name = VARIABLE if target is None else "target"
    if target is None:
        target = os.environ.get(VARIABLE) or DEFAULT
    if isinstance(target, str):
        parts: Sequence[object] = [target] if target.startswith(_WHOLE) else target.split(",")
    else:
        parts = cast("Sequence[object]", target) if isinstance(target, Sequence) else [target]
    addresses = tuple(part.strip() for part in parts if isinstance(part, str))
    if len(addresses) != len(parts) or not addresses or not all(addresses):
        raise InvalidRequestError(
            f"{name} is {target!r}; "
            'give a server\'s address, such as "127.0.0.1:50051", or several',
            field="target",
        )
    lists = [address for address in addresses if address.startswith("replicas+")]
    if lists and (len(addresses) > 1 or not is_list(lists[0])):
        raise InvalidRequestError(
            f"{name} is {target!r}; a list of replicas stands alone, as "
            "replicas+http://HOST:PORT/NAME or replicas+https://HOST:PORT/NAME",
            field="target",
        )
    for address in () if lists else addresses:
        if (fault := _fault(address)) is not None:
            among = "" if address == target else f" of {target!r}"
            raise InvalidRequestError(f"{name} is {address!r}{among}; {fault}", field="target")
    return addresses


def is_host_port(text: str) -> bool:
    """Whether a text is HOST:PORT, with an IPv6 address in brackets and a port that exists."""
    return _host_port_fault(text) is None


def _fault(address: str) -> str | None:
    """Say what would do instead of an address that is none; None where it is one."""
    scheme, _, rest = address.partition(":")
    if scheme in _OPAQUE:
        return None if rest.strip("/") else f"give {scheme}:NAME"
    if scheme in {"ipv4", "ipv6"}:
        version = int(scheme[-1])
        faults = (_host_port_fault(each) for each in rest.split(","))
        if fault := next(filter(None, faults), None):
            return fault
        known = all(_version(each) == version for each in rest.split(","))
        return None if known else f"give addresses of IPv{version} there, or a name without scheme"
    if scheme == "dns":
        return _host_port_fault(rest.rpartition("/")[2] if rest.startswith("//") else rest)
    if _URL.match(address):
        return "give HOST:PORT without a scheme, or dns:///HOST:PORT"
    return _host_port_fault(address)


def _host_port_fault(text: str) -> str | None:
    found = _HOST_PORT.fullmatch(text)
    if found is None:
        bare = text.strip("[]")
        host = f"[{bare}]" if _version(f"{bare}:1") == 6 else "HOST"  # noqa: PLR2004 - IPv6
        return f'give {host}:PORT, such as "127.0.0.1:50051" or "[::1]:50051"'
    if not 1 <= int(found["port"]) <= _MAX_PORT:
        return f"give a port from 1 to {_MAX_PORT}"
    if found["host"].startswith("[") and _version(text) != 6:  # noqa: PLR2004 - IPv6
        return "give an address of IPv6 in brackets, or a name without"
    return None


def is_list(address: str) -> bool:
    """Whether an address is where a list of replicas is told, instead of a server's."""
    scheme, separator, _ = address.partition("://")
    try:
        url = urlsplit(address)
        told = bool(url.hostname) and bool(url.port) and not (url.query or url.fragment)
    except ValueError:
        return False
    return bool(separator) and scheme in _LISTS and told and "@" not in url.netloc


def is_open_list(address: str) -> bool:
    """Whether an address is a list that comes in plain text from another machine."""
    return address.startswith("replicas+http:") and not is_local(urlsplit(address).netloc)


def host_and_port(address: str) -> tuple[str, int] | None:
    """Return what to look up for an address of one host; None where it is none."""
    text = address.rpartition("/")[2].removeprefix("dns:")
    found = None if address.startswith((*_OPAQUE, "replicas+")) else _HOST_PORT.fullmatch(text)
    return None if found is None else (found["host"].strip("[]"), int(found["port"]))


def channel_targets(addresses: Sequence[str], *, secure: bool) -> tuple[str, ...]:
    """Return the targets of as many channels as it takes to reach all addresses.

    Several numeric addresses of one family make one channel, in which grpc goes round them. Names
    cannot be joined so, and neither can servers that prove who they are: a channel expects one
    name of all its servers.
    """
    if len(addresses) > 1 and not secure:
        for scheme, version in (("ipv4", 4), ("ipv6", 6)):
            if all(_version(address) == version for address in addresses):
                return (f"{scheme}:{','.join(addresses)}",)
    return tuple(addresses)


def goes_round(target: str) -> bool:
    """Whether a channel's target may stand for several servers, which take turns."""
    return _version(target) is None and not target.startswith("unix")


def is_local(address: str) -> bool:
    """Whether an address is on this machine, so that what goes there is read by no other."""
    scheme, _, rest = address.partition(":")
    if scheme in {"unix", "unix-abstract"}:
        return True
    if scheme in {"ipv4", "ipv6"}:
        return all(_is_loopback(each) for each in rest.split(","))
    return _is_loopback(address.rpartition("/")[2] if scheme == "dns" else address)


def _is_loopback(address: str) -> bool:
    """Whether HOST:PORT, or a HOST without, is this machine."""
    host = address if address.count(":") > 1 and "[" not in address else address.partition(":")[0]
    if "[" in address:
        host = address.partition("[")[2].partition("]")[0]
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _version(address: str) -> int | None:
    """Return the IP version of a numeric HOST:PORT, else None."""
    host = address.rpartition(":")[0]
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).version
    except ValueError:
        return None
