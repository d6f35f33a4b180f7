"""The requests of EvaluateMany: from the bytes of a message to those of its result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from gradwire import v1
from gradwire._framing import Parts, read_many_request
from gradwire_server.backends import Backend
from gradwire_server.engine import Prepared, in_memory, together
from gradwire_server.errors import InvalidDataError
from gradwire_server.rpc import codec, encoding
from gradwire_server.rpc.call_context import Call
from gradwire_server.rpc.callers import Context, claim_of_batch
from gradwire_server.rpc.unary import Workshop, take_turn


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """A request under way.

    name  its request_id
    data   the bytes of its input
    """

    name: bytes
    prepared: Prepared
    data: memoryview


async def find_prepared(header: bytes, workshop: Workshop, context: Context) -> Prepared:
    """Return what is prepared for a request's header, the fields but its request_id and data.

    Raises EvaluationError where the request cannot be evaluated here, NoMessageError where it is
    none.
    """
    prepared = workshop.preparer.find(header)
    if prepared is not None:
        return prepared
    decoded = codec.read_request(encoding.request_header(header))
    workshop.refuse_bulk(decoded, "EvaluateMany")
    return await workshop.prepare(decoded, context, header=header)


def read(message: bytes) -> Parts:
    """Return the request_id, the header and the data of a message.

    Raises InvalidDataError or UnknownFieldError where it holds no request, or one that no answer
    would find.
    """
    name, header, data = read_many_request(message) or _parse(message)
    if not name:
        raise InvalidDataError(
            "evaluation.request_id", "empty; answers are found by it: give each request another one"
        )
    if len(name) > codec.MAX_REQUEST_ID:
        raise InvalidDataError(
            "evaluation.request_id",
            f"{len(name)} bytes; answers are found by it, and carry at most {codec.MAX_REQUEST_ID}",
        )
    return name, header, data


def check_length(prepared: Prepared, data: memoryview) -> None:
    """Raise InvalidDataError where the data is not what the request's header promises."""
    needed = prepared.input.wire_bytes
    if len(data) != needed:
        raise InvalidDataError("data", f"{len(data)} bytes; input's descriptor takes {needed}")


def alike(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Group what can be computed at once; the groups are in the order of their first items."""
    groups: dict[Prepared, list[Item]] = {}
    for item in items:
        groups.setdefault(item.prepared, []).append(item)
    for prepared, group in groups.items():
        most = max(1, prepared.most_at_once)
        for first in range(0, len(group), most):
            yield group[first : first + most]


def compute(items: Sequence[Item], backend: Backend) -> encoding.Bytes:
    """Return the results of such a group, [item, byte]; each item is one step."""
    return together(items[0].prepared, [each.data for each in items], backend)


async def compute_in_turn(items: Sequence[Item], workshop: Workshop, call: Call) -> encoding.Bytes:
    """Do the same in a thread when it is their turn, whether an item is one step or not."""
    prepared, backend = items[0].prepared, workshop.backend
    at_once = prepared.most_at_once > 0
    claim = claim_of_batch(prepared, call.context, count=len(items), at_once=at_once)
    with workshop.turns(claim, call) as do:
        if at_once:
            return await do(partial(compute, items, backend))
        # Kernels want numbers aligned, wherever they lie in the message.
        data = np.frombuffer(bytes(items[0].data), np.uint8)
        result = np.empty((1, prepared.output.wire_bytes), np.uint8)
        steps = in_memory(prepared, result[0], data, backend)
        while await do(partial(take_turn, steps)):
            pass
        return result


def _parse(message: bytes) -> Parts:
    """Read a message that protobuf wrote in another way than most."""
    inside = v1.EvaluateManyRequest.EVALUATION_FIELD_NUMBER
    request = encoding.parse(v1.EvaluateManyRequest, message, inside=inside)
    codec.refuse_unknown_fields(request, "")
    if not request.HasField("evaluation"):
        raise InvalidDataError("evaluation", "not set; every message holds one")
    return encoding.parts_of(request.evaluation)
