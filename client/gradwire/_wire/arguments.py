"""Arguments of evaluate() and evaluate_many(), checked."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from gradwire import ops
from gradwire.errors import InvalidRequestError

# A year. grpc's clocks overflow some way beyond, and such calls end at once.
MAX_TIMEOUT_S = 365 * 24 * 3600
# The server refuses smaller chunks: each chunk of a result costs it a message.
LEAST_CHUNK_BYTES = 4096
# Seconds between two calls of on_progress.
PROGRESS_INTERVAL_S = 0.1


class Item(NamedTuple):
    """One evaluation among many; `Client.evaluate` describes the fields.

    A plain tuple of two to four of them is accepted too.
    """

    op: ops.Operator
    array: object
    output_shape: Sequence[int] | None = None
    out: NDArray[Any] | None = None


def as_item(given: Any) -> Item:
    """Return an item; raise TypeError for anything but an Item or a tuple of its fields."""
    if isinstance(given, Item):
        return given
    came = f"a {type(given).__name__}"
    if tuple in type(given).__mro__:
        with contextlib.suppress(TypeError):
            return Item(*given)
        came += f" of {len(given)}"
    raise TypeError(f"an item is {came}; give gradwire.Item(op, array), or a tuple of its fields")


def check_operator(operator: object) -> ops.Operator:
    """Return operator if it is one; raise TypeError otherwise."""
    if not isinstance(operator, ops.Operator):
        raise TypeError(f"op is a {type(operator).__name__}; give an operator of gradwire.ops")
    return operator


def check_max_in_flight(count: object) -> int:
    """Return max_in_flight; raise InvalidRequestError unless it is a positive integer."""
    if type(count) is not int or count < 1:
        raise InvalidRequestError.of("max_in_flight", f"is {count!r}; give an integer, at least 1")
    return count


def check_timeout(timeout_s: float | None) -> float | None:
    """Return timeout_s; raise InvalidRequestError unless it is a positive time or None."""
    if timeout_s is None:
        return None
    if not is_timeout(timeout_s):
        raise InvalidRequestError.of(
            "timeout_s",
            f"is {timeout_s!r}; give seconds above 0, at most {MAX_TIMEOUT_S}, or None for the "
            "default",
        )
    return timeout_s


def is_timeout(value: object) -> bool:
    """Whether a value is a number of seconds that a call can take."""
    return isinstance(value, int | float) and 0 < value <= MAX_TIMEOUT_S


class Progress:
    """Calls on_progress(sent_bytes, received_bytes), at most 10 times a second, never decreasing.

    on_progress  None for no calls
    """

    def __init__(
        self,
        on_progress: Callable[[int, int], object] | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_progress = on_progress
        self._clock = clock
        self._reported = (0, 0)
        self._next_at = clock()

    @property
    def is_wanted(self) -> bool:
        """Whether there is a callback."""
        return self._on_progress is not None

    def report(self, sent_bytes: int, received_bytes: int) -> None:
        """Report the progress, unless nothing is new or the last report is too recent."""
        if self._on_progress is None or self._clock() < self._next_at:
            return
        reached = max(sent_bytes, self._reported[0]), max(received_bytes, self._reported[1])
        if reached != self._reported:
            self._call(reached)

    def finish(self, sent_bytes: int, received_bytes: int) -> None:
        """Report the end."""
        self._call((sent_bytes, received_bytes))

    def _call(self, reached: tuple[int, int]) -> None:
        self._reported = reached
        if self._on_progress is not None:
            self._on_progress(*reached)
        self._next_at = self._clock() + PROGRESS_INTERVAL_S
