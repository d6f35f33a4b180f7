"""Channels of a client: options, pools and the meaning of errors."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from operator import itemgetter
from typing import Any, ClassVar, Generic, Self, TypeVar
from weakref import WeakSet

import grpc

from gradwire._core.evaluation import Evaluation
from gradwire._core.options import (
    CHUNK_BYTES,
    STREAM_THRESHOLD_BYTES,
    Options,
    channel_targets,
    goes_round,
    host_ports,
    is_list,
    is_local,
    read_target,
)
from gradwire._core.retries import RetryPolicy
from gradwire._transport.replicas import SOON_S, Replicas
from gradwire._transport.shared_memory import SharedMemory
from gradwire._wire.environment import VERSION
from gradwire._wire.statuses import STATUS_DETAILS_KEY, from_status, is_refused
from gradwire.errors import CallCancelledError, GradwireError, InvalidRequestError, UnavailableError

T = TypeVar("T")

# Far above a reply of Evaluate or a chunk; a foreign server must not fill the memory.
_MAX_MESSAGE_BYTES = 64 << 20
_CLOSING_S = 1.0
# Milliseconds without a byte before a ping, and until its answer, which waits behind data on a slow
# network. gradwire's servers allow a ping every 10 s.
_KEEPALIVE_MS = 20_000
_KEEPALIVE_TIMEOUT_MS = 20_000
HEALTH_METHOD = "/grpc.health.v1.Health/Check"
SERVICE_PATH = "/gradwire.v1.GradientService/"
_USER_AGENT = f"gradwire/{VERSION}"

# grpc imports it for the first channel of a process, which would delay the first call.
with contextlib.suppress(ImportError):
    import_module("grpc._channel")


def check_credentials(value: object) -> grpc.ChannelCredentials | None:
    """Return a channel's credentials or None; raise InvalidRequestError otherwise."""
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
    certified: str | None = None,
    api: Any = grpc,
) -> Any:
    """Open a channel, which connects with the first call.

    connect_timeout_s  most that one attempt to connect may take; None for grpc's 20 s
    certified          host that the server's certificate names; None for the target's
    api                grpc, or grpc.aio for a channel that belongs to the running event loop
    """
    options: dict[str, Any] = {
        "grpc.primary_user_agent": _USER_AGENT,
        "grpc.max_receive_message_length": _MAX_MESSAGE_BYTES,
        "grpc.max_send_message_length": -1,
        # Retries are this package's own: they resume streams, keep a budget, heed RetryInfo, and
        # may take another connection. Nothing is ever sent twice at once.
        "grpc.enable_retries": 0,
        # Connections of a parent process are dead in its forked child, and may not be found there;
        # and channels to one server would share a connection.
        "grpc.use_local_subchannel_pool": 1,
        # Calls fail at once while a channel waits to reconnect; retries pause longer than that.
        "grpc.initial_reconnect_backoff_ms": 100,
        "grpc.max_reconnect_backoff_ms": 1000,
        # Ends calls whose server vanishes; connections without calls are not pinged.
        "grpc.keepalive_time_ms": _KEEPALIVE_MS,
        "grpc.keepalive_timeout_ms": _KEEPALIVE_TIMEOUT_MS,
        # Without it the timeout is a minute regardless: measured with grpcio 1.85.
        "grpc.http2.ping_timeout_ms": _KEEPALIVE_TIMEOUT_MS,
    }
    if connect_timeout_s is not None:
        attempt_ms = min(20_000, max(1, round(connect_timeout_s * 1000)))
        options["grpc.min_reconnect_backoff_ms"] = attempt_ms
    if is_local(target):
        # A proxy would see the token, and none leads to this machine.
        options["grpc.enable_http_proxy"] = 0
    if goes_round(target):
        options["grpc.lb_policy_name"] = "round_robin"
    scheme, _, several = target.partition(":")
    if scheme in {"ipv4", "ipv6"}:
        options["grpc.default_authority"] = several.partition(",")[0]
    if certified is not None:
        options["grpc.ssl_target_name_override"] = certified
    pairs = list(options.items())
    if credentials is None:
        return api.insecure_channel(target, pairs)
    return api.secure_channel(target, credentials, pairs)


