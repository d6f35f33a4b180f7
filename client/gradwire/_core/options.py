"""Arguments of a client, checked: addresses, limits, token and checksums."""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

from gradwire._core.retries import RetryBudget, RetryPolicy, Tries
from gradwire._wire import checksums
from gradwire._wire.environment import (
    CHECKSUMS_VARIABLE,
    TARGET_VARIABLE,
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
)
from gradwire._wire.files import Reloaded
from gradwire._wire.requests import LEAST_CHUNK_BYTES, check_timeout
from gradwire.errors import GradwireError, InvalidRequestError

STREAM_THRESHOLD_BYTES = 256 << 10
CHUNK_BYTES = 2 << 20

# Below the largest message of a channel.
_MAX_CHUNK_BYTES = 32 << 20
# Far more than useful: each connection is a socket at both ends.
_MAX_CONNECTIONS = 1000

# Default address of a server.
DEFAULT = "127.0.0.1:50051"

# Targets that may contain commas.
_WHOLE = ("ipv4:", "ipv6:", "unix")
# Schemes of gRPC whose targets have no host and port.
_OPAQUE = ("unix", "unix-abstract", "vsock", "xds", "google-c2p")
# Schemes of numeric addresses, and their versions of IP.
_NUMERIC = {"ipv4": 4, "ipv6": 6}
# A list of replicas; see gradwire._transport.replicas.
_LIST = re.compile(r"replicas\+https?://([^/?#@]+)(/[^?#]*)?")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# Parts of a host's name between dots have at most 63 characters (RFC 1035).
_LABEL = r"[^\[\]:\s/.\0-\x1f]{1,63}"
_HOST_PORT = re.compile(
    rf"(?P<host>\[[^\[\]\s/\0-\x1f]+\]|{_LABEL}(?:\.{_LABEL})*\.?):(?P<port>[0-9]+)", re.ASCII
)
_MAX_PORT = 65535

Sent = tuple[tuple[str, str], ...]
Bearer = Callable[[], Sent]

_log = logging.getLogger("gradwire")
# Values of GRADWIRE_CHECKSUMS.
_WORDS = {"1": True, "true": True, "0": False, "false": False}


def read_bearer(
    token: str | None, token_file: str | None, *, target: Sequence[str], secure: bool
) -> Bearer | None:
    """Return a function that gives the token as metadata.

    Returns None without a token. The function reads a changed file again. Without arguments
    GRADWIRE_TOKEN has the token, or GRADWIRE_TOKEN_FILE names its file. The token occurs in no
    argument of a program, repr, error or log.

    Raises InvalidRequestError for a malformed token, an unreadable file, and a token that would
    travel to another machine in plain text.
    """
    if token is not None and token_file is not None:
        raise InvalidRequestError.of("token", "is given, and token_file is too; give one of them")
    names = "token", "token_file"
    if token is None and token_file is None:
        names = TOKEN_VARIABLE, TOKEN_FILE_VARIABLE
        token, token_file = (os.environ.get(each) or None for each in names)
        if token is None and token_file is None:
            return None
    name = names[token is None]
    for address in target:
        if not (secure or is_local(address)):
            raise InvalidRequestError.of(
                name,
                f"a token would go to {address} in plain text, where others can read it; give "
                "credentials for TLS (--tls-ca), or no token",
            )
        if address.startswith("replicas+http:") and not is_local(urlsplit(address).netloc):
            raise InvalidRequestError.of(
                name,
                f"a token would go wherever {address} says, in plain text that others can change; "
                "give replicas+https, or no token",
            )
    if token is None:
        return _of_file(token_file or "", name).get
    sent = _sent(token, name)
    return lambda: sent


def _of_file(path: str, name: str) -> Reloaded[Sent]:
    try:
        return Reloaded(
            (path,),
            lambda contents: _sent(contents[0].decode("ascii", "replace").strip(), name, path),
            on_error=partial(_log.warning, "the token of before is kept: %s"),
        )
    except OSError as error:
        raise InvalidRequestError.of(name, f"{path} cannot be read: {error.strerror}") from error


