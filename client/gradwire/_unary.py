"""One try of a call of one message each way, for both clients."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import TypeAlias, TypeVar

import grpc

from gradwire._channel import AsyncChannel, BlockingChannel, Link, from_rpc_error
from gradwire._options import Options
from gradwire._pool import Pool
from gradwire._tokens import Bearer
from gradwire._tracing import Context, call_span
from gradwire.errors import CallCancelledError, GradwireError, ServerError, UnavailableError
from gradwire.retries import is_retryable
from gradwire.timing import Metadata

Request = TypeVar("Request")
Reply = TypeVar("Reply")
Method: TypeAlias = Callable[[BlockingChannel], "grpc.UnaryUnaryMultiCallable[Request, Reply]"]
AsyncMethod: TypeAlias = Callable[
    [AsyncChannel], "grpc.aio.UnaryUnaryMultiCallable[Request, Reply]"
]


class UnaryCall:
    """One call of one message each way, with its tries."""

    def __init__(self, options: Options, link: Link) -> None:
        self._tries = options.tries(link.budget)
        self._until = time.monotonic() + options.timeout_s

    @property
    def left_s(self) -> float:
        """Seconds until the deadline, at least 0."""
        return max(0.0, self._until - time.monotonic())

    def recover(self, error: GradwireError) -> float:
        """Return the seconds to wait before the next try; raise the error where there is none."""
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


class Unary:
    """Calls of a Client.

    target  what spans call it
    pool    gives its connections
    bearer  shows a token, if there is one
    """

    def __init__(
        self, target: str, pool: Callable[[], Pool[BlockingChannel]], *, bearer: Bearer | None
    ) -> None:
        self._target = target
        self._bearer = bearer
        self._pool = pool

    def ask(
        self,
        method: Method[Request, Reply],
        request: Request,
        *,
        timeout_s: float,
        request_id: str | None = None,
        on_trailers: Callable[[Metadata], None] | None = None,
        name: str = "",
    ) -> Reply | GradwireError:
        """Call once; return the reply, or the error that came instead.

        request_id   of the request, for errors
        on_trailers  called with the trailing metadata of a reply
        name         of the method, for spans; empty for none
        """
        with call_span(name, target=self._target, bearer=self._bearer) as span:
            reply = self._send(
                method,
                request,
                timeout_s=timeout_s,
                request_id=request_id,
                on_trailers=on_trailers,
                metadata=span.metadata,
            )
            span.note(reply)
        return reply

    def _send(
        self,
        method: Method[Request, Reply],
        request: Request,
        *,
        timeout_s: float,
        request_id: str | None,
        on_trailers: Callable[[Metadata], None] | None,
        metadata: Context | None,
    ) -> Reply | GradwireError:
        pool = self._pool()
        try:
            seat, line = pool.take()
        except UnavailableError as error:
            return error
        failed = False
        try:
            if on_trailers is None:
                reply = method(line)(request, timeout=timeout_s, metadata=metadata)
            else:
                reply, call = method(line).with_call(request, timeout=timeout_s, metadata=metadata)
                on_trailers(call.trailing_metadata() or ())
        except grpc.RpcError as error:
            failure = from_rpc_error(error, request_id=request_id)
            failed = is_retryable(failure, streamed=False)
            return failure
        except ValueError as error:
            # What grpc says of a channel that is closed.
            return CallCancelledError(str(error), request_id=request_id)
        else:
            return _answer(reply, request_id)
        finally:
            pool.give_back(seat, failed=failed)


class AsyncUnary:
    """Calls of an AsyncClient.

    target  what spans call it
    pool    gives its connections
    bearer  shows a token, if there is one
    closed  tells whether the client is closed
    """

    def __init__(
        self,
        target: str,
        pool: Callable[[], Pool[AsyncChannel]],
        *,
        bearer: Bearer | None,
        closed: Callable[[], bool],
    ) -> None:
        self._target = target
        self._bearer = bearer
        self._pool = pool
        self._closed = closed

    async def ask(
        self,
        method: AsyncMethod[Request, Reply],
        request: Request,
        *,
        timeout_s: float,
        request_id: str | None = None,
        on_trailers: Callable[[Metadata], None] | None = None,
        name: str = "",
    ) -> Reply | GradwireError:
        """Call once; return the reply, or the error that came instead.

        request_id   of the request, for errors
        on_trailers  called with the trailing metadata of a reply
        name         of the method, for spans; empty for none
        """
        with call_span(name, target=self._target, bearer=self._bearer) as span:
            reply = await self._send(
                method,
                request,
                timeout_s=timeout_s,
                request_id=request_id,
                on_trailers=on_trailers,
                metadata=span.metadata,
            )
            span.note(reply)
        return reply

    async def _send(
        self,
        method: AsyncMethod[Request, Reply],
        request: Request,
        *,
        timeout_s: float,
        request_id: str | None,
        on_trailers: Callable[[Metadata], None] | None,
        metadata: Context | None,
    ) -> Reply | GradwireError:
        pool = self._pool()
        try:
            seat, line = pool.take()
        except UnavailableError as error:
            return error
        failed = False
        try:
            call = method(line)(request, timeout=timeout_s, metadata=metadata)
            reply = await call
            if on_trailers is not None:
                on_trailers(await call.trailing_metadata())
        except grpc.RpcError as error:
            failure = from_rpc_error(error, request_id=request_id)
            failed = is_retryable(failure, streamed=False)
            return failure
        except grpc.aio.UsageError as error:
            # What grpc says of a channel that is closed.
            return CallCancelledError(str(error), request_id=request_id)
        except asyncio.CancelledError:
            # grpc cancels waiting tasks when their channel is closed; nobody meant the task itself.
            task = asyncio.current_task()
            if self._closed() and task is not None and not task.cancelling():
                return CallCancelledError("the client was closed", request_id=request_id)
            raise
        else:
            return _answer(reply, request_id)
        finally:
            pool.give_back(seat, failed=failed)


def _answer(reply: Reply | None, request_id: str | None) -> Reply | GradwireError:
    # grpc returns None where a server that is none of ours says OK and sends no message.
    if reply is None:
        return ServerError("the server answered OK without a message", request_id=request_id)
    return reply