# Seconds for which a connection is avoided after a failure; longer than grpc waits to reconnect.
AVOIDED_S = 1.5


@dataclass(slots=True, eq=False)
class PooledChannel:
    """A channel, blocking or asyncio, and its calls.

    channel        None before its first call
    evaluate       Evaluate on serialized messages
    calls          number of calls that use it
    avoided_until  on the clock of the pool
    """

    target: str
    channel: Any = None
    evaluate: Any = None
    calls: int = 0
    avoided_until: float = 0.0

    def begin_stream(self, method: str, messages: Iterator[bytes], **options: Any) -> Any:
        """Begin a stream of serialized messages.

        Raises CallCancelledError if the channel is closed.
        """
        try:
            return self.channel.stream_stream(f"{SERVICE_PATH}{method}")(messages, **options)
        except ValueError as error:
            raise CallCancelledError("the client was closed") from error


class Pool:
    """Channels to targets, each opened on first use.

    A call takes the one with the fewest calls. Among equals targets rotate, and within a target the
    first one is taken, so that sequential calls share a connection. One on which a call has just
    failed is avoided, and so are the others of its target.

    targets    None for those of the options, where numeric addresses share channels
    close_one  closes a channel to a removed target, without waiting
    replicas   source of changing targets, if any
    api        grpc or grpc.aio
    """

    def __init__(
        self,
        options: Options,
        targets: Sequence[str] | None = None,
        *,
        close_one: Callable[[Any], object],
        replicas: Replicas | None = None,
        api: Any = grpc,
    ) -> None:
        self._options = options
        self._close_one = close_one
        self._replicas = replicas
        self._api = api
        self._clock = time.monotonic
        # Garbage collection may run a finalizer that calls within its own locked sections.
        self._lock = threading.RLock()
        self._turn = 0
        self._closed = False
        self._entries: dict[str, list[PooledChannel]] = {}
        self._retired: list[PooledChannel] = []
        if replicas is not None:
            replicas.subscribe(self.renew)
            return
        secure = options.credentials is not None
        self.renew(targets or channel_targets(options.target, secure=secure))

    def take(self) -> PooledChannel:
        """Return an open channel for a call, to be given back.

        Raises CallCancelledError after close(), UnavailableError without a known target.
        """
        if self._replicas is not None:
            self._replicas.refresh()
        with self._lock:
            if self._closed:
                raise CallCancelledError("the client was closed")
            if not self._entries and self._replicas is not None:
                raise self._replicas.failure
            entry = self._least_busy()
            if entry.channel is None:
                self._open(entry)
            entry.calls += 1
            return entry

    def _open(self, entry: PooledChannel) -> None:
        options = self._options
        channel = entry.channel = open_channel(
            entry.target,
            options.credentials,
            connect_timeout_s=options.connect_timeout_s,
            api=self._api,
        )
        entry.evaluate = channel.unary_unary(f"{SERVICE_PATH}Evaluate")

    def give_back(self, entry: PooledChannel, *, failed: bool) -> None:
        """End a call's use of a channel.

        failed  whether to avoid the channel for a while
        """
        with self._lock:
            entry.calls -= 1
            if failed:
                entry.avoided_until = self._clock() + AVOIDED_S
        if self._retired:
            self._close_retired()
        if failed and self._replicas is not None:
            self._replicas.refresh(age_s=SOON_S)

    def renew(self, targets: Sequence[str]) -> None:
        """Replace the targets.

        Connections to remaining targets stay open. Others take no new call, and close with their
        last one.
        """
        with self._lock:
            if self._closed:
                return
            before = self._entries
            self._entries = {
                one: before.pop(one, [])
                or [PooledChannel(one) for _ in range(self._options.connections)]
                for one in targets
            }
            self._turn = 0
            self._retired += itertools.chain(*before.values())
        self._close_retired()

    def _close_retired(self) -> None:
        """Close the connections to removed targets that have no calls."""
        with self._lock:
            unused = [entry for entry in self._retired if not entry.calls]
            self._retired = [entry for entry in self._retired if entry.calls]
        for entry in unused:
            if entry.channel is not None:
                self._close_one(entry.channel)

    def sound_targets(self) -> int:
        """Return the number of targets without a recent failure.

        If every target has failed, return the number of all.
        """
        with self._lock:
            return len(self._entries.keys() - self._avoided()) or len(self._entries)

    def close(self) -> list[Any]:
        """Return the channels for the caller to close; open no more."""
        with self._lock:
            self._closed = True
            entries = itertools.chain(*self._entries.values(), self._retired)
            return [entry.channel for entry in entries if entry.channel is not None]

    def _avoided(self) -> set[str]:
        """Return the targets with a recent failure."""
        now = self._clock()
        return {
            target
            for target, entries in self._entries.items()
            if any(entry.avoided_until > now for entry in entries)
        }

    def _least_busy(self) -> PooledChannel:
        targets = list(self._entries)
        self._turn = (self._turn + 1) % len(targets)
        avoided, now = self._avoided(), self._clock()
        # Other connections of a failed target would probably fail too.
        ranked = (
            ((target in avoided, entry.avoided_until > now, entry.calls, number), entry)
            for target in targets[self._turn :] + targets[: self._turn]
            for number, entry in enumerate(self._entries[target])
        )
        return min(ranked, key=itemgetter(0))[1]


