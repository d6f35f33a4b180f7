"""Clients by number and operators as text, for the bridges to frameworks.

Both go through a framework's compiler as constants of a graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

from gradwire import ops, tensors, v1
from gradwire._wire.requests import Item
from gradwire.errors import InvalidRequestError, counted
from gradwire.tensors import Array, Shape, Sizes


class Evaluator(Protocol):
    """A Client, a LocalClient, or another object that evaluates operators."""

    def evaluate(
        self,
        operator: ops.Operator,
        array: object,
        /,
        *,
        output_shape: Sizes,
        out: Array | None = None,
    ) -> Array:
        """Return the operator applied to an array, stored in out if given."""
        ...

    def evaluate_many(self, items: Iterable[Item], /) -> Iterator[Array]:
        """Return the result of each item, in their order."""
        ...


class Clients:
    """Clients by number, held weakly.

    Only the default client is kept alive.
    """

    def __init__(self) -> None:
        self._by_number = WeakValueDictionary[int, Evaluator]()
        self._numbers = WeakKeyDictionary[Evaluator, int]()
        self._next = itertools.count()
        self._default: dict[str, Evaluator] = {}

    def number(self, client: Evaluator | None, make_default: Callable[[], Evaluator]) -> int:
        """Return the client's number; None means the default client of this process.

        make_default  makes the default client when it is first used
        """
        if client is None:
            # Of two threads that make one, both use the same.
            client = self._default.get("") or self._default.setdefault("", make_default())
        number = self._numbers.setdefault(client, next(self._next))
        self._by_number[number] = client
        return number

    def by_number(self, number: int) -> Evaluator:
        """Return the client; raise RuntimeError if it is gone."""
        client = self._by_number.get(number)
        if client is None:
            raise RuntimeError(
                "the client of this operation is gone; keep a reference to it as long as gradients "
                "may be asked for"
            )
        return client


CLIENTS = Clients()


def as_text(operator: ops.Operator) -> str:
    """Return an operator as text that preserves the sign of zeros."""
    return ops.to_message(operator).SerializeToString(deterministic=True).hex()


@lru_cache(1024)
def from_text(text: str) -> ops.Operator:
    """Return the operator that a text describes."""
    return ops.from_message(v1.Operator.FromString(bytes.fromhex(text)))


@lru_cache(1024)
def linear(text: str) -> str:
    """Return the text of an operator without its constant term."""
    return as_text(from_text(text).linear())


@lru_cache(1024)
def operator_for(text: str, output_shape: Shape) -> ops.Operator:
    """Return the operator of a text, with its output's sizes.

    A gradient needs no sizes, but its forward may: they come from the requested shape.
    """
    return from_text(text).for_output(output_shape)


def check_shapes(operator: ops.Operator, input_shape: Sizes, output_shape: Sizes) -> None:
    """Raise InvalidRequestError for shapes that the operator cannot have."""
    kind = type(operator)
    for name, shape in (("input", input_shape), ("output", output_shape)):
        tensors.check_sizes(name, shape)
        if not kind.min_rank <= len(shape) <= kind.max_rank:
            raise InvalidRequestError.of(
                f"{name}.sizes",
                f"has {counted(len(shape), 'axis')}; {operator.name} takes {kind.ranks()}",
            )
    if len(input_shape) != len(output_shape):
        raise InvalidRequestError.of(
            "output.sizes",
            f"has {counted(len(output_shape), 'axis')}, input.sizes has {len(input_shape)}; "
            f"{operator.name} keeps the number of axes",
        )
