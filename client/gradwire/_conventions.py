"""The names OpenTelemetry has for what is told of an RPC, the same at both ends.

They are those of version 1.37 of the semantic conventions, which most tools read. With "rpc" in
OTEL_SEMCONV_STABILITY_OPT_IN they are those of the release candidate that follows, and with
"rpc/dup" both, as the conventions ask; `rpc.method`, which is in both, is then the older one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from google.rpc import code_pb2

SERVICE = "gradwire.v1.GradientService"
OPT_IN = "OTEL_SEMCONV_STABILITY_OPT_IN"

Attributes = dict[str, str | int]


@dataclass(frozen=True, slots=True)
class Conventions:
    """Which versions are spoken."""

    old: bool
    new: bool

    @classmethod
    def chosen(cls, environment: Mapping[str, str]) -> Conventions:
        """Read the choice from environment variables."""
        words = {word.strip() for word in environment.get(OPT_IN, "").split(",")}
        new = bool({"rpc", "rpc/dup"} & words)
        return cls(old=not new or "rpc/dup" in words, new=new)

    def of_method(self, method: str) -> Attributes:
        """Tell which method is called."""
        attributes: Attributes = {}
        if self.new:
            attributes |= {"rpc.system.name": "grpc", "rpc.method": span_name(method)}
        if self.old:
            attributes |= {"rpc.system": "grpc", "rpc.service": SERVICE, "rpc.method": method}
        return attributes

    def of_status(self, status: str, *, failed: bool) -> Attributes:
        """Tell the status, by the name of its code, and whether it counts as an error."""
        attributes: Attributes = {}
        if self.new:
            attributes["rpc.response.status_code"] = status
        if self.old:
            known = code_pb2.Code.DESCRIPTOR.values_by_name.get(status)
            attributes["rpc.grpc.status_code"] = code_pb2.UNKNOWN if known is None else known.number
        if failed:
            attributes["error.type"] = status
        return attributes


def of_address(kind: str, address: str) -> Attributes:
    """Tell an address: HOST:PORT, or what grpc has for it, under kind.address and kind.port."""
    scheme, _, rest = address.partition(":")
    if scheme == "unix":
        return {f"{kind}.address": rest.removeprefix("//")}
    plain = rest.rpartition("/")[2] if scheme in {"dns", "ipv4", "ipv6"} else address
    host, _, port = plain.replace("%5B", "[").replace("%5D", "]").rpartition(":")
    if not port.isdecimal() or "," in plain:
        return {f"{kind}.address": plain}
    return {f"{kind}.address": host.strip("[]"), f"{kind}.port": int(port)}


def span_name(method: str) -> str:
    """Return the name of the span of a call."""
    return f"{SERVICE}/{method}"