def _sent(token: object, name: str, path: str = "") -> Sent:
    if not (
        isinstance(token, str)
        and token.isascii()
        and token.isprintable()
        and token.split() == [token]
    ):
        raise InvalidRequestError.of(
            name,
            f"{path}{' ' if path else ''}holds no token: one is a word of printable characters, "
            "which is not shown here",
        )
    return (("authorization", f"Bearer {token}"),)


@dataclass(slots=True, kw_only=True, eq=False)
class Options:
    """Checked arguments of a client, and facts that its calls learn.

    bearer           gives the metadata of the token, if any
    one_server       whether each call goes to the same server, as far as known
    budget           of retries
    sends_checksums  whether messages carry checksums. Read before each message, which keeps to it
    """

    target: Sequence[str]
    credentials: Any
    connections: int
    timeout_s: float
    stream_threshold_bytes: int
    chunk_bytes: int
    retry: RetryPolicy
    split: bool
    split_threshold_bytes: int
    token: str | None = field(repr=False)
    token_file: str | None
    connect_timeout_s: float | None
    shared_memory: bool
    checksums: bool | None
    bearer: Bearer | None = field(init=False, repr=False)
    one_server: bool = field(init=False)
    budget: RetryBudget = field(init=False, repr=False, default_factory=RetryBudget)
    sends_checksums: bool = field(init=False)

    def __post_init__(self) -> None:
        for name, least, most in (
            ("connections", 1, _MAX_CONNECTIONS),
            ("stream_threshold_bytes", 0, sys.maxsize),
            ("split_threshold_bytes", 0, sys.maxsize),
            ("chunk_bytes", LEAST_CHUNK_BYTES, _MAX_CHUNK_BYTES),
        ):
            value = getattr(self, name)
            if not (isinstance(value, int) and least <= value <= most):
                raise ValueError(f"{name} is {value!r}; give an integer from {least} to {most}")
        for name, kind, wanted in (
            ("retry", RetryPolicy, "a RetryPolicy"),
            ("split", bool, "True or False"),
            ("shared_memory", bool, "True or False"),
            ("checksums", bool | None, "True, False or None"),
        ):
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise TypeError(f"{name} is {value!r}; give {wanted}")
        check_timeout(self.timeout_s, or_none=False)
        check_timeout(self.connect_timeout_s, "connect_timeout_s")
        secure = self.credentials is not None
        self.bearer = read_bearer(self.token, self.token_file, target=self.target, secure=secure)
        self.one_server = len(self.target) == 1 and not is_list(self.target[0])
        self.sends_checksums = self._wants_checksums()
        if self.sends_checksums and not checksums.AVAILABLE:
            self._leave_out_checksums("google-crc32c is not installed with its compiled code")

    def _wants_checksums(self) -> bool:
        """Whether plain text leaves the machine, unless told otherwise.

        TLS has checksums of its own, and memory of one machine is trusted.
        """
        if self.checksums is not None:
            return self.checksums
        word = os.environ.get(CHECKSUMS_VARIABLE, "").strip().lower()
        if word and word not in _WORDS:
            raise InvalidRequestError.of(CHECKSUMS_VARIABLE, f"is {word!r}; give 1 or 0")
        # A list of replicas may tell any address.
        leaves = self.credentials is None and not all(map(is_local, self.target))
        return _WORDS.get(word, leaves)

    def _leave_out_checksums(self, why: str) -> None:
        self.sends_checksums = False
        _log.warning("no checksums: %s", why)

    def refused_checksum(self, error: GradwireError) -> bool:
        """Whether a server refused a checksum; later messages then carry none.

        Where one server of several knows none, all go without.
        """
        number = error.metadata.get("field_number")
        if not error.checked or error.reason != "UNKNOWN_FIELD" or number != str(checksums.FIELD):
            return False
        if self.sends_checksums:
            self._leave_out_checksums("a server does not know them")
        return True

    def tries(self) -> Tries:
        """Return the retry state of a new call."""
        return Tries(self.retry, self.budget, self.one_server, self.connect_timeout_s)

    def as_arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments, to copy the client to another process."""
        if self.credentials is not None:
            raise TypeError(
                "a client with credentials cannot be pickled, since grpc's credentials cannot; "
                "make the client where it is used"
            )
        return {each.name: getattr(self, each.name) for each in fields(self) if each.init}


def read_target(target: object) -> tuple[str, ...]:
    """Return the addresses of `target`: comma-separated text, or a sequence of texts.

    None means the environment variable GRADWIRE_TARGET, or else DEFAULT.

    Raises InvalidRequestError for a malformed address: gRPC would wrap a port beyond 65535, dial
    443 without one, and look up "http" as a host.
    """
    name = TARGET_VARIABLE if target is None else "target"
    if target is None:
        target = os.environ.get(TARGET_VARIABLE) or DEFAULT
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
    for address in addresses:
        if fault := _fault(address, alone=len(addresses) == 1):
            among = "" if address == target else f" of {target!r}"
            raise InvalidRequestError(f"{name} is {address!r}{among}; {fault}", field="target")
    return addresses


def host_ports(address: str) -> list[str]:
    """Return each HOST:PORT in an address; none for a scheme without them."""
    scheme, _, rest = address.partition(":")
    if scheme in _OPAQUE or address.startswith("replicas+"):
        return []
    if scheme in _NUMERIC:
        return rest.split(",")
    if scheme == "dns":
        return [rest.rpartition("/")[2] if rest.startswith("//") else rest]
    return [address]


def _fault(address: str, *, alone: bool) -> str | None:
    """Return the remedy for a malformed address; None for a valid one."""
    scheme, _, rest = address.partition(":")
    if scheme in _OPAQUE:
        return None if rest.strip("/") else f"give {scheme}:NAME"
    if address.startswith("replicas+"):
        wanted = "replicas+http://HOST:PORT/NAME or replicas+https://HOST:PORT/NAME"
        valid = alone and is_list(address)
        return None if valid else f"a list of replicas stands alone, as {wanted}"
    if scheme != "dns" and _URL.match(address):
        return "give HOST:PORT without a scheme, or dns:///HOST:PORT"
    places, version = host_ports(address), _NUMERIC.get(scheme)
    if not all(map(is_host_port, places)):
        return f"give HOST:PORT with a port from 1 to {_MAX_PORT}, such as {DEFAULT} or [::1]:50051"
    if version is not None and any(ip_version(each) != version for each in places):
        return f"give addresses of IPv{version} there, or a name without scheme"
    return None


def is_host_port(text: str) -> bool:
    """Whether a text is HOST:PORT with a valid port.

    An IPv6 address stands in brackets.
    """
    found = _HOST_PORT.fullmatch(text)
    if found is None or not 1 <= int(found["port"]) <= _MAX_PORT:
        return False
    return not text.startswith("[") or ip_version(text) == 6  # noqa: PLR2004 - IPv6


def is_list(address: str) -> bool:
    """Whether an address is the URL of a replica list."""
    found = _LIST.fullmatch(address)
    return found is not None and is_host_port(found[1])


def channel_targets(addresses: Sequence[str], *, secure: bool) -> tuple[str, ...]:
    """Return the targets of channels that together reach all addresses.

    Several numeric addresses of one IP version share a channel: grpc rotates among connected ones,
    so an address that does not answer delays no call. Names and servers with TLS cannot be joined:
    a channel expects one name of all its servers.
    """
    versions = {ip_version(address) for address in addresses}
    if len(addresses) < 2 or secure or len(versions) > 1 or None in versions:  # noqa: PLR2004
        return tuple(addresses)
    return (f"ipv{versions.pop()}:{','.join(addresses)}",)


def goes_round(target: str) -> bool:
    """Whether calls to a target may reach several servers in rotation."""
    return ip_version(target) is None and not target.startswith("unix")


def is_local(address: str) -> bool:
    """Whether an address is on this machine and unreachable from others."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    hosts = list(map(_host, host_ports(address)))
    return bool(hosts) and all(
        host == "localhost" if number is None else number.is_loopback for host, number in hosts
    )


def ip_version(address: str) -> int | None:
    """Return the IP version of a numeric HOST:PORT, else None."""
    _, number = _host(address)
    return None if number is None else number.version


def _host(place: str) -> tuple[str, ipaddress.IPv4Address | ipaddress.IPv6Address | None]:
    """Return the host of HOST:PORT, and its address if it is numeric."""
    found = _HOST_PORT.fullmatch(place)
    host = (found["host"] if found else place).strip("[]")
    try:
        return host, ipaddress.ip_address(host)
    except ValueError:
        return host, None
