"""Channels of a client: options, pools per process, and conversion of their errors."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast
from weakref import WeakSet

import grpc

from gradwire import v1
from gradwire._core.options import Options, channel_targets, goes_round, is_list, is_local
from gradwire._core.retries import RetryBudget
from gradwire._transport.pool import Pool
from gradwire._transport.replicas import Replicas
from gradwire._wire.environment import VERSION
from gradwire._wire.statuses import STATUS_DETAILS_KEY, from_status
from gradwire.errors import GradwireError, InvalidRequestError

T = TypeVar("T")

# Far above a reply of Evaluate or a chunk; a foreign server must not fill the memory.
_MAX_MESSAGE_BYTES = 64 << 20
_CLOSING_S = 1.0
# Milliseconds without a byte before a ping, and until its answer, which on a slow network waits
# behind data. gradwire's servers allow a ping every 10 s.
_KEEPALIVE_MS = 20_000
_KEEPALIVE_TIMEOUT_MS = 20_000
EVALUATE_METHOD = "/gradwire.v1.GradientService/Evaluate"
_STREAM_METHOD = "/gradwire.v1.GradientService/EvaluateStream"
_USER_AGENT = f"gradwire/{VERSION}"

# grpc imports it for the first channel of a process, which would delay the first call.
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
        # Calls fail at once while a channel waits to reconnect; retries pause longer than that.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # Ends calls whose server vanishes; connections without calls are not pinged.
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        # Without it the timeout is a minute regardless: measured with grpcio 1.85.
        ("grpc.http2.ping_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ]
    if connect_timeout_s is not None:
        attempt_ms = min(20_000, max(1, round(connect_timeout_s * 1000)))
        options.append(("grpc.min_reconnect_backoff_ms", attempt_ms))
    if is_local(target):
        # A proxy would see the token, and none leads to this machine.
        options.append(("grpc.enable_http_proxy", 0))
    if goes_round(target):
        options.append(("grpc.lb_policy_name", "round_robin"))
    scheme, _, several = target.partition(":")
    if scheme in {"ipv4", "ipv6"}:
        options.append(("grpc.default_authority", several.partition(",")[0]))
    return options


def check_credentials(value: object) -> grpc.ChannelCredentials | None:
    """Return a channel's credentials or None; raise InvalidRequestError for anything else."""
    if value is not None and not isinstance(value, grpc.ChannelCredentials):
        # The value may be a secret, so only its type is named.
        raise InvalidRequestError.of(
            "credentials",
            f"is of type {type(value).__name__}; give what grpc.ssl_channel_credentials() returns, "
            "or None for plain text",
        )
    return value


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


class BlockingChannel:
    """One channel and its callables.

    evaluate  Evaluate on serialized messages
    stream    EvaluateStream likewise
    """

    def __init__(self, target: str, options: Options) -> None:
        self.channel = open_channel(
            target, options.credentials, connect_timeout_s=options.connect_timeout_s
        )
        self.stub = v1.GradientServiceStub(self.channel)
        self.evaluate: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(
            EVALUATE_METHOD
        )
        self.stream: grpc.StreamStreamMultiCallable[bytes, bytes] = self.channel.stream_stream(
            _STREAM_METHOD
        )


def channel_pool(
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


class ClientChannels:
    """Channels of a client in one process, and facts learned about its servers.

    target           the addresses, with commas between
    unary            for calls of one message each way
    streams          for streams, apart from unary calls, which would wait behind large messages
    shares           for streams that share an evaluation: each target has connections of its own
    bearer           token to send, if any
    max_chunk_bytes  most bytes the server takes in one chunk; None before the first stream
    replicas         where the target is a list of them; None otherwise

    waits  whether to wait here for the first list
    """

    def __init__(self, options: Options, *, waits: bool = True) -> None:
        self.target = ",".join(options.target)
        self.bearer = options.bearer
        self.replicas = Replicas(self.target) if is_list(self.target) else None

        def pool(targets: Sequence[str] | None = None) -> Pool[BlockingChannel]:
            return channel_pool(
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
        # Closing waits until the peer has read outgoing data, so threads do it.
        lines = {line for pool in (self.unary, self.streams, self.shares) for line in pool.close()}
        threads = [_start_closing(line) for line in lines]
        until = time.monotonic() + _CLOSING_S
        for closing in threads:
            closing.join(max(0.0, until - time.monotonic()))


class _Status(Protocol):
    """Common interface of the errors of grpc and grpc.aio."""

    def code(self) -> grpc.StatusCode: ...

    def details(self) -> str | None: ...

    def trailing_metadata(self) -> Iterable[tuple[str, str | bytes]] | None: ...


def from_rpc_error(error: grpc.RpcError, *, request_id: str | None = None) -> GradwireError:
    """Convert an error of grpc to one of this package."""
    status = cast("_Status", error)
    details = None
    for key, value in status.trailing_metadata() or ():
        if key == STATUS_DETAILS_KEY and isinstance(value, bytes):
            details = value
    code = status.code()
    return from_status(code.name, status.details() or "", details, request_id=request_id)


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
