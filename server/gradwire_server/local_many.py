"""evaluate_many of LocalClient: one evaluation after the other, as results are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, cast, overload

from numpy.typing import NDArray

from gradwire import Item
from gradwire._many_items import as_item, check_max_in_flight

T_co = TypeVar("T_co", covariant=True)


class LocalResults(Iterator[T_co]):
    """What `LocalClient.evaluate_many` returns: as gradwire.Results, without anything under way.

    index  place of the item whose result or error came last; -1 before the first
    """

    def __init__(
        self, items: Iterable[object], evaluate: Callable[[Item], NDArray[Any]], *, ordered: bool
    ) -> None:
        self.index = -1
        self._items = iter(items)
        self._evaluate = evaluate
        self._ordered = ordered

    def __next__(self) -> T_co:
        item = next(self._items)
        self.index += 1
        try:
            array = self._evaluate(as_item(item))
        except Exception as error:
            error.add_note(f"item {self.index} of evaluate_many")
            raise
        result: Any = array if self._ordered else (self.index, array)
        return cast("T_co", result)

    def close(self) -> None:
        """Take no more items; next() raises StopIteration.

        A generator that makes the items is the caller's to close.
        """
        self._items = iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class EvaluatesMany:
    """Has evaluate_many where there is evaluate."""

    evaluate: Callable[..., NDArray[Any]]

    @overload
    def evaluate_many(
        self,
        items: Iterable[Item | tuple[Any, ...]],
        *,
        ordered: Literal[True] = True,
        max_in_flight: int = 64,
        timeout_s: float | None = None,
    ) -> LocalResults[NDArray[Any]]: ...

    @overload
    def evaluate_many(
        self,
        items: Iterable[Item | tuple[Any, ...]],
        *,
        ordered: Literal[False],
        max_in_flight: int = 64,
        timeout_s: float | None = None,
    ) -> LocalResults[tuple[int, NDArray[Any]]]: ...

    def evaluate_many(
        self,
        items: Iterable[Item | tuple[Any, ...]],
        *,
        ordered: bool = True,
        max_in_flight: int = 64,
        timeout_s: float | None = None,
    ) -> LocalResults[Any]:
        """Evaluate items one by one, as Client.evaluate_many does many at once.

        max_in_flight is there to be the same: an item is taken when its result is asked for.
        timeout_s is each item's.
        """
        check_max_in_flight(max_in_flight)
        return LocalResults(
            items,
            lambda item: self.evaluate(
                item.op,
                item.array,
                output_shape=item.output_shape,
                out=item.out,
                timeout_s=timeout_s,
            ),
            ordered=ordered,
        )
