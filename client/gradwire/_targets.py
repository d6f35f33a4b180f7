"""Which servers a client calls, from what it was given."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from typing import cast
from urllib.parse import urlsplit

VARIABLE = "GRADWIRE_TARGET"
# Where a server listens that was told nothing else.
DEFAULT = "127.0.0.1:50051"

# A comma in such a target is its own.
_WHOLE = ("ipv4:", "ipv6:", "unix")
# Of a target that names a list of replicas; _resolver.py has the rest of its URL.
_LISTS = ("replicas+http", "replicas+https")


def read_target(target: object) -> tuple[str, ...]:
    """Return the addresses of `target`: text, with commas between several, or a sequence of texts.

    None means what the environment variable GRADWIRE_TARGET says, or else DEFAULT.

    Raises ValueError where that is no address, or a part is none.
    """
    given = target
    if target is None:
        target = os.environ.get(VARIABLE) or DEFAULT
    if isinstance(target, str):
        parts: Sequence[object] = [target] if target.startswith(_WHOLE) else target.split(",")
    else:
        parts = cast("Sequence[object]", target) if isinstance(target, Sequence) else [target]
    addresses = tuple(part.strip() for part in parts if isinstance(part, str))
    if len(addresses) != len(parts) or not addresses or not all(addresses):
        name = VARIABLE if given is None else "target"
        raise ValueError(
            f'{name} is {target!r}; give a server\'s address, such as "127.0.0.1:50051", or several'
        )
    lists = [address for address in addresses if address.startswith("replicas+")]
    if lists and (len(addresses) > 1 or not is_list(lists[0])):
        raise ValueError(
            f"target is {target!r}; a list of replicas stands alone, as "
            "replicas+http://HOST:PORT/NAME or replicas+https://HOST:PORT/NAME"
        )
    return addresses


def is_list(address: str) -> bool:
    """Whether an address is where a list of replicas is told, instead of a server's."""
    scheme, separator, _ = address.partition("://")
    try:
        url = urlsplit(address)
        told = bool(url.hostname) and url.port is not None and not (url.query or url.fragment)
    except ValueError:
        return False
    return bool(separator) and scheme in _LISTS and told and "@" not in url.netloc


def is_open_list(address: str) -> bool:
    """Whether an address is a list that comes in plain text from another machine."""
    return address.startswith("replicas+http:") and not is_local(urlsplit(address).netloc)


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
