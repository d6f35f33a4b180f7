"""Channels: how they are set up, that each process has its own, and what their errors mean."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast
from weakref import WeakSet

import grpc

from gradwire import v1
from gradwire._options import Options
from gradwire._statuses import STATUS_DETAILS_KEY, from_status
from gradwire.errors import GradwireError
from gradwire.retries import RetryBudget

T = TypeVar("T")

# A reply of Evaluate and a chunk are far smaller; a strange server may not fill the memory.
_MAX_MESSAGE_BYTES = 64 << 20
_CLOSING_S = 1.0
_EVALUATE_METHOD = "/gradwire.v1.GradientService/Evaluate"
_STREAM_METHOD = "/gradwire.v1.GradientService/EvaluateStream"


def channel_options() -> list[tuple[str, Any]]:
    """Return the options of every channel."""
    return [
        ("grpc.primary_user_agent", f"gradwire/{version('gradwire')}"),
        ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", -1),
        # Retries are this package's own: they resume streams and keep a budget.
        ("grpc.enable_retries", 0),
        # Connections of a parent process are dead in its forked child, and may not be found there.
        ("grpc.use_local_subchannel_pool", 1),
        # While a channel waits to reconnect, calls fail at once: retries pause longer than that.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]


def open_channel(target: str, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
    """Open a channel; it connects with the first call."""
    if credentials is None:
        return grpc.insecure_channel(target, options=channel_options())
    return grpc.secure_channel(target, credentials, options=channel_options())


def open_aio_channel(target: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    """Open a channel that belongs to the running event loop."""
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=channel_options())
    return grpc.aio.secure_channel(target, credentials, options=channel_options())


class Link:
    """A client's connection in one process, and what it has learned of its server.

    evaluate         Evaluate on serialized messages
    stream           EvaluateStream likewise
    max_chunk_bytes  most bytes the server takes in one chunk; None before the first stream
    """

    def __init__(self, options: Options) -> None:
        self.channel = open_channel(options.target, options.credentials)
        self.stub = v1.GradientServiceStub(self.channel)
        self.evaluate: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(
            _EVALUATE_METHOD
        )
        self.stream: grpc.StreamStreamMultiCallable[bytes, bytes] = self.channel.stream_stream(
            _STREAM_METHOD
        )
        self.budget = RetryBudget()
        self.max_chunk_bytes: int | None = None

    def close(self) -> None:
        """Close the channel and cancel its calls.

        grpc waits for a peer to read what is on its way to it. One that does not may hold up a
        thread of no importance, but not the caller.
        """
        closing = threading.Thread(target=self.channel.close, name="gradwire-closing", daemon=True)
        closing.start()
        closing.join(_CLOSING_S)


class AsyncLink:
    """The connection of a client of asyncio in one process.

    loop      the event loop it belongs to
    evaluate  Evaluate on serialized messages
    blocking  carries streams
    """

    def __init__(self, options: Options) -> None:
        self.loop = asyncio.get_running_loop()
        self.channel = open_aio_channel(options.target, options.credentials)
        self.stub = v1.GradientServiceStub(self.channel)
        self.evaluate: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(
            _EVALUATE_METHOD
        )
        self.blocking = Link(options)

    def in_loop(self, action: Callable[[], None]) -> None:
        """Do something in the loop's thread, from another one."""
        with contextlib.suppress(RuntimeError):
            # A loop that is closed waits for nothing any more.
            self.loop.call_soon_threadsafe(action)


class PerProcess(Generic[T]):
    """A value made on first use, and made anew in a process forked off.

    Neither locks nor channels of the parent can be used there, nor may channels be closed.
    """

    _all: ClassVar[WeakSet[PerProcess[Any]]] = WeakSet()

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._value: T | None = None
        self._of_parents: list[T] = []
        self.closed = False
        self._all.add(self)

    def get(self) -> T:
        """Return the value; raise RuntimeError after close()."""
        value = self._value
        if value is not None:
            return value
        with self._lock:
            if self.closed:
                raise RuntimeError("the client is closed; make another one")
            if self._value is None:
                self._value = self._make()
            return self._value

    def close(self) -> T | None:
        """Return the value for its owner to close, or None where none is open; allow no other."""
        with self._lock:
            self.closed = True
            value, self._value = self._value, None
            return value

    @classmethod
    def renew(cls) -> None:
        """Forget every value, in a process just forked off."""
        for one in cls._all:
            one._lock = threading.Lock()  # noqa: SLF001 - one's own
            if one._value is not None:  # noqa: SLF001
                one._of_parents.append(one._value)  # noqa: SLF001 - finalizing it would close it
                one._value = None  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=PerProcess.renew)


class _Status(Protocol):
    """What blocking and asyncio calls' errors have in common."""

    def code(self) -> grpc.StatusCode: ...

    def details(self) -> str | None: ...

    def trailing_metadata(self) -> Iterable[tuple[str, str | bytes]] | None: ...


def from_rpc_error(error: grpc.RpcError, *, request_id: str | None = None) -> GradwireError:
    """Turn what grpc raised into an error of this package."""
    status = cast("_Status", error)
    details = None
    for key, value in status.trailing_metadata() or ():
        if key == STATUS_DETAILS_KEY and isinstance(value, bytes):
            details = value
    code = status.code()
    return from_status(code.name, status.details() or "", details, request_id=request_id)
