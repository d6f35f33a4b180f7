"""OpenTelemetry's attributes of an RPC, for client and server.

Spans have the names of two versions of the semantic conventions: those of 1.37, which most tools
read, and `rpc.system.name` and `rpc.response.status_code` of the release after it. `rpc.method` has
the older meaning.
"""

from __future__ import annotations

from google.rpc import code_pb2

SERVICE = "gradwire.v1.GradientService"

Attributes = dict[str, str | int]


def of_method(method: str) -> Attributes:
    """Return the attributes of a method."""
    system = dict.fromkeys(("rpc.system", "rpc.system.name"), "grpc")
    return {**system, "rpc.service": SERVICE, "rpc.method": method}


def of_status(status: str, *, failed: bool) -> Attributes:
    """Return the attributes of a status code's name.

    failed  whether it counts as an error
    """
    known = code_pb2.Code.DESCRIPTOR.values_by_name.get(status)
    number = code_pb2.UNKNOWN if known is None else known.number
    error = {"error.type": status} if failed else {}
    return {"rpc.response.status_code": status, "rpc.grpc.status_code": number, **error}


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
