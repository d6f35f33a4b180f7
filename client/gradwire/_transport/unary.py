"""Calls with one message each way, written once for both clients.

Their logic is coroutines, which wait only through a Runtime. The blocking Runtime never suspends
them, so that `now` runs such a coroutine to its end.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar, cast

import grpc
from google.protobuf.message import Message

from gradwire import v1
from gradwire._core.evaluation import Evaluation
from gradwire._core.reports import (
    Metadata,
    OperatorInfo,
    ServerInfo,
    read_operators,
    read_server_info,
)
from gradwire._core.retries import LASTING_ATTEMPTS, is_retryable
from gradwire._transport.channels import (
    HEALTH_METHOD,
    SERVICE_PATH,
    ClientChannels,
    Pool,
    PooledChannel,
    explained,
    from_rpc_error,
    next_pause_s,
)
from gradwire._transport.tracing import call_span
from gradwire._wire.framing import parsed
from gradwire._wire.requests import check_timeout
from gradwire.errors import (
    CallCancelledError,
    DeadlineExceededError,
    GradwireError,
    ServerError,
    UnavailableError,
)

T = TypeVar("T")
Reply = TypeVar("Reply", bound=Message)
OnTrailers = Callable[[Metadata], None] | None


class Runtime:
    """Runtime of blocking clients: waits block the thread and never suspend."""

    def event(self) -> threading.Event:
        """Return a new event for wait(), which any thread may set."""
        return threading.Event()

    def start(self, action: Callable[[], object]) -> None:
        """Call a function that starts threads."""
        action()

    async def send(
        self, method: Any, request: bytes, on_trailers: OnTrailers, **options: Any
    ) -> bytes | None:
        """Call a method with grpc's options; return the reply.

        on_trailers gets the reply's trailing metadata.
        """
        if on_trailers is None:
            return cast("bytes | None", method(request, **options))
        reply, call = method.with_call(request, **options)
        on_trailers(call.trailing_metadata() or ())
        return cast("bytes | None", reply)

    async def sleep(self, seconds: float) -> None:
        """Pause."""
        time.sleep(seconds)  # noqa: ASYNC251 - it blocks its thread

    async def wait(self, event: Any, timeout_s: float | None) -> bool:
        """Wait for an event; return whether it has come."""
        return bool(event.wait(timeout_s))

    async def elsewhere(self, function: Callable[[], T]) -> T:
        """Call a function that may take seconds."""
        return function()


def now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    raise AssertionError("a blocking call was suspended")


class UnaryCalls:
    """Unary calls of a client.

    channels  of the client

    pool  for the calls; None for that of the channels
    """

    def __init__(
        self, channels: ClientChannels, runtime: Runtime, pool: Pool | None = None
    ) -> None:
        self.channels = channels
        self._pool = pool or channels.unary
        self._options = channels.options
        self._runtime = runtime

    async def evaluate(self, evaluation: Evaluation) -> None:
        """Try Evaluate until there is a result or streams take over.

        Where memory is shared with the server, large evaluations need no streams.
        """
        if evaluation.streams:
            await self._evaluate_shared(evaluation)
            return
        while not evaluation.streams:
            reply = await self._ask(
                "Evaluate",
                evaluation.unary_request(),
                timeout_s=evaluation.left_s,
                request_id=evaluation.request_id,
                on_trailers=evaluation.on_trailers,
            )
            error = evaluation.take(reply)
            if error is None:
                return
            await self._pause(error, evaluation.recover)

    async def _evaluate_shared(self, evaluation: Evaluation) -> None:
        """Try EvaluateShared once; after any failure the evaluation goes by a stream."""
        shared = self.channels.shared_memory
        if not shared.path:
            return
        attempt = await self._runtime.elsewhere(partial(shared.begin, evaluation))
        if attempt is None:
            return
        try:
            reply = await self._ask(
                "EvaluateShared",
                attempt.message,
                timeout_s=min(evaluation.left_s, self._options.timeout_s),
                request_id=evaluation.request_id,
                on_trailers=evaluation.on_trailers,
            )
            if isinstance(reply, UnavailableError):
                shared.renew()
            elif not isinstance(reply, GradwireError):
                evaluation.end_shared(await self._runtime.elsewhere(partial(attempt.result, reply)))
        finally:
            attempt.close()

    async def operators(self) -> tuple[OperatorInfo, ...]:
        """Return the server's operators, by ListOperators."""
        reply = await self._call("ListOperators", v1.ListOperatorsResponse)
        return read_operators(reply)

    async def server_info(self) -> ServerInfo:
        """Return the server's facts, by GetServerInfo."""
        return read_server_info(await self._call("GetServerInfo", v1.GetServerInfoResponse))

    async def wait_ready(self, timeout_s: float) -> None:
        """Ask for the server's health until it serves.

        Raises UnavailableError if it does not serve in time.
        """
        check_timeout(timeout_s, or_none=False)
        until, lasting = time.monotonic() + timeout_s, 0
        while True:
            left_s = max(0.0, until - time.monotonic())
            reply = await self._ask(HEALTH_METHOD, b"", timeout_s=min(_CHECK_S, left_s))
            if isinstance(reply, CallCancelledError):
                raise reply
            last = reply if isinstance(reply, GradwireError) else read_status(reply)
            unreachable = getattr(last, "unreachable", False)
            if not (unreachable or isinstance(last, DeadlineExceededError)):
                self._options.budget.reached = True
            if last == SERVING:
                return
            if isinstance(last, UnavailableError) and last.lasting and self._options.one_server:
                lasting += 1
                if lasting == LASTING_ATTEMPTS:
                    raise last
            if time.monotonic() + _PAUSE_S >= until:
                late = UnavailableError(f"no server was ready within {timeout_s} s: {last}")
                late.unreachable = unreachable
                raise await self._runtime.elsewhere(partial(explained, late, self._options))
            await self._runtime.sleep(_PAUSE_S)

    async def _call(self, method: str, kind: type[Reply]) -> Reply:
        """Call a method that takes an empty message, with retries."""
        until = time.monotonic() + self._options.timeout_s
        tries = self._options.tries()

        def recover(error: GradwireError) -> float:
            if not is_retryable(error, streamed=False):
                raise error
            return tries.pause_s(error, left_s=until - time.monotonic())

        while True:
            left_s = max(0.0, until - time.monotonic())
            reply = await self._ask(method, b"", timeout_s=left_s)
            if not isinstance(reply, GradwireError):
                self._options.budget.succeed()
                return parsed(kind, reply)
            await self._pause(reply, recover)

    async def _pause(self, error: GradwireError, recover: Callable[[GradwireError], float]) -> None:
        if self.channels.closed:
            raise error
        pause = partial(next_pause_s, error, recover, self._options)
        await self._runtime.sleep(await self._runtime.elsewhere(pause))

    async def _ask(
        self,
        method: str,
        request: bytes,
        *,
        timeout_s: float,
        request_id: str | None = None,
        on_trailers: OnTrailers = None,
    ) -> bytes | GradwireError:
        """Call once; return the reply or the error.

        method       name in gradwire's service, or path in another service
        request_id   of the request, for errors
        on_trailers  called with the trailing metadata of a reply
        """
        name = "" if method.startswith("/") else method
        taken, failed = None, False
        reply: bytes | GradwireError | None
        with call_span(name, self._options) as span:
            try:
                taken = self._pool.take()
                reply = await self._runtime.send(
                    _callable(taken, method),
                    request,
                    on_trailers,
                    timeout=timeout_s,
                    metadata=span.metadata,
                )
            except UnavailableError as error:
                # The pool knows no server.
                reply = error
            except grpc.RpcError as error:
                reply = from_rpc_error(error)
                failed = is_retryable(reply, streamed=False)
            except (ValueError, grpc.aio.UsageError):
                # The channel is closed.
                reply = CallCancelledError("the client was closed")
            except asyncio.CancelledError:
                if not self._is_cancelled_by_closing():
                    raise
                reply = CallCancelledError("the client was closed")
            finally:
                if taken is not None:
                    self._pool.give_back(taken, failed=failed)
            if reply is None:
                # A server of another kind may answer OK without a message.
                reply = ServerError("the server answered OK without a message")
            if isinstance(reply, GradwireError):
                reply.request_id = reply.request_id or request_id
            span.answer = reply
        return reply

    def _is_cancelled_by_closing(self) -> bool:
        """Whether closing has made grpc cancel a waiting task.

        grpc then cancels the task as if the caller had done so.
        """
        task = asyncio.current_task()
        return self.channels.closed and task is not None and not task.cancelling()