def start_thread(name: str, target: Callable[..., object], *arguments: Any) -> threading.Thread:
    """Start a thread that does not keep the process alive."""
    name = f"gradwire-{name}"
    thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
    thread.start()
    return thread


def _start_closing(channel: Any) -> threading.Thread:
    return start_thread("closing", channel.close)


class ClientChannels:
    """Channels of a client in one process, and learned server facts.

    unary            for calls of one message each way
    streams          for streams, apart from unary calls, which would wait behind large messages
    shares           for streams that share an evaluation: each address has its own connections
    max_chunk_bytes  most bytes the server takes in one chunk; None before the first stream
    replicas         list of replicas that the target names; None for other targets
    shared_memory    with a server on this machine

    waits  whether the constructor waits for the first list
    """

    def __init__(self, options: Options, *, waits: bool = True) -> None:
        self.options = options
        target = options.target[0]
        self.replicas = Replicas(target) if is_list(target) else None

        pool = partial(Pool, options, close_one=_start_closing, replicas=self.replicas)
        self.unary = pool()
        self.streams = self.unary if options.connections == 1 else pool()
        self.shares = pool(options.target) if options.split else self.streams
        self.shared_memory = SharedMemory(options)
        self.max_chunk_bytes: int | None = None
        self._lock = threading.Lock()
        self.closed = False
        self._running: WeakSet[Any] = WeakSet()
        if waits and self.replicas is not None:
            self.replicas.wait()

    def evaluation(self, **arguments: Any) -> Evaluation:
        """Begin an evaluation; the arguments are those of evaluate()."""
        servers = self.shares.sound_targets
        return Evaluation(options=self.options, servers=servers, **arguments)

    def register(self, each: Any) -> None:
        """Have close() call stop() of an object."""
        with self._lock:
            self._running.add(each)
            closed = self.closed
        if closed:
            each.stop()

    def close(self) -> None:
        """Close the channels and cancel their calls."""
        with self._lock:
            self.closed = True
            running = tuple(self._running)
        for each in running:
            each.stop()
        self.shared_memory.close()
        # Closing waits until the peer has read outgoing data, so threads do it.
        pools = {self.unary, self.streams, self.shares}
        threads = [_start_closing(each) for pool in pools for each in pool.close()]
        until = time.monotonic() + _CLOSING_S
        for closing in threads:
            closing.join(max(0.0, until - time.monotonic()))


