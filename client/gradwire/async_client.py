"""The client for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, overload

import grpc
from numpy.typing import NDArray

from gradwire import health, ops, v1
from gradwire._core.batch import ItemBatch
from gradwire._core.evaluation import Evaluation, UnaryTries
from gradwire._core.options import (
    CHUNK_BYTES,
    CONNECTIONS,
    RETRY,
    SPLIT_THRESHOLD_BYTES,
    STREAM_THRESHOLD_BYTES,
    TIMEOUT_S,
    Options,
    read_target,
)
from gradwire._core.reports import (
    OperatorInfo,
    ServerInfo,
    Timing,
    read_operators,
    read_server_info,
)
from gradwire._core.retries import RetryPolicy
from gradwire._transport.async_batch import AsyncResults
from gradwire._transport.async_channels import AsyncChannel, AsyncClientChannels
from gradwire._transport.channels import PerProcess, check_credentials
from gradwire._transport.diagnosis import explained
from gradwire._transport.streams import start_stream
from gradwire._transport.tracing import Context, call_span, method_of
from gradwire._transport.unary import AsyncMethod, AsyncUnary, Reply, Request
from gradwire._wire.arguments import Item
from gradwire.errors import GradwireError, UnavailableError


class AsyncClient:
    """Connections to a gradwire server, for one event loop: that in which it is first used.

    The arguments and errors are those of Client; any number of tasks may use it. Another event loop
    is refused with RuntimeError. Cancelling a task ends its call at once. At most 64 streams are
    open at once; calls beyond wait in the order in which they came, which counts against timeout_s.
    """

    def __init__(
        self,
        target: str | Sequence[str] | None = None,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        connections: int = CONNECTIONS,
        timeout_s: float = TIMEOUT_S,
        stream_threshold_bytes: int = STREAM_THRESHOLD_BYTES,
        chunk_bytes: int = CHUNK_BYTES,
        retry: RetryPolicy = RETRY,
        split: bool = False,
        split_threshold_bytes: int = SPLIT_THRESHOLD_BYTES,
        token: str | None = None,
        token_file: str | None = None,
        connect_timeout_s: float | None = None,
    ) -> None:
        self._options = Options(
            target=read_target(target),
            credentials=check_credentials(credentials),
            connections=connections,
            timeout_s=timeout_s,
            stream_threshold_bytes=stream_threshold_bytes,
            chunk_bytes=chunk_bytes,
            retry=retry,
            split=split,
            split_threshold_bytes=split_threshold_bytes,
            token=token,
            token_file=token_file,
            connect_timeout_s=connect_timeout_s,
        )
        self._links = PerProcess(lambda: AsyncClientChannels(self._options))
        self._target = ",".join(self._options.target)
        self._unary = AsyncUnary(
            self._target,
            lambda: self._link().unary,
            bearer=self._options.bearer,
            closed=lambda: self._links.closed,
        )

    async def evaluate(
        self,
        op: ops.Operator,
        array: object,
        *,
        output_shape: Sequence[int] | None = None,
        out: NDArray[Any] | None = None,
        timeout_s: float | None = None,
        on_progress: Callable[[int, int], object] | None = None,
        on_timing: Callable[[Timing], object] | None = None,
    ) -> NDArray[Any]:
        """Return the operator applied to an array, as Client.evaluate does.

        on_progress and on_timing are called in the event loop's thread. array and out belong to the
        call until this returns.
        """
        link = self._link().blocking
        evaluation = Evaluation(
            op,
            array,
            output_shape=output_shape,
            out=out,
            timeout_s=timeout_s,
            on_progress=on_progress,
            on_timing=on_timing,
            options=self._options,
            budget=link.budget,
            servers=link.shares.sound_targets,
        )
        while not evaluation.streams:
            error = await self._try_unary(evaluation)
            if error is None:
                return evaluation.result()
            await self._pause(error, evaluation.recover)
        await self._run_streams(evaluation)
        return evaluation.result()

    @overload
    def evaluate_many(
        self,
        items: Iterable[Item | tuple[Any, ...]] | AsyncIterable[Item | tuple[Any, ...]],
        *,
        ordered: Literal[True] = True,
        max_in_flight: int = 64,
        timeout_s: float | None = None,
    ) -> AsyncResults[NDArray[Any]]: ...

    @overload
    def evaluate_many(
        self,
        items: Iterable[Item | tuple[Any, ...]] | AsyncIterable[Item | tuple[Any, ...]],
        *,
        ordered: Literal[False],
        max_in_flight: int = 64,
        timeout_s: float | None = None,
    ) -> AsyncResults[tuple[int, NDArray[Any]]]: ...

    def evaluate_many(
        self,
        items: Iterable[Item | tuple[Any, ...]] | AsyncIterable[Item | tuple[Any, ...]],
        *,
        ordered: bool = True,
        max_in_flight: int = 64,
        timeout_s: float | None = None,
    ) -> AsyncResults[Any]:
        """Evaluate many items over one stream, as Client.evaluate_many does.

        Not itself awaited: it returns an asynchronous iterator. items may be asynchronous too; they
        are taken by a task of this event loop, as soon as there is room. So those that come
        asynchronously may wait for earlier results; what blocks the thread blocks the loop.
        """
        exchange = ItemBatch(
            options=self._options,
            budget=self._link().blocking.budget,
            ordered=ordered,
            max_in_flight=max_in_flight,
            timeout_s=timeout_s,
        )
        return AsyncResults(
            items,
            exchange,
            self._links,
            ordered=ordered,
            evaluate=lambda item: self.evaluate(
                item.op,
                item.array,
                output_shape=item.output_shape,
                out=item.out,
                timeout_s=timeout_s,
            ),
        )

    async def operators(self) -> tuple[OperatorInfo, ...]:
        """Return the server's description of each operator."""
        request = v1.ListOperatorsRequest()
        return read_operators(await self._call(lambda line: line.stub.ListOperators, request))

    async def server_info(self) -> ServerInfo:
        """Return the server's version, backend and limits."""
        request = v1.GetServerInfoRequest()
        return read_server_info(await self._call(lambda line: line.stub.GetServerInfo, request))

    async def wait_ready(self, timeout_s: float = 30.0) -> None:
        """Wait until the server serves; raise UnavailableError if it does not in time.

        Also where waiting does not help: it speaks plain text and TLS was meant, or its certificate
        is of no authority trusted here.
        """

        def check(line: AsyncChannel) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
            return line.channel.unary_unary(health.METHOD)

        patience = health.Patience(timeout_s, one_server=self._options.one_server)
        while True:
            reply = await self._unary.ask(check, health.check_request(), timeout_s=patience.check_s)
            try:
                pause_s = patience.pause_s(reply)
            except UnavailableError as error:
                raise await asyncio.to_thread(explained, error, self._options) from error.__cause__
            if pause_s is None:
                return
            await asyncio.sleep(pause_s)

    async def close(self) -> None:
        """Close the connection; calls of other tasks end with CallCancelledError."""
        link = self._links.close()
        if link is not None:
            await link.close()

    def _link(self) -> AsyncClientChannels:
        link = self._links.get()
        if link.loop is not asyncio.get_running_loop():
            raise RuntimeError(
                "this AsyncClient belongs to another event loop; make one for each loop"
            )
        return link

    async def _try_unary(self, evaluation: Evaluation) -> GradwireError | None:
        await self._link().known()
        reply = await self._unary.ask(
            lambda line: line.evaluate,
            evaluation.unary_request(),
            timeout_s=evaluation.left_s,
            request_id=evaluation.request_id,
            on_trailers=evaluation.on_trailers,
            name="Evaluate",
        )
        if isinstance(reply, GradwireError):
            return reply
        evaluation.take(reply)
        return None

    async def _run_streams(self, evaluation: Evaluation) -> None:
        """Try by streams until there is a result; they count as open between tries too."""
        link = self._link()
        await link.known()
        left_s = None if math.isinf(evaluation.left_s) else evaluation.left_s
        async with link.streams.admitted(
            evaluation.stream_count, timeout_s=left_s, too_late=evaluation.too_late
        ):
            while (failure := await self._try_stream(evaluation, link)) is not None:
                await self._pause(failure, evaluation.recover)

    async def _try_stream(
        self, evaluation: Evaluation, link: AsyncClientChannels
    ) -> GradwireError | None:
        with call_span("EvaluateStream", target=self._target, bearer=self._options.bearer) as span:
            error = await self._run_stream(evaluation, link, metadata=span.metadata)
            span.note(error)
        return error

    async def _run_stream(
        self, evaluation: Evaluation, link: AsyncClientChannels, *, metadata: Context | None
    ) -> GradwireError | None:
        ended = asyncio.Event()
        stream = start_stream(
            evaluation,
            link.blocking,
            metadata=metadata,
            on_end=lambda: link.in_loop(ended.set),
            elsewhere=link.streams.start,
        )
        link.streams.running.add(stream)
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

    async def _call(self, method: AsyncMethod[Request, Reply], request: Request) -> Reply:
        link = self._link()
        await link.known()
        call = UnaryTries(self._options, link.blocking.budget)
        name = method_of(request)
        while True:
            reply = await self._unary.ask(method, request, timeout_s=call.left_s, name=name)
            if not isinstance(reply, GradwireError):
                call.succeed()
                return reply
            await self._pause(reply, call.recover)

    async def _pause(self, error: GradwireError, recover: Callable[[GradwireError], float]) -> None:
        if self._links.closed:
            raise error
        try:
            pause_s = recover(error)
        except UnavailableError as last:
            raise await asyncio.to_thread(explained, last, self._options) from last.__cause__
        await asyncio.sleep(pause_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __reduce__(self) -> tuple[Callable[[], Self], tuple[()]]:
        return partial(type(self), **self._options.as_arguments()), ()
