"""The requests of EvaluateMany: from the bytes of a message to those of its result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from gradwire import v1
from gradwire._framing import Parts, read_many_request
from gradwire_server import encoding, wire
from gradwire_server.backends import Backend
from gradwire_server.callers import Context, claim_of_batch
from gradwire_server.calls import Call
from gradwire_server.errors import InvalidDataError
from gradwire_server.recipes import Recipe
from gradwire_server.service import Workshop, take_turn

# Work of all that is computed at once on the event loop: about a millisecond.
_MOST_AT_ONCE = 1 << 21


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """A request under way.

    name  its request_id
    data   the bytes of its input
    """

    name: bytes
    recipe: Recipe
    data: memoryview

    @property
    def inline(self) -> bool:
        """Whether it is computed at once, with those like it; other ones are left to threads."""
        recipe = self.recipe
        if not recipe.inline or recipe.batch is None:
            return False
        return recipe.batch.most * recipe.evaluation.inline_work <= _MOST_AT_ONCE


async def find_recipe(header: bytes, workshop: Workshop, context: Context) -> Recipe:
    """Return the recipe of a request's header, the fields but its request_id and data.

    Raises EvaluationError where the request cannot be evaluated here, NoMessageError where it is
    none.
    """
    recipe = workshop.recipes.get(header)
    if recipe is not None:
        workshop.preparer.note_hit()
        return recipe
    decoded = wire.read_request(encoding.request_header(header))
    workshop.refuse_bulk(decoded, "EvaluateMany")
    return await workshop.recipe(header, decoded, context)


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
    if len(name) > wire.MAX_REQUEST_ID:
        raise InvalidDataError(
            "evaluation.request_id",
            f"{len(name)} bytes; answers are found by it, and carry at most {wire.MAX_REQUEST_ID}",
        )
    return name, header, data


def check_length(recipe: Recipe, data: memoryview) -> None:
    """Raise InvalidDataError where the data is not what the request's header promises."""
    needed = recipe.evaluation.input.wire_bytes
    if len(data) != needed:
        raise InvalidDataError("data", f"{len(data)} bytes; input's descriptor takes {needed}")


def alike(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Group what can be computed at once; the groups are in the order of their first items."""
    groups: dict[Recipe, list[Item]] = {}
    for item in items:
        groups.setdefault(item.recipe, []).append(item)
    for recipe, group in groups.items():
        most = 1 if recipe.batch is None else recipe.batch.most
        for first in range(0, len(group), most):
            yield group[first : first + most]


def compute(items: Sequence[Item], backend: Backend) -> encoding.Bytes:
    """Return the results of such a group, [item, byte]; all of them have a batch."""
    batch = items[0].recipe.batch
    if batch is None:
        raise AssertionError("what takes several steps is left to threads")
    return batch.run([each.data for each in items], backend)


async def compute_in_turn(items: Sequence[Item], workshop: Workshop, call: Call) -> encoding.Bytes:
    """Do the same in a thread when it is their turn, whether there is a batch or not."""
    recipe, backend = items[0].recipe, workshop.backend
    evaluation, at_once = recipe.evaluation, recipe.batch is not None
    claim = claim_of_batch(evaluation, call.context, count=len(items), at_once=at_once)
    with workshop.turns(claim, call) as do:
        if at_once:
            return await do(partial(compute, items, backend))
        # Kernels want numbers aligned, wherever they lie in the message.
        data = np.frombuffer(bytes(items[0].data), np.uint8)
        result = np.empty((1, evaluation.output.wire_bytes), np.uint8)
        steps = recipe.in_memory.run(result[0], data)
        while await do(partial(take_turn, steps)):
            pass
        return result


def _parse(message: bytes) -> Parts:
    """Read a message that protobuf wrote in another way than most."""
    inside = v1.EvaluateManyRequest.EVALUATION_FIELD_NUMBER
    request = encoding.parse(v1.EvaluateManyRequest, message, inside=inside)
    wire.refuse_unknown_fields(request, "")
    if not request.HasField("evaluation"):
        raise InvalidDataError("evaluation", "not set; every message holds one")
    return encoding.parts_of(request.evaluation)
