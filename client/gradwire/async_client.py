"""The client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable
from typing import Any, Literal, Self, overload

import numpy as np
from numpy.typing import DTypeLike

from gradwire import ops
from gradwire._core.batch import ItemBatch
from gradwire._core.reports import OperatorInfo, ServerInfo, Timing
from gradwire._transport.aio import AsyncClientChannels, AsyncResults
from gradwire._transport.channels import BaseClient, PerProcess
from gradwire._transport.streams import StreamRun
from gradwire._wire.requests import ItemLike
from gradwire.tensors import Array, Sizes


class AsyncClient(BaseClient):
    """Connections to a gradwire server, for one event loop.

    The arguments and errors are those of Client; any number of tasks may use it. It belongs to the
    event loop in which it is first used, and raises RuntimeError in another one. Cancelling a task
    ends its call at once. At most 64 streams are open at once; further calls wait in the order in
    which they came, and waiting counts against timeout_s.
    """

    def _prepare(self) -> None:
        options = self._options
        self._per_process = PerProcess(lambda: AsyncClientChannels(options))

    async def evaluate(
        self,
        op: ops.Operator,
        array: object,
        *,
        output_shape: Sizes | None = None,
        out: Array | None = None,
        timeout_s: float | None = None,
        on_progress: Callable[[int, int], object] | None = None,
        on_timing: Callable[[Timing], object] | None = None,
    ) -> Array:
        """Return the operator applied to an array, as Client.evaluate does.

        on_progress and on_timing are called in the event loop's thread. array and out belong to the
        call until this returns.
        """
        channels = await self._ready()
        evaluation = channels.blocking.evaluation(
            op=op,
            array=array,
            output_shape=output_shape,
            out=out,
            timeout_s=timeout_s,
            on_progress=on_progress,
            on_timing=on_timing,
        )
        await channels.calls.evaluate(evaluation)
        if evaluation.streams:
            async with channels.admitted(evaluation):
                await StreamRun(evaluation, channels.blocking, channels).run()
        return evaluation.result()

    @overload
    def evaluate_many(
        self,
        items: Iterable[ItemLike] | AsyncIterable[ItemLike],
        *,
        ordered: Literal[True] = True,
        max_in_flight: int = 64,
        timeout_s: float | None = None,
    ) -> AsyncResults[Array]: ...

    @overload
    def evaluate_many(
        self,
        items: Iterable[ItemLike] | AsyncIterable[ItemLike],
        *,
        ordered: Literal[False],
        max_in_flight: int = 64,
        timeout_s: float | None = None,
    ) -> AsyncResults[tuple[int, Array]]: ...

    def evaluate_many(
        self,
        items: Iterable[ItemLike] | AsyncIterable[ItemLike],
        *,
        ordered: bool = True,
        max_in_flight: int = 64,
        timeout_s: float | None = None,
    ) -> AsyncResults[Any]:
        """Evaluate many items over one stream, as Client.evaluate_many does.

        This is no coroutine: it returns an asynchronous iterator. items may be asynchronous too; a
        task of this event loop takes them as soon as there is room. So asynchronous items may wait
        for earlier results; an iterable that blocks the thread blocks the loop.
        """
        batch = ItemBatch(
            self._options, ordered=ordered, max_in_flight=max_in_flight, timeout_s=timeout_s
        )
        return AsyncResults(items, self._channels(), batch)

    async def empty(self, shape: Sizes, dtype: DTypeLike = np.float32) -> Array:
        """Return a new array that evaluate() need not copy, as Client.empty does."""
        shared = self._channels().blocking.shared_memory
        return await asyncio.to_thread(shared.empty, shape, dtype)

    async def operators(self) -> tuple[OperatorInfo, ...]:
        """Return the server's description of each operator."""
        return await (await self._ready()).calls.operators()

    async def server_info(self) -> ServerInfo:
        """Return the server's version, backend and limits."""
        return await (await self._ready()).calls.server_info()

    async def wait_ready(self, timeout_s: float = 30.0) -> None:
        """Wait until the server serves.

        Raises UnavailableError if it does not serve in time, or if waiting does not help: the
        server does not use TLS although the client does, or its certificate is not signed by a
        trusted authority.
        """
        await self._channels().calls.wait_ready(timeout_s)

    async def close(self) -> None:
        """Close the connection; calls of other tasks end with CallCancelledError."""
        channels = self._per_process.close()
        if channels is not None:
            await channels.close()

    def _channels(self) -> AsyncClientChannels:
        channels = self._per_process.get()
        if channels.loop is not asyncio.get_running_loop():
            raise RuntimeError(
                "this AsyncClient belongs to another event loop; make one for each loop"
            )
        return channels

    async def _ready(self) -> AsyncClientChannels:
        channels = self._channels()
        replicas = channels.blocking.replicas
        if replicas is not None and not replicas.addresses:
            # The first list of replicas, or its failure.
            await asyncio.to_thread(replicas.wait)
        return channels

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