def from_rpc_error(error: grpc.RpcError) -> GradwireError:
    """Convert an error of grpc or grpc.aio to one of this package."""
    status: Any = error
    # Not dict(): the metadata of older releases of grpc.aio are no mapping of their pairs.
    trailers: list[tuple[str, Any]] = list(status.trailing_metadata() or ())
    details = next((value for key, value in trailers if key == STATUS_DETAILS_KEY), None)
    return from_status(status.code().name, status.details() or "", details)


# Seconds for one address.
_ASKING_S = 1.0


def next_pause_s(
    error: GradwireError, recover: Callable[[GradwireError], float], options: Options
) -> float:
    """Return the pause before the next try, or raise an explained error."""
    try:
        return recover(error)
    except UnavailableError as last:
        raise explained(last, options) from None


def explained(error: UnavailableError, options: Options) -> UnavailableError:
    """Replace a refusal by the error of an address that takes connections.

    gRPC reports the error of one address, and a name such as localhost stands for several: one may
    refuse a connection while the server at another one requires TLS.
    """
    if not is_refused(error):
        return error
    for place in itertools.chain(*map(host_ports, options.target)):
        host, _, port = place.rpartition(":")
        host = host.strip("[]")
        try:
            with socket.create_connection((host, int(port)), _ASKING_S) as taken:
                address = taken.getpeername()[0]
            target = f"ipv6:[{address}]:{port}" if ":" in address else f"ipv4:{address}:{port}"
            with open_channel(
                target, options.credentials, connect_timeout_s=_ASKING_S, certified=host
            ) as channel:
                channel.unary_unary(HEALTH_METHOD)(b"", timeout=_ASKING_S)
        except grpc.RpcError as failed:
            found = from_rpc_error(failed)
            if isinstance(found, UnavailableError) and found.unreachable:
                found.request_id = error.request_id
                return found
        except (OSError, UnicodeError):
            # No address takes a connection, or DNS cannot hold the name.
            continue
    return error


class PerProcess(Generic[T]):
    """A value made on first use, once per process.

    A forked process makes it anew: the parent's locks and channels cannot be used there, and its
    channels must not be closed there.
    """

    _all: ClassVar[WeakSet[PerProcess[Any]]] = WeakSet()

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._value: T | None = None
        self._of_parents: list[T | None] = []
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
        """Return the value for its owner to close; allow no more.

        Returns None if no value is open.
        """
        with self._lock:
            self.closed = True
            value, self._value = self._value, None
            return value

    def _renew(self) -> None:
        """Forget the value in a newly forked process.

        Finalizing it would close it.
        """
        self._lock = threading.Lock()
        self._of_parents.append(self._value)
        self._value = None

    @classmethod
    def renew(cls) -> None:
        """Forget every value in a newly forked process."""
        for one in cls._all:
            one._renew()  # noqa: SLF001 - one's own


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=PerProcess.renew)


_RETRY = RetryPolicy()


class BaseClient(ABC):
    """Arguments and pickling of both clients; Client describes the arguments."""

    def __init__(
        self,
        target: str | Sequence[str] | None = None,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        connections: int = 2,
        timeout_s: float = 60.0,
        stream_threshold_bytes: int = STREAM_THRESHOLD_BYTES,
        chunk_bytes: int = CHUNK_BYTES,
        retry: RetryPolicy = _RETRY,
        split: bool = False,
        split_threshold_bytes: int = 4 << 20,
        token: str | None = None,
        token_file: str | None = None,
        connect_timeout_s: float | None = None,
        shared_memory: bool = True,
        checksums: bool | None = None,
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
            shared_memory=shared_memory,
            checksums=checksums,
        )
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None:
        """Make what calls need, without connecting."""

    def __reduce__(self) -> tuple[Callable[[], Self], tuple[()]]:
        return partial(type(self), **self._options.as_arguments()), ()
