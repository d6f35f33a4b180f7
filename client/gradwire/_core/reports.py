"""Values that a server reports about itself and about calls.

They are its version, limits and operators, and the time that a call took.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from google.protobuf.message import Message

from gradwire import v1
from gradwire.tensors import DTYPES

# Trailing metadata in the syntax of the header Server-Timing (W3C), milliseconds.
TIMING_KEY = "gradwire-timing"
_PHASE = re.compile(r"\b(receive|queue|compute|send)\s*;[^,]*?\bdur=(\d+(?:\.\d+)?)\s*(?=[;,]|$)")

Info = TypeVar("Info", bound=Any)
Metadata = Iterable[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Where the time of one evaluation went, in seconds.

    total_s    from the call of evaluate() to its result, with all tries and the pauses between
    tries      how often a server was asked, 1 or more; each part of a shared evaluation counts
    receive_s  of the server, in the last try, or the part that came last: reading and checking the
               request
    queue_s    waiting for its memory, threads and tables
    compute_s  computing
    send_s     writing the result; of a single message, as far as it is known before the end

    Phases of a stream overlap: together they may be longer than the call. None means that the
    server did not report it.
    """

    total_s: float
    tries: int
    receive_s: float | None = None
    queue_s: float | None = None
    compute_s: float | None = None
    send_s: float | None = None


def read_timing(trailers: Metadata, *, total_s: float, tries: int) -> Timing:
    """Decode the timing in trailing metadata; malformed parts count as missing."""
    told = next((text for key, text in trailers if key == TIMING_KEY), "")
    parts = _PHASE.findall(told) if isinstance(told, str) else ()
    phases = {f"{name}_s": float(duration) / 1e3 for name, duration in parts}
    return Timing(total_s=total_s, tries=tries, **phases)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits of a server. See the schema's message Limits; 0 if unknown.

    stall_timeout_s  seconds without progress after which a stream is ended
    """

    max_rank: int
    max_elements: int
    max_table_entries: int
    max_float32_axis: int
    max_work: int
    max_unary_bytes: int
    max_chunk_bytes: int
    max_request_memory_bytes: int
    max_memory_bytes: int
    max_streams: int
    max_in_flight: int
    max_message_bytes: int
    stall_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """Facts about a server.

    version           of the server
    numerics_version  of the numerics contract: results of one version have the same bits everywhere
    backend           name of the backend that computes
    backend_reason    why this one was chosen
    backend_to_come   name of the backend that takes over once its kernels are there, or ""
    operators         their names, as operators() returns them
    limits            in force
    shared_memory     whether it shares memory with this client, over a unix socket
    checksums         whether its messages may carry checksums
    """

    version: str
    numerics_version: str
    backend: str
    backend_reason: str
    backend_to_come: str
    operators: tuple[str, ...]
    limits: ServerLimits
    shared_memory: bool
    checksums: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeInfo:
    """An attribute of an operator, as the server has it.

    type            "enum", "bool", "float", "double", "int64" or "int32", an array with "[]" behind
    required        whether it must be given
    default_value   value of an absent attribute; empty for a required one
    allowed_values  those of an enum, as the schema names them
    description     meaning, unit and rule
    """

    name: str
    type: str
    required: bool
    default_value: str
    allowed_values: tuple[str, ...]
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorInfo:
    """An operator, as the server has it.

    name             of its member in the schema's Operator, and of ops.OPERATORS
    summary          one sentence about the computation
    source           the framework's own name and page
    gradient         whether it is a gradient
    counterpart      name of a gradient's forward, of a forward's gradient
    min_rank         fewest axes of its tensors; max_rank: most
    data_types       names of the element types it takes, such as "float32"
    output_required  whether output_shape is always needed, since no attribute determines it
    attributes       in the order of the schema
    """

    name: str
    summary: str
    source: str
    gradient: bool
    counterpart: str
    min_rank: int
    max_rank: int
    data_types: tuple[str, ...]
    output_required: bool
    attributes: tuple[AttributeInfo, ...]


def read_server_info(message: v1.GetServerInfoResponse) -> ServerInfo:
    """Decode the answer to GetServerInfo."""
    limits = message.limits
    stall_timeout_s = limits.stall_timeout.ToNanoseconds() / 1e9
    return _read(
        ServerInfo,
        message,
        operators=tuple(message.operators),
        limits=_read(ServerLimits, limits, stall_timeout_s=stall_timeout_s),
    )


def read_operators(message: v1.ListOperatorsResponse) -> tuple[OperatorInfo, ...]:
    """Decode the answer to ListOperators.

    Operator types unknown to this SDK are left out.
    """
    return tuple(
        _read(
            OperatorInfo,
            each,
            data_types=tuple(str(DTYPES[kind]) for kind in each.data_types if kind in DTYPES),
            attributes=tuple(
                _read(AttributeInfo, one, allowed_values=tuple(one.allowed_values))
                for one in each.attributes
            ),
        )
        for each in message.operators
    )


def _read(kind: type[Info], message: Message, **others: object) -> Info:
    """Copy the fields of a message except `others`."""
    names = [each.name for each in fields(kind) if each.name not in others]
    info: Info = kind(**{name: getattr(message, name) for name in names}, **others)
    return info
