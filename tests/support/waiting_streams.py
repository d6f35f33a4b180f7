"""Streams that are open and wait for the rest of their input."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc

from gradwire import v1
from support.raw_calls import (
    PATIENCE_S,
    PUBLISHED_RESULT,
    RawClient,
    chunk,
    opening,
    published_request,
)


class WaitingStream:
    """A stream of the published request that has its answer to `open`, and sends its data later.

    early   bytes of the data that are sent at once
    call    as grpc has it
    opened  what came first
    """

    def __init__(
        self, client: RawClient, request: v1.EvaluateRequest | None = None, *, early: int = 0
    ) -> None:
        self._early = early
        self._request = published_request() if request is None else request
        self._go = threading.Event()
        self.call = client.start(self._messages())
        self.opened = next(self.call)

    def _messages(self) -> Iterator[v1.EvaluateStreamRequest]:
        yield opening(self._request)
        data = self._request.data
        if self._early:
            yield chunk(0, data[: self._early])
        self._go.wait(PATIENCE_S)
        yield chunk(self._early, data[self._early :])

    def send(self) -> None:
        """Send the data; nothing comes of it where the call has ended."""
        self._go.set()

    def finish(self) -> None:
        self.send()
        assert b"".join(each.chunk.data for each in self.call) == PUBLISHED_RESULT
        assert self.call.code() is grpc.StatusCode.OK

    def cancel(self) -> None:
        self.call.cancel()
        self.send()
