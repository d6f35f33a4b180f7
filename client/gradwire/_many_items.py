"""The items of evaluate_many, and the answers to them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from gradwire import ops, v1
from gradwire._statuses import from_in_band
from gradwire._templates import Template
from gradwire.errors import GradwireError, InvalidRequestError, ServerError
from gradwire.retries import Tries

# Seconds that taking items may hold up results that could be handed over.
QUICK_S = 0.05


class Item(NamedTuple):
    """One evaluation among many; what each field means says `Client.evaluate`.

    A plain tuple of two to four of them does as well.
    """

    op: ops.Operator
    array: object
    output_shape: Sequence[int] | None = None
    out: NDArray[Any] | None = None


def as_item(given: Any) -> Item:
    """Return what was given as an item; raise TypeError where it is none."""
    if isinstance(given, Item):
        return given
    came = f"a {type(given).__name__}"
    if tuple in type(given).__mro__:
        with contextlib.suppress(TypeError):
            return Item(*given)
        came += f" of {len(given)}"
    raise TypeError(f"an item is {came}; give gradwire.Item(op, array), or a tuple of its fields")


def check_max_in_flight(count: object) -> int:
    """Return how many items may be taken ahead; raise InvalidRequestError where it is no count."""
    if type(count) is not int or count < 1:
        raise InvalidRequestError.of("max_in_flight", f"is {count!r}; give an integer, at least 1")
    return count


@dataclass(slots=True, eq=False)
class ItemSlot:
    """One item and what becomes of it.

    index     its place in the iterable
    name      of its request
    template  of its evaluation
    out       where the result is stored; None where an array is made for it
    frame     the request; empty where it does not go by the common stream
    alone     the item where it goes by a call of its own
    settled   whether there is an outcome: an error, else the result
    """

    index: int
    name: bytes
    template: Template | None = None
    out: NDArray[Any] | None = None
    frame: bytes = b""
    alone: Item | None = None
    settled: bool = False
    result: NDArray[Any] | None = None
    error: BaseException | None = None
    tries: Tries | None = None

    @property
    def item(self) -> Item:
        """The item of a slot that goes alone."""
        if self.alone is None:
            raise AssertionError("it goes by the common stream")
        return self.alone


def parse_answer(message: bytes) -> tuple[bytes, tuple[bytes, memoryview] | GradwireError]:
    """Read an answer of any kind: its name, and header and data of the result, or the error.

    The name is empty where the error ends the stream. Raises ServerError where it is none of them.
    """
    try:
        response = v1.EvaluateManyResponse.FromString(message)
    except DecodeError as error:
        raise ServerError(f"the server sent {len(message)} bytes that are no message") from error
    name = response.request_id
    match response.WhichOneof("outcome"):
        case "result":
            header = v1.EvaluateResponse(output=response.result.output)
            data = memoryview(response.result.data)
            return name.encode(), (header.SerializeToString(), data)
        case "error":
            return name.encode(), from_in_band(response.error, request_id=name or None)
        case None:
            raise ServerError(f"the server answered {name or 'nothing'} with nothing")


async def each(items: Iterable[object] | AsyncIterable[object]) -> AsyncIterator[object]:
    """Yield what is given one after the other, awaited or not."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
