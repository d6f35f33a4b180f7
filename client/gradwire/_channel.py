"""Channels: how they are set up, that each process has its own, and what their errors mean."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakSet

import grpc

from gradwire import v1
from gradwire._async_streams import AsyncStreams
from gradwire._options import Options
from gradwire._pool import Pool
from gradwire._resolver import Replicas
from gradwire._statuses import STATUS_DETAILS_KEY, from_status
from gradwire._targets import channel_targets, goes_round, is_list, is_local
from gradwire._version import VERSION
from gradwire.errors import GradwireError
from gradwire.retries import RetryBudget

T = TypeVar("T")

# A reply of Evaluate and a chunk are far smaller; a strange server may not fill the memory.
_MAX_MESSAGE_BYTES = 64 << 20
_CLOSING_S = 1.0
# After so long without a byte a server is asked whether it is there, and has so long to answer.
# gradwire's servers allow a question every 10 s.
# Over a slow line the answer waits behind the data that are on their way.
_KEEPALIVE_MS = 20_000
_KEEPALIVE_TIMEOUT_MS = 20_000
_EVALUATE_METHOD = "/gradwire.v1.GradientService/Evaluate"
_STREAM_METHOD = "/gradwire.v1.GradientService/EvaluateStream"
_USER_AGENT = f"gradwire/{VERSION}"

# grpc imports it with the first channel of a process, for which the first call would wait.
with contextlib.suppress(ImportError):
    import_module("grpc._channel")


def channel_options(
    target: str, *, connect_timeout_s: float | None = None
) -> list[tuple[str, Any]]:
    """Return the options of a channel.

    connect_timeout_s  most that one attempt to connect may take; None for grpc's 20 s
    """
    options: list[tuple[str, Any]] = [
        ("grpc.primary_user_agent", _USER_AGENT),
        ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", -1),
        # Retries are this package's own: they resume streams, keep a budget, heed RetryInfo, and
        # may take another connection. Nothing is ever sent twice at once.
        ("grpc.enable_retries", 0),
        # Connections of a parent process are dead in its forked child, and may not be found there;
        # and channels to one server would share a connection.
        ("grpc.use_local_subchannel_pool", 1),
        # While a channel waits to reconnect, calls fail at once: retries pause longer than that.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # A call whose server vanishes without a word ends; connections without calls are let be.
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        # Without this one it is a minute, whatever that one says: measured with grpcio 1.85.
        ("grpc.http2.ping_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ]
    if connect_timeout_s is not None:
        attempt_ms = min(20_000, max(1, round(connect_timeout_s * 1000)))
        options.append(("grpc.min_reconnect_backoff_ms", attempt_ms))
    if is_local(target):
        # A token would be shown to a proxy, and none leads to this machine itself.
        options.append(("grpc.enable_http_proxy", 0))
    if goes_round(target):
        options.append(("grpc.lb_policy_name", "round_robin"))
    scheme, _, several = target.partition(":")
    if scheme in {"ipv4", "ipv6"}:
        options.append(("grpc.default_authority", several.partition(",")[0]))
    return options


def open_channel(
    target: str,
    credentials: grpc.ChannelCredentials | None,
    *,
    connect_timeout_s: float | None = None,
) -> grpc.Channel:
    """Open a channel; it connects with the first call."""
    options = channel_options(target, connect_timeout_s=connect_timeout_s)
    if credentials is None:
        return grpc.insecure_channel(target, options=options)
    return grpc.secure_channel(target, credentials, options=options)


def open_aio_channel(
    target: str,
    credentials: grpc.ChannelCredentials | None,
    *,
    connect_timeout_s: float | None = None,
) -> grpc.aio.Channel:
    """Open a channel that belongs to the running event loop."""
    options = channel_options(target, connect_timeout_s=connect_timeout_s)
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, credentials, options=options)


class BlockingChannel:
    """One channel and what is called on it.

    evaluate  Evaluate on serialized messages
    stream    EvaluateStream likewise
    """

    def __init__(self, target: str, options: Options) -> None:
        self.channel = open_channel(
            target, options.credentials, connect_timeout_s=options.connect_timeout_s
        )
        self.stub = v1.GradientServiceStub(self.channel)
        self.evaluate: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(
            _EVALUATE_METHOD
        )
        self.stream: grpc.StreamStreamMultiCallable[bytes, bytes] = self.channel.stream_stream(
            _STREAM_METHOD
        )


class AsyncChannel:
    """One channel of asyncio and what is called on it.

    evaluate  Evaluate on serialized messages
    """

    def __init__(self, target: str, options: Options) -> None:
        self.channel = open_aio_channel(
            target, options.credentials, connect_timeout_s=options.connect_timeout_s
        )
        self.stub = v1.GradientServiceStub(self.channel)
        self.evaluate: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(
            _EVALUATE_METHOD
        )


def _pool(
    options: Options,
    kind: Callable[[str, Options], T],
    targets: Sequence[str] | None = None,
    *,
    close_one: Callable[[T], object],
    replicas: Replicas | None,
) -> Pool[T]:
    secure = options.credentials is not None
    if targets is None:
        targets = () if replicas is not None else channel_targets(options.target, secure=secure)
    return Pool(
        targets,
        lambda target: kind(target, options),
        connections=options.connections,
        close_one=close_one,
        replicas=replicas,
    )


def _start_closing(line: BlockingChannel) -> threading.Thread:
    closing = threading.Thread(target=line.channel.close, name="gradwire-closing", daemon=True)
    closing.start()
    return closing


class Link:
    """A client's connections in one process, and what it has learned of its servers.

    target           the addresses, with commas between
    unary            for calls of one message each way
    streams          for streams: what is small need not wait behind what is large in one connection
    shares           for streams that share an evaluation: each target has connections of its own
    bearer           shows a token, if there is one
    max_chunk_bytes  most bytes the server takes in one chunk; None before the first stream
    replicas         where the target is a list of them; None otherwise

    waits  whether to wait here for the first list
    """

    def __init__(self, options: Options, *, waits: bool = True) -> None:
        self.target = ",".join(options.target)
        self.bearer = options.bearer
        self.replicas = Replicas(self.target) if is_list(self.target) else None

        def pool(targets: Sequence[str] | None = None) -> Pool[BlockingChannel]:
            return _pool(
                options, BlockingChannel, targets, close_one=_start_closing, replicas=self.replicas
            )

        self.unary = pool()
        self.streams = self.unary if options.connections == 1 else pool()
        self.shares = self.streams
        if self.replicas is None and self.streams.targets != len(options.target):
            self.shares = pool(options.target)
        self.budget = RetryBudget()
        self.max_chunk_bytes: int | None = None
        if waits and self.replicas is not None:
            self.replicas.wait()

    def close(self) -> None:
        """Close the channels and cancel their calls."""
        # grpc waits for a peer to read what is on its way to it: that may hold up a thread.
        lines = {line for pool in (self.unary, self.streams, self.shares) for line in pool.close()}
        threads = [_start_closing(line) for line in lines]
        until = time.monotonic() + _CLOSING_S
        for closing in threads:
            closing.join(max(0.0, until - time.monotonic()))


class AsyncLink:
    """The connections of a client of asyncio in one process.

    loop      the event loop they belong to
    unary     for calls of one message each way
    blocking  carries streams
    streams   bounds and starts those of evaluate()
    closing   events that are set when it is closed
    """

    def __init__(self, options: Options) -> None:
        self.loop = asyncio.get_running_loop()
        self.blocking = Link(options, waits=False)
        self.streams = AsyncStreams()
        self.unary = _pool(
            options, AsyncChannel, close_one=self._start_closing, replicas=self.blocking.replicas
        )
        self.closing: WeakSet[asyncio.Event] = WeakSet()
        self._closing_lines: set[asyncio.Future[None]] = set()

    async def known(self) -> None:
        """Wait until it is known where the servers are, or that this cannot be told."""
        replicas = self.blocking.replicas
        if replicas is not None and not replicas.addresses:
            await asyncio.to_thread(replicas.wait)

    async def close(self) -> None:
        """Close the channels and cancel their calls."""
        for event in self.closing:
            event.set()
        self.streams.close()
        for line in self.unary.close():
            await line.channel.close()
        await asyncio.to_thread(self.blocking.close)

    def _start_closing(self, line: AsyncChannel) -> None:
        def start() -> None:
            closing = asyncio.ensure_future(line.channel.close())
            self._closing_lines.add(closing)
            closing.add_done_callback(self._closing_lines.discard)

        self.in_loop(start)

    def in_loop(self, action: Callable[[], None]) -> None:
        """Do something in the loop's thread, from another one."""
        with contextlib.suppress(RuntimeError):
            # A loop that is closed waits for nothing any more.
            self.loop.call_soon_threadsafe(action)


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
