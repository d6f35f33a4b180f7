"""Progress of one evaluate(): its tries, deadline, transfer and result.

A client repeats until there is a result: it makes a try, and after a failure asks `recover` how
long to wait before the next one.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from numpy.typing import NDArray

from gradwire import ops
from gradwire._core.options import Options
from gradwire._core.reports import Metadata, Timing, read_timing
from gradwire._core.retries import RetryBudget, Tries, is_retryable
from gradwire._core.split import Shares, in_order, needs_one_server, share_count
from gradwire._wire.arguments import PROGRESS_INTERVAL_S, Progress, check_timeout
from gradwire._wire.requests import prepare
from gradwire.chunks import Transfer
from gradwire.errors import (
    DeadlineExceededError,
    EvaluationChangedError,
    GradwireError,
    LimitExceededError,
)


class StreamOutcome(Protocol):
    """A try of EvaluateStream, of one stream or of several that share the evaluation."""

    @property
    def sent_too_large(self) -> bool:
        """Whether chunks were larger than the server accepts."""
        ...

    def trailers(self) -> Metadata:
        """Return the trailing metadata of a try that has succeeded."""
        ...


class Evaluation:
    """One evaluate() from its arguments to its result.

    options  of the client
    streams  whether the next try is of EvaluateStream; otherwise of Evaluate
    stream   the last try of EvaluateStream; None before the first

    budget   retry budget of the client
    servers  returns the number of servers that can share an evaluation
    """

    def __init__(
        self,
        operator: ops.Operator,
        array: object,
        *,
        output_shape: Sequence[int] | None,
        out: NDArray[Any] | None,
        timeout_s: float | None,
        on_progress: Callable[[int, int], object] | None,
        on_timing: Callable[[Timing], object] | None,
        options: Options,
        budget: RetryBudget,
        servers: Callable[[], int],
    ) -> None:
        self._started_at = time.monotonic()
        self._job = prepare(operator, array, output_shape=output_shape, out=out)
        self._timeout_s = check_timeout(timeout_s)
        self.options = options
        self._budget = budget
        self._servers = servers
        self._splits = options.split
        self._share_count: int | None = None
        self._progress = Progress(on_progress)
        self._on_timing = on_timing
        self._tried = 0
        self._trailers: Metadata = ()
        self._tries = options.tries(budget)
        self._transfer: Transfer | Shares | None = None
        self.stream: StreamOutcome | None = None
        self._result: NDArray[Any] | None = None
        self.streams = self._job.bulk_bytes > options.stream_threshold_bytes

    @property
    def request_id(self) -> str:
        """Name of the request, the same for every try."""
        return self._job.request_id

    @property
    def left_s(self) -> float:
        """Seconds until the deadline, at least 0; infinite for a stream without one."""
        timeout_s = self._timeout_s
        if timeout_s is None:
            timeout_s = math.inf if self.streams else self.options.timeout_s
        return max(0.0, self._started_at + timeout_s - time.monotonic())

    @property
    def still_s(self) -> float:
        """Seconds until a stream counts as stalled, unless something moves; at least 0."""
        still_since = self.transfer.moved_at
        return max(0.0, still_since + self.options.timeout_s - time.monotonic())

    def unary_request(self) -> bytes:
        """Encode the message for a try of Evaluate."""
        if not self.left_s:
            raise self.too_late()
        self._tried += 1
        return self._job.unary_request()

    @property
    def on_trailers(self) -> Callable[[Metadata], None] | None:
        """Callback for the trailing metadata of Evaluate; None without on_timing."""
        return None if self._on_timing is None else self._keep_trailers

    def _keep_trailers(self, trailers: Metadata) -> None:
        self._trailers = trailers

    def take(self, response: bytes) -> None:
        """Decode the response to Evaluate."""
        self._result = self._job.unary_result(response)

    def begin_stream(self) -> float | None:
        """Count a try of EvaluateStream; return the seconds until its deadline, if any."""
        left_s = self.left_s
        if not left_s:
            raise self.too_late()
        self._tried += 1
        return None if math.isinf(left_s) else left_s

    def share_recovery(self) -> Callable[[GradwireError, Transfer], float]:
        """Return a function like `recover`, with a retry count of its own, for one share."""
        return partial(self._recover_share, self.options.tries(self._budget))

    def next_look_s(self) -> float:
        """Return the seconds until the next look()."""
        return min(self.still_s, PROGRESS_INTERVAL_S if self._progress.is_wanted else math.inf)

    def look(self) -> None:
        """Report the progress of a stream; raise DeadlineExceededError if it has stalled."""
        transfer = self.transfer
        self._progress.report(transfer.sent, transfer.received)
        if not self.still_s:
            raise DeadlineExceededError(
                f"nothing moved for {self.options.timeout_s} s, after {transfer.sent} of "
                f"{transfer.input_bytes} input bytes and {transfer.received} result bytes",
                request_id=self.request_id,
            )

    def recover(self, error: GradwireError) -> float:
        """Return the seconds to wait before the next try; raise the error if there is none."""
        if not self.streams and _is_too_large(error):
            self.streams = True
            return 0.0
        if error.reason == "LAYOUT_NOT_STREAMABLE" and (job := self._job.reordered()) is not None:
            self._job = job
            self._transfer = None
            return 0.0
        if isinstance(self._transfer, Shares):
            return self._recover_split(error)
        if error.reason == "INVALID_DATA" and self.stream and self.stream.sent_too_large:
            # Another server answered than the one whose limit was known; the next try waits for its
            # limit.
            return 0.0
        if isinstance(error, EvaluationChangedError) and self._transfer is not None:
            self._transfer.restart()
        elif isinstance(error, DeadlineExceededError) and error.reason != "STALLED":
            raise self.too_late() from error
        elif not is_retryable(error, streamed=self.streams):
            raise error
        return self._tries.pause_s(
            error,
            progressed=self._transfer is not None and self._transfer.progressed,
            left_s=min(self.left_s, self.still_s) if self.streams else self.left_s,
            draw=random.random(),  # noqa: S311 - jitter
        )

    def _recover_split(self, error: GradwireError) -> float:
        """Fall back to a single server if that may succeed; raise the error otherwise."""
        if not needs_one_server(error):
            raise error
        self._splits, self._transfer, self.stream = False, None, None
        return 0.0

    def _recover_share(self, tries: Tries, error: GradwireError, share: Transfer) -> float:
        """Return the seconds to wait before the next try of a share, or raise the error."""
        if isinstance(error, DeadlineExceededError) and error.reason != "STALLED":
            raise self.too_late() from error
        if not is_retryable(error, streamed=True):
            raise error
        return tries.pause_s(
            error,
            progressed=share.progressed,
            left_s=min(self.left_s, self.still_s),
            draw=random.random(),  # noqa: S311 - jitter
        )

    def too_late(self) -> DeadlineExceededError:
        """Return the error of a passed deadline; grpc's message does not name the timeout."""
        timeout_s = self.options.timeout_s if self._timeout_s is None else self._timeout_s
        message = f"no result within timeout_s, {timeout_s} s"
        if self.streams:
            transfer = self.transfer
            message += (
                f": {transfer.sent} of {transfer.input_bytes} input bytes were sent, "
                f"{transfer.received} result bytes received"
            )
        return DeadlineExceededError(message, request_id=self.request_id)

    def result(self) -> NDArray[Any]:
        """Return the result, once a try has succeeded."""
        result = self.transfer.result if self.streams else self._result
        if result is None:
            raise AssertionError("a try without a result fails")
        self._tries.succeed()
        self._progress.finish(self._job.input_bytes, result.nbytes)
        if self._on_timing is not None:
            self._on_timing(self._timing())
        return result

    def _timing(self) -> Timing:
        trailers = self._trailers
        if self.streams and self.stream is not None:
            trailers = self.stream.trailers()
        total_s = time.monotonic() - self._started_at
        return read_timing(trailers, total_s=total_s, tries=self._tried)

    @property
    def transfer(self) -> Transfer | Shares:
        """Bytes moved by streams, in one transfer or several shares."""
        if self._transfer is None:
            count = self.stream_count
            chunk_bytes = self.options.chunk_bytes
            if count > 1:
                self._job = in_order(self._job)
                self._transfer = Shares(self._job, count, chunk_bytes=chunk_bytes)
            else:
                self._transfer = Transfer(self._job, chunk_bytes=chunk_bytes)
        return self._transfer

    @property
    def stream_count(self) -> int:
        """Number of concurrent streams, if it goes by streams."""
        if not self._splits:
            return 1
        if self._share_count is None:
            self._share_count = share_count(
                self._job.bulk_bytes,
                servers=self._servers(),
                threshold_bytes=self.options.split_threshold_bytes,
            )
        return self._share_count


class UnaryTries:
    """Deadline and retries of a call other than evaluate()."""

    def __init__(self, options: Options, budget: RetryBudget) -> None:
        self._tries = options.tries(budget)
        self._until = time.monotonic() + options.timeout_s

    @property
    def left_s(self) -> float:
        """Seconds until the deadline, at least 0."""
        return max(0.0, self._until - time.monotonic())

    def recover(self, error: GradwireError) -> float:
        """Return the seconds to wait before the next try; raise the error if there is none."""
        if not is_retryable(error, streamed=False):
            raise error
        return self._tries.pause_s(
            error,
            progressed=False,
            left_s=self.left_s,
            draw=random.random(),  # noqa: S311 - jitter
        )

    def succeed(self) -> None:
        """Note that the call succeeded."""
        self._tries.succeed()


def _is_too_large(error: GradwireError) -> bool:
    # grpc's own limit on messages has no reason of ours.
    return isinstance(error, LimitExceededError) and error.reason in {"USE_STREAM", ""}
