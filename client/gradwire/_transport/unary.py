"""Tries of calls with one message each way, blocking or in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Generic, TypeAlias, TypeVar

import grpc

from gradwire._core.options import BearerToken
from gradwire._core.reports import Metadata
from gradwire._core.retries import is_retryable
from gradwire._transport.async_channels import AsyncChannel
from gradwire._transport.channels import BlockingChannel, from_rpc_error
from gradwire._transport.pool import Pool, PooledChannel
from gradwire._transport.tracing import Context, call_span
from gradwire.errors import CallCancelledError, GradwireError, ServerError, UnavailableError

Channel = TypeVar("Channel")
Request = TypeVar("Request")
Reply = TypeVar("Reply")
Method: TypeAlias = Callable[[BlockingChannel], "grpc.UnaryUnaryMultiCallable[Request, Reply]"]
AsyncMethod: TypeAlias = Callable[
    [AsyncChannel], "grpc.aio.UnaryUnaryMultiCallable[Request, Reply]"
]


class _Attempt(Generic[Channel]):
    """One try of a call.

    metadata  to send; None for none
    reply     the reply, or the error of the try
    """

    def __init__(self, pool: Pool[Channel], metadata: Context | None) -> None:
        self._pool = pool
        self._taken: PooledChannel[Channel] | None = None
        self.metadata = metadata
        self.reply: Any = None

    def channel(self) -> Channel:
        """Take a channel of the pool."""
        self._taken, channel = self._pool.take()
        return channel

    def give_back(self, *, failed: bool) -> None:
        """Give the channel back, if one was taken."""
        if self._taken is not None:
            self._pool.give_back(self._taken, failed=failed)


class _UnaryCalls(Generic[Channel]):
    """Unary calls of a client.

    target  name of the servers in spans
    pool    returns the channels
    bearer  token to send, if any
    closed  returns whether the client is closed
    """

    def __init__(
        self,
        target: str,
        pool: Callable[[], Pool[Channel]],
        *,
        bearer: BearerToken | None,
        closed: Callable[[], bool],
    ) -> None:
        self._target = target
        self._bearer = bearer
        self._pool = pool
        self._closed = closed

    @contextmanager
    def _attempt(self, name: str, request_id: str | None) -> Generator[_Attempt[Channel]]:
        """Trace a try, convert its errors, and give its channel back."""
        with call_span(name, target=self._target, bearer=self._bearer) as span:
            attempt = _Attempt(self._pool(), span.metadata)
            failed = False
            try:
                yield attempt
                if attempt.reply is None:
                    # A foreign server that says OK without a message.
                    attempt.reply = ServerError(
                        "the server answered OK without a message", request_id=request_id
                    )
            except UnavailableError as error:
                # The pool knows no server.
                attempt.reply = error
            except grpc.RpcError as error:
                attempt.reply = failure = from_rpc_error(error, request_id=request_id)
                failed = is_retryable(failure, streamed=False)
            except (ValueError, grpc.aio.UsageError) as error:
                # The channel is closed.
                attempt.reply = CallCancelledError(str(error), request_id=request_id)
            except asyncio.CancelledError:
                # grpc cancels waiting tasks when their channel is closed, as if they were meant.
                task = asyncio.current_task()
                if not self._closed() or task is None or task.cancelling():
                    raise
                attempt.reply = CallCancelledError("the client was closed", request_id=request_id)
            finally:
                attempt.give_back(failed=failed)
            span.note(attempt.reply)


class Unary(_UnaryCalls[BlockingChannel]):
    """Unary calls of a Client."""

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
        """Call once; return the reply, or the error instead.

        request_id   of the request, for errors
        on_trailers  called with the trailing metadata of a reply
        name         of the method, for spans; empty for none
        """
        with self._attempt(name, request_id) as attempt:
            call = method(attempt.channel())
            metadata = attempt.metadata
            if on_trailers is None:
                attempt.reply = call(request, timeout=timeout_s, metadata=metadata)
            else:
                attempt.reply, ended = call.with_call(request, timeout=timeout_s, metadata=metadata)
                on_trailers(ended.trailing_metadata() or ())
        reply: Reply | GradwireError = attempt.reply
        return reply


class AsyncUnary(_UnaryCalls[AsyncChannel]):
    """Unary calls of an AsyncClient."""

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
        """Call once, as Unary.ask() does."""
        with self._attempt(name, request_id) as attempt:
            call = method(attempt.channel())(request, timeout=timeout_s, metadata=attempt.metadata)
            attempt.reply = await call
            if on_trailers is not None:
                on_trailers(await call.trailing_metadata())
        reply: Reply | GradwireError = attempt.reply
        return reply
