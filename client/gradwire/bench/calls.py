"""One call of a load: made as the SDK makes it, once, and judged."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any, Final, NamedTuple

from numpy.typing import NDArray

from gradwire.async_client import AsyncClient
from gradwire.bench.problems import Judge
from gradwire.bench.scenarios import Flow
from gradwire.bench.slow_readers import evaluate_slowly
from gradwire.errors import CallCancelledError, DeadlineExceededError, GradwireError
from gradwire.retries import RetryPolicy, is_retryable

# A load test counts what the server refuses; the SDK would hide it.
ONCE: Final = RetryPolicy(max_attempts=1)


class Outcome(NamedTuple):
    """How a call ended.

    status     of gRPC; WRONG_RESULT where bits came that are not the right ones
    reason     of gradwire; BY_CALLER and BY_USER where nobody failed
    retryable  whether the SDK would have tried again
    """

    status: str
    reason: str = ""
    retryable: bool = False

    @property
    def is_unanswered(self) -> bool:
        """Whether no server had a part in it: gRPC found none, or lost it; ours give a reason."""
        return self.status == "UNAVAILABLE" and not self.reason


OK: Final = Outcome("OK")
WRONG: Final = Outcome("WRONG_RESULT")
CANCELLED: Final = Outcome("CANCELLED", "BY_CALLER")
# Calls in flight when the user ends the whole; they do not count.
STOPPED: Final = Outcome("CANCELLED", "BY_USER")


class Maker:
    """Makes the calls of one flow.

    timeout_s  what a call may take that is not hurried
    """

    def __init__(self, flow: Flow, client: AsyncClient, *, timeout_s: float, seed: int) -> None:
        self._flow = flow
        self._client = client
        self._timeout_s = flow.within_s if flow.manner == "hurried" else timeout_s
        self._chance = random.Random(seed)  # noqa: S311 - nothing secret
        self._input = flow.what.input()
        self._judge = Judge(flow.what)

    async def __call__(self) -> Outcome:
        """Make a call; whatever happens to it is its outcome."""
        try:
            result = await self._result()
        except GradwireError as error:
            streamed = self._flow.what.is_streamed
            retryable = is_retryable(error, streamed=streamed)
            return Outcome(error.status or _status_of(error), error.reason, retryable)
        except Exception as error:  # noqa: BLE001 - a fault of this side is told like any other
            return Outcome(type(error).__name__, str(error)[:80])
        if result is None:
            return CANCELLED
        return OK if self._judge.is_right(result) else WRONG

    async def _result(self) -> NDArray[Any] | None:
        """Return the result; None where the caller lost interest."""
        match self._flow.manner:
            case "cancelled":
                return await self._cancelled()
            case "slow":
                return await evaluate_slowly(
                    self._client,
                    self._flow.what,
                    self._input,
                    pause_s=self._flow.within_s,
                    timeout_s=self._timeout_s,
                )
            case "many":
                return await self._many()
            case _:
                return await self._evaluate()

    async def _cancelled(self) -> NDArray[Any] | None:
        patience_s = self._chance.uniform(0, self._flow.within_s)
        try:
            async with asyncio.timeout(patience_s):
                return await self._evaluate()
        except TimeoutError as error:
            # An error of the service may be one too.
            if isinstance(error, GradwireError):
                raise
            return None

    async def _many(self) -> NDArray[Any]:
        """Return one of many results, a wrong one if there is any."""
        what = self._flow.what
        item = (what.operator, self._input, what.received)
        results = self._client.evaluate_many(
            (item for _ in range(self._flow.items)), timeout_s=self._timeout_s
        )
        came = [result async for result in results]
        return next((one for one in came if not self._judge.is_right(one)), came[-1])

    async def _evaluate(self) -> NDArray[Any]:
        what = self._flow.what
        return await self._client.evaluate(
            what.operator, self._input, output_shape=what.received, timeout_s=self._timeout_s
        )


def _status_of(error: GradwireError) -> str:
    """Return the gRPC status of an error that the SDK raised by itself."""
    if isinstance(error, DeadlineExceededError):
        return "DEADLINE_EXCEEDED"
    return "CANCELLED" if isinstance(error, CallCancelledError) else type(error).__name__


def now() -> float:
    """Return the time on a clock that all processes of a machine share, in seconds."""
    return time.monotonic()
