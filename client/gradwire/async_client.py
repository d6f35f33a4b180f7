"""The client for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from numpy.typing import NDArray

from gradwire import health, ops, v1
from gradwire._calls import Evaluation, UnaryCall
from gradwire._channel import AsyncLink, PerProcess, from_rpc_error
from gradwire._options import (
    CHUNK_BYTES,
    RETRY,
    STREAM_THRESHOLD_BYTES,
    TIMEOUT_S,
    Options,
)
from gradwire.errors import CallCancelledError, GradwireError
from gradwire.retries import RetryPolicy

Request = TypeVar("Request")
Reply = TypeVar("Reply")


class AsyncClient:
    """A connection to one gradwire server, for one event loop: that in which it is first used.

    The arguments and errors are those of Client; any number of tasks may use it. Another event loop
    is refused with RuntimeError. Cancelling a task ends its call at once.
    """

    def __init__(
        self,
        target: str,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        timeout_s: float = TIMEOUT_S,
        stream_threshold_bytes: int = STREAM_THRESHOLD_BYTES,
        chunk_bytes: int = CHUNK_BYTES,
        retry: RetryPolicy = RETRY,
    ) -> None:
        self._options = Options(
            target=target,
            credentials=credentials,
            timeout_s=timeout_s,
            stream_threshold_bytes=stream_threshold_bytes,
            chunk_bytes=chunk_bytes,
            retry=retry,
        )
        self._links = PerProcess(lambda: AsyncLink(self._options))

    async def evaluate(
        self,
        op: ops.Operator,
        array: object,
        *,
        output_shape: Sequence[int] | None = None,
        out: NDArray[Any] | None = None,
        timeout_s: float | None = None,
        on_progress: Callable[[int, int], object] | None = None,
    ) -> NDArray[Any]:
        """Return the operator applied to an array, as Client.evaluate does.

        on_progress is called in the event loop's thread. array and out belong to the call until
        this returns.
        """
        evaluation = Evaluation(
            op,
            array,
            output_shape=output_shape,
            out=out,
            timeout_s=timeout_s,
            on_progress=on_progress,
            options=self._options,
            link=self._link().blocking,
        )
        while (error := await self._try(evaluation)) is not None:
            await self._pause(error, evaluation.recover)
        return evaluation.result()

    async def operators(self) -> tuple[v1.OperatorInfo, ...]:
        """Return what the server tells of each of its operators."""
        stub = self._link().stub
        return tuple((await self._call(stub.ListOperators, v1.ListOperatorsRequest())).operators)

    async def server_info(self) -> v1.GetServerInfoResponse:
        """Return the server's version, backend and limits."""
        return await self._call(self._link().stub.GetServerInfo, v1.GetServerInfoRequest())

    async def wait_ready(self, timeout_s: float = 30.0) -> None:
        """Wait until the server serves; raise UnavailableError if it does not in time."""
        check: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        check = self._link().channel.unary_unary(health.METHOD)
        patience = health.Patience(timeout_s)
        while True:
            reply = await self._ask(check, health.check_request(), timeout_s=patience.check_s)
            pause_s = patience.pause_s(reply)
            if pause_s is None:
                return
            await asyncio.sleep(pause_s)

    async def close(self) -> None:
        """Close the connection; calls of other tasks end with CallCancelledError."""
        link = self._links.close()
        if link is not None:
            await link.channel.close()
            await asyncio.to_thread(link.blocking.close)

    def _link(self) -> AsyncLink:
        link = self._links.get()
        if link.loop is not asyncio.get_running_loop():
            raise RuntimeError(
                "this AsyncClient belongs to another event loop; make one for each loop"
            )
        return link

    async def _try(self, evaluation: Evaluation) -> GradwireError | None:
        link = self._link()
        if evaluation.streams:
            return await self._try_stream(evaluation, link)
        request = evaluation.unary_request()
        reply = await self._ask(
            link.evaluate,
            request,
            timeout_s=evaluation.left_s,
            request_id=evaluation.request_id,
        )
        if isinstance(reply, GradwireError):
            return reply
        evaluation.take(reply)
        return None

    async def _try_stream(self, evaluation: Evaluation, link: AsyncLink) -> GradwireError | None:
        ended = asyncio.Event()
        stream = evaluation.start_stream(link.blocking, on_end=lambda: link.in_loop(ended.set))
        try:
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(evaluation.next_look_s()):
                        await ended.wait()
                        break
                evaluation.look()
        except BaseException:
            stream.cancel()
            await ended.wait()
            raise
        return stream.outcome()

    async def _call(
        self, method: grpc.aio.UnaryUnaryMultiCallable[Request, Reply], request: Request
    ) -> Reply:
        call = UnaryCall(self._options, self._link().blocking)
        while True:
            reply = await self._ask(method, request, timeout_s=call.left_s)
            if not isinstance(reply, GradwireError):
                call.succeed()
                return reply
            await self._pause(reply, call.recover)

    async def _ask(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[Request, Reply],
        request: Request,
        *,
        timeout_s: float,
        request_id: str | None = None,
    ) -> Reply | GradwireError:
        try:
            return await method(request, timeout=timeout_s)
        except grpc.RpcError as error:
            return from_rpc_error(error, request_id=request_id)
        except grpc.aio.UsageError as error:
            # What grpc says of a channel that is closed.
            return CallCancelledError(str(error), request_id=request_id)
        except asyncio.CancelledError:
            # grpc cancels waiting tasks when their channel is closed; nobody meant the task itself.
            task = asyncio.current_task()
            if self._links.closed and task is not None and not task.cancelling():
                return CallCancelledError("the client was closed", request_id=request_id)
            raise

    async def _pause(self, error: GradwireError, recover: Callable[[GradwireError], float]) -> None:
        if self._links.closed:
            raise error
        await asyncio.sleep(recover(error))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __reduce__(self) -> tuple[Callable[..., AsyncClient], tuple[Any, ...]]:
        return _revive, (type(self), self._options.as_arguments())


def _revive(kind: type[AsyncClient], arguments: dict[str, Any]) -> AsyncClient:
    return kind(**arguments)
