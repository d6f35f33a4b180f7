"""What requests share that differ in request_id and data only; what is equal is prepared once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from gradwire_server import encoding, wire
from gradwire_server.backends import Backend
from gradwire_server.engine import Batch, Evaluation, InMemory
from gradwire_server.recent import Recent

# Recipes that are kept, the table entries of all of them, and the bytes of a header.
_RECENT = 256
_RECENT_ENTRIES = 1 << 20
_LONGEST_HEADER = 4096


@dataclass(frozen=True, eq=False)
class Recipe:
    """A request without its request_id and data, ready to run.

    header        of the response
    inline        whether it is computed sooner than handed to a thread
    memory_bytes  that it needs from its first byte to its last
    in_memory     runs it where it is not inline
    """

    evaluation: Evaluation
    header: bytes
    inline: bool
    memory_bytes: int
    in_memory: InMemory

    @classmethod
    def of(cls, evaluation: Evaluation, backend: Backend, *, inline_work: int) -> Recipe:
        """Make the recipe of an evaluation; so much work, or less, is done inline."""
        output = wire.write_descriptor(evaluation.output)
        return cls(
            evaluation,
            encoding.response_header(output),
            evaluation.inline_work <= inline_work,
            memory_bytes(evaluation),
            InMemory(evaluation, backend),
        )

    @cached_property
    def batch(self) -> Batch | None:
        """The way to compute several at once; None where one takes several steps."""
        return Batch.of(self.evaluation)


class Recipes:
    """Finds a recipe by the bytes of the request's header. Thread-safe.

    Equal bytes mean equal requests, and what is kept was found in order.
    """

    def __init__(self) -> None:
        self._recent: Recent[Recipe] = Recent(most=_RECENT, max_weight=_RECENT_ENTRIES)

    def get(self, header: bytes) -> Recipe | None:
        """Return what was kept for a header; None where nothing was."""
        return self._recent.get(header)

    def keep(self, header: bytes, recipe: Recipe) -> None:
        """Keep a recipe, unless it or its header is too large."""
        if len(header) <= _LONGEST_HEADER:
            self._recent.keep(header, recipe, weight=recipe.evaluation.plan.table_entries)


def memory_bytes(evaluation: Evaluation) -> int:
    """Return the bytes of memory an evaluation needs whose tensors come and go in one message.

    They are there more than once: as grpc has them, as its message, and the result before that.
    """
    return (
        evaluation.memory_bytes + 2 * evaluation.input.wire_bytes + 3 * evaluation.output.wire_bytes
    )
