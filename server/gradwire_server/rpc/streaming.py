"""Common parts of the streaming RPCs: tasks, watch and final error.

The tasks that read and write run as long as the call: cancelling a read or a write would leave it
pending in grpc. After the stream has failed they discard their input.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import grpc
from google.protobuf.message import Message

from gradwire_server.errors import DrainingError, StalledError
from gradwire_server.rpc.call_context import ActiveCall, Context, caller_of
from gradwire_server.rpc.service_context import ServiceContext
from gradwire_server.rpc.status_map import EncodedStatus
from gradwire_server.scheduling import tasks

# Time to write the error that ends a stream to a caller that does not read.
_LAST_WORD_S = 5.0
# Time to keep reading from a caller that may not have received the server's last error yet.
_LISTEN_ON_S = 0.2


async def write_last(
    context: Context, message: Message, *, after: asyncio.Task[None] | None = None
) -> bool:
    """Write the error that ends a stream.

    Returns False if the caller does not read it.

    after  task with the last other write, which must not be cancelled: no other could follow it
    """
    try:
        async with asyncio.timeout(_LAST_WORD_S):
            if after is not None:
                await asyncio.wait({after})
            await context.write(message.SerializeToString())
    except (TimeoutError, grpc.aio.BaseError, asyncio.InvalidStateError):
        return False
    return True


class ServedStream(ABC):
    """One stream, from its first message to its last.

    METHOD    name of the RPC
    RESPONSE  type of its messages
    RESUME    what a caller does when the server stops
    """

    METHOD: ClassVar[str]
    RESPONSE: ClassVar[Callable[..., Message]]
    RESUME: ClassVar[str]

    def __init__(self, service: ServiceContext, context: Context) -> None:
        self._call = ActiveCall(self.METHOD, context, service.active)
        self._context = context
        self._service = service
        self._clock = asyncio.get_running_loop().time
        # Time of the latest message or step, and the number of steps that are computed now.
        self._progress = self._clock()
        self._busy = 0
        self._failed = False
        self._reader: asyncio.Task[None] | None = None
        self._writer: asyncio.Task[None] | None = None

    @classmethod
    async def serve(cls, service: ServiceContext, _requests: object, context: Context) -> None:
        """Handle a call."""
        await cls(service, context).answer()

    async def answer(self) -> None:
        """Serve the stream to its end."""
        try:
            await self._call.answer(self._run, in_band=self._send_error)
        finally:
            await self._close()

    @abstractmethod
    async def _read(self) -> None:
        """Read as long as the call lasts."""

    async def _write(self) -> None:  # noqa: B027 - the task that reads may write
        """Write as long as the call lasts."""

    async def _evaluate(self) -> None:
        """Do the stream's work; by default, wait for both tasks."""
        await asyncio.wait({task for task in (self._reader, self._writer) if task is not None})

    def _stop(self) -> None:  # noqa: B027 - tasks may see it by themselves
        """Tell reading and writing tasks that the stream has failed."""

    async def _run(self) -> None:
        """Serve the stream if it has room, until it stalls."""
        with self._service.admission.stream(caller_of(self._context)):
            self._reader = asyncio.ensure_future(self._read())
            self._writer = asyncio.ensure_future(self._write())
            # A local variable for both tasks would keep their tracebacks and buffers alive.
            await tasks.watched(
                self._evaluate(), self._watch(), beside=(self._reader, self._writer)
            )

    @classmethod
    def error_message(cls, failed: EncodedStatus) -> Message:
        """Return the last message of a stream that fails."""
        return cls.RESPONSE(error=failed.in_band())

    async def _send_error(self, failed: EncodedStatus) -> None:
        """Send an error as the last message.

        It is not sent if the caller does not read.
        """
        self._failed = True
        self._stop()
        message = self.error_message(failed)
        is_read = await write_last(self._context, message, after=self._writer)
        if is_read and self._service.draining.is_set() and self._reader is not None:
            # Closing a connection with unread bytes resets it, and a reset discards data that the
            # caller has not read yet: the error.
            await asyncio.wait({self._reader}, timeout=_LISTEN_ON_S)

    async def _close(self, *others: asyncio.Task[None]) -> None:
        """End the tasks that read and write, and others."""
        left = [task for task in (self._reader, self._writer, *others) if task is not None]
        # Otherwise the traceback of a failed task refers to itself and keeps all buffers alive.
        self._reader = self._writer = None
        await tasks.end(left)

    async def _watch(self) -> None:
        timeout = self._service.settings.stall_timeout_s
        while True:
            idle = 0.0 if self._busy else self._clock() - self._progress
            if idle >= timeout:
                raise StalledError(
                    f"no progress for {timeout} s (GRADWIRE_STALL_TIMEOUT_S)", timeout_s=timeout
                )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout - idle):
                    await self._service.draining.wait()
                raise DrainingError(f"the server is shutting down; {self.RESUME}")
