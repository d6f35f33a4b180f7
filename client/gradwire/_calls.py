"""How one call proceeds: every decision of both clients, which only carry them out.

A client repeats until there is a reply: try the call, and where the try fails ask `recover` how
long to wait before the next one.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from numpy.typing import NDArray

from gradwire import ops
from gradwire._channel import BlockingChannel, Link
from gradwire._job import prepare
from gradwire._options import MAX_TIMEOUT_S, Options, is_timeout
from gradwire._pool import Pool
from gradwire._progress import INTERVAL_S, Progress
from gradwire._split import Shares, SplitTry, in_order, needs_one_server, share_count
from gradwire._streams import StreamTry
from gradwire._tracing import Context
from gradwire.chunks import Transfer
from gradwire.errors import (
    DeadlineExceededError,
    EvaluationChangedError,
    GradwireError,
    InvalidRequestError,
    LimitExceededError,
)
from gradwire.retries import Tries, is_retryable
from gradwire.timing import Metadata, Timing, read_timing


class Evaluation:
    """One evaluate() from its arguments to its result.

    streams  whether it goes by EvaluateStream now; otherwise by Evaluate
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
        link: Link,
    ) -> None:
        self._started_at = time.monotonic()
        self._job = prepare(operator, array, output_shape=output_shape, out=out)
        self._timeout_s = check_timeout(timeout_s)
        self._options = options
        self._link = link
        self._splits = options.split
        self._share_count: int | None = None
        self._progress = Progress(on_progress)
        self._on_timing = on_timing
        self._tried = 0
        self._trailers: Metadata = ()
        self._tries = options.tries(link.budget)
        self._transfer: Transfer | Shares | None = None
        self._stream: StreamTry | SplitTry | None = None
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
            timeout_s = math.inf if self.streams else self._options.timeout_s
        return max(0.0, self._started_at + timeout_s - time.monotonic())

    @property
    def still_s(self) -> float:
        """Seconds until a stream counts as stalled, unless something moves; at least 0."""
        still_since = self._moving.moved_at
        return max(0.0, still_since + self._options.timeout_s - time.monotonic())

    def unary_request(self) -> bytes:
        """Encode the message for a try of Evaluate."""
        if not self.left_s:
            raise self.too_late()
        self._tried += 1
        return self._job.unary_request()

    @property
    def on_trailers(self) -> Callable[[Metadata], None] | None:
        """What to give the trailing metadata of Evaluate's answer; None where nobody asks."""
        return None if self._on_timing is None else self._keep_trailers

    def _keep_trailers(self, trailers: Metadata) -> None:
        self._trailers = trailers

    def take(self, response: bytes) -> None:
        """Decode the answer to Evaluate."""
        self._result = self._job.unary_result(response)

    def start_stream(
        self,
        link: Link,
        *,
        metadata: Context | None = None,
        on_end: Callable[[], None] | None = None,
        elsewhere: Callable[[Callable[[], None]], object] | None = None,
    ) -> StreamTry | SplitTry:
        """Start a try of EvaluateStream; on_end is called in another thread when it has ended.

        elsewhere  has another thread do what it is given, soon; None to start the try in this one
        """
        moving = self._moving
        if isinstance(moving, Shares):
            self._stream = SplitTry(
                moving,
                start=lambda share: self._new_stream(link, share, link.shares, metadata=metadata),
                recover=lambda: partial(self._recover_share, self._options.tries(link.budget)),
                patience_s=self._options.timeout_s / 2,
                rests=self._options.retry.max_attempts > 1,
                on_end=on_end,
            )
        else:
            # After a failure caution: an error is lost more easily to a sender that is ahead.
            eager = self._stream is None
            self._stream = self._new_stream(
                link, moving, link.streams, metadata=metadata, eager=eager, on_end=on_end
            )
        stream = self._stream
        if elsewhere is None:
            stream.start()
        else:
            elsewhere(stream.start)
        return stream

    def _new_stream(
        self,
        link: Link,
        transfer: Transfer,
        lines: Pool[BlockingChannel],
        *,
        metadata: Context | None,
        eager: bool = False,
        on_end: Callable[[], None] | None = None,
    ) -> StreamTry:
        left_s = self.left_s
        if not left_s:
            raise self.too_late()
        self._tried += 1
        return StreamTry(
            link,
            transfer,
            lines=lines,
            request_id=self.request_id,
            chunk_bytes=self._options.chunk_bytes,
            eager=eager,
            timeout_s=None if math.isinf(left_s) else left_s,
            metadata=metadata,
            on_end=on_end,
        )

    def next_look_s(self) -> float:
        """Return the seconds to wait for the end of a stream before the next look."""
        return min(self.still_s, INTERVAL_S if self._progress.is_wanted else math.inf)

    def look(self) -> None:
        """Report how far a stream is; raise DeadlineExceededError where it is stalled."""
        transfer = self._moving
        self._progress.report(transfer.sent, transfer.received)
        if not self.still_s:
            raise DeadlineExceededError(
                f"nothing moved for {self._options.timeout_s} s, after {transfer.sent} of "
                f"{transfer.input_bytes} input bytes and {transfer.received} result bytes",
                request_id=self.request_id,
            )

    def recover(self, error: GradwireError) -> float:
        """Return the seconds to wait before the next try; raise the error where there is none."""
        if not self.streams and _is_too_large(error):
            self.streams = True
            return 0.0
        if error.reason == "LAYOUT_NOT_STREAMABLE" and (job := self._job.reordered()) is not None:
            self._job = job
            self._transfer = None
            return 0.0
        if isinstance(self._transfer, Shares):
            return self._recover_split(error)
        if error.reason == "INVALID_DATA" and self._stream and self._stream.sent_too_large:
            # Another server than the one whose limit was known; the next try waits for its word.
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
        """Fall back on one server at a time where that may do; raise the error otherwise."""
        if not needs_one_server(error):
            raise error
        self._splits, self._transfer, self._stream = False, None, None
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
        """Say in this package's words that the deadline has passed; grpc's tell of no timeout."""
        timeout_s = self._options.timeout_s if self._timeout_s is None else self._timeout_s
        message = f"no result within timeout_s, {timeout_s} s"
        if self.streams:
            transfer = self._moving
            message += (
                f": {transfer.sent} of {transfer.input_bytes} input bytes were sent, "
                f"{transfer.received} result bytes received"
            )
        return DeadlineExceededError(message, request_id=self.request_id)

    def result(self) -> NDArray[Any]:
        """Return the result, once a try has succeeded."""
        result = self._moving.result if self.streams else self._result
        if result is None:
            raise AssertionError("a try without a result fails")
        self._tries.succeed()
        self._progress.finish(self._job.input_bytes, result.nbytes)
        if self._on_timing is not None:
            self._on_timing(self._timing())
        return result

    def _timing(self) -> Timing:
        trailers = self._trailers
        if self.streams and self._stream is not None:
            trailers = self._stream.trailers()
        total_s = time.monotonic() - self._started_at
        return read_timing(trailers, total_s=total_s, tries=self._tried)

    @property
    def _moving(self) -> Transfer | Shares:
        if self._transfer is None:
            count = self.stream_count
            chunk_bytes = self._options.chunk_bytes
            if count > 1:
                self._job = in_order(self._job)
                self._transfer = Shares(self._job, count, chunk_bytes=chunk_bytes)
            else:
                self._transfer = Transfer(self._job, chunk_bytes=chunk_bytes)
        return self._transfer

    @property
    def stream_count(self) -> int:
        """How many streams it takes at once, once it goes by streams."""
        if not self._splits:
            return 1
        if self._share_count is None:
            self._share_count = share_count(
                self._job.bulk_bytes,
                servers=self._link.shares.sound_targets(),
                threshold_bytes=self._options.split_threshold_bytes,
            )
        return self._share_count


def _is_too_large(error: GradwireError) -> bool:
    # grpc's own limit on messages has no reason of ours.
    return isinstance(error, LimitExceededError) and error.reason in {"USE_STREAM", ""}


def check_timeout(timeout_s: float | None) -> float | None:
    """Return timeout_s; raise InvalidRequestError where it is no time."""
    if timeout_s is None:
        return None
    if not is_timeout(timeout_s):
        raise InvalidRequestError.of(
            "timeout_s",
            f"is {timeout_s!r}; give seconds above 0, at most {MAX_TIMEOUT_S}, or None for the "
            "default",
        )
    return timeout_s