def _callable(taken: PooledChannel, method: str) -> Any:
    if method == "Evaluate":
        return taken.evaluate
    path = method if method.startswith("/") else f"{SERVICE_PATH}{method}"
    return taken.channel.unary_unary(path)


SERVING = "SERVING"

# grpc.health.v1.HealthCheckResponse.ServingStatus
_STATUSES = ("UNKNOWN", SERVING, "NOT_SERVING", "SERVICE_UNKNOWN")
_SERVICE_TAG = b"\x0a"
_STATUS_TAG = 0x08

# Seconds that one check may take, and pause between two checks while a client waits for a server.
_CHECK_S = 5.0
_PAUSE_S = 0.1


def check_request(service: str = "") -> bytes:
    """Encode a HealthCheckRequest."""
    name = service.encode()
    if len(name) > 0x7F:  # noqa: PLR2004 - the length takes one byte
        raise ValueError(f"service is {len(name)} bytes long; give at most 127")
    return _SERVICE_TAG + bytes((len(name),)) + name if name else b""


def read_status(response: bytes) -> str:
    """Decode a HealthCheckResponse."""
    status = response[1] if len(response) > 1 and response[0] == _STATUS_TAG else 0
    return _STATUSES[status] if status < len(_STATUSES) else _STATUSES[0]
