"""OpenTelemetry's attribute names of an RPC, for client and server.

The default is version 1.37 of the semantic conventions, which most tools read. "rpc" in
OTEL_SEMCONV_STABILITY_OPT_IN selects the release candidate after it, and "rpc/dup" both, as the
conventions ask; with both, `rpc.method` has its older meaning.
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
    """Selected versions of the conventions."""

    old: bool
    new: bool

    @classmethod
    def chosen(cls, environment: Mapping[str, str]) -> Conventions:
        """Read the choice from environment variables."""
        words = {word.strip() for word in environment.get(OPT_IN, "").split(",")}
        new = bool({"rpc", "rpc/dup"} & words)
        return cls(old=not new or "rpc/dup" in words, new=new)

    def of_method(self, method: str) -> Attributes:
        """Return the attributes of a method."""
        attributes: Attributes = {}
        if self.new:
            attributes |= {"rpc.system.name": "grpc", "rpc.method": span_name(method)}
        if self.old:
            attributes |= {"rpc.system": "grpc", "rpc.service": SERVICE, "rpc.method": method}
        return attributes

    def of_status(self, status: str, *, failed: bool) -> Attributes:
        """Return the attributes of a status code's name.

        failed  whether it counts as an error
        """
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
    """Return kind.address and kind.port of HOST:PORT or of a gRPC target."""
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
