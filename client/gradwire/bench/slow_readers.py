"""A caller who reads the result of a stream slowly, so that flow control holds the server up."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from numpy.typing import NDArray

from gradwire._channel import Link
from gradwire._job import Job, prepare
from gradwire._options import CHUNK_BYTES
from gradwire._streams import StreamTry
from gradwire.async_client import AsyncClient
from gradwire.bench.problems import Problem
from gradwire.chunks import Transfer


async def evaluate_slowly(
    client: AsyncClient,
    problem: Problem,
    array: NDArray[Any],
    *,
    pause_s: float,
    timeout_s: float,
) -> NDArray[Any]:
    """Evaluate by one try of a stream, with a pause before each chunk is taken."""
    job = prepare(problem.operator, array, output_shape=problem.received, out=None)
    transfer = _SlowTransfer(job, pause_s)
    link = link_of(client)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        loop.call_soon_threadsafe(ended.set)

    stream = StreamTry(
        link,
        transfer,
        request_id=job.request_id,
        chunk_bytes=CHUNK_BYTES,
        eager=True,
        timeout_s=timeout_s,
        metadata=None if link.bearer is None else link.bearer.metadata(),
        on_end=end,
    )
    stream.start()
    try:
        await ended.wait()
    except BaseException:
        transfer.hurry()
        stream.cancel()
        await ended.wait()
        raise
    if (error := stream.outcome()) is not None:
        raise error
    if transfer.result is None:
        raise AssertionError("a try without a result fails")
    return transfer.result


def link_of(client: AsyncClient) -> Link:
    """Return the connections of a client that carry streams."""
    return client._link().blocking  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


class _SlowTransfer(Transfer):
    """Takes a chunk only after a pause; grpc reads no further meanwhile."""

    def __init__(self, job: Job, pause_s: float) -> None:
        super().__init__(job, chunk_bytes=CHUNK_BYTES)
        self._pause_s = pause_s

    def hurry(self) -> None:
        """Pause no more."""
        self._pause_s = 0.0

    def store(self, offset: int, data: bytes | memoryview) -> None:
        time.sleep(self._pause_s)
        super().store(offset, data)
