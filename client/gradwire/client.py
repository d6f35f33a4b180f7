"""The blocking client."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, Self, overload

import numpy as np
from numpy.typing import DTypeLike

from gradwire import ops
from gradwire._core.batch import ItemBatch
from gradwire._core.reports import OperatorInfo, ServerInfo, Timing
from gradwire._transport.batch import Results
from gradwire._transport.channels import BaseClient, ClientChannels, PerProcess
from gradwire._transport.streams import StreamRun
from gradwire._transport.unary import Runtime, UnaryCalls, now
from gradwire._wire.requests import ItemLike
from gradwire.tensors import Array, Sizes

_RUNTIME = Runtime()


class Client(BaseClient):
    """Connections to a gradwire server, or several; safe for threads.

    It connects with the first call, which may be wait_ready(). In another process, pickled or
    forked, it connects anew. A process with grpc in it can be forked while no call is in flight,
    unless GRPC_ENABLE_FORK_SUPPORT is 0 or an event loop has used grpc: spawn processes then.

    target                  address of the server, such as "127.0.0.1:50051", or any gRPC target,
                            such as "dns:///name:50051". Several, with commas between or as a
                            sequence, take turns; "replicas+http://HOST:PORT/NAME" lists them
                            (docs/ray.md). None means GRADWIRE_TARGET, or else 127.0.0.1:50051
    credentials             TLS, as grpc.ssl_channel_credentials() makes it; None for plain text
    connections             to each server, at most so many for small calls and as many for
                            streams, opened for calls at the same time. Each reaches one worker of
                            a server with several. 1 means a single connection for all calls
    timeout_s               seconds a call may take, and a stream may go without progress
    stream_threshold_bytes  largest input or result that still travels in one message
    chunk_bytes             most bytes of one message of a stream, 4096 to 32 MiB; the server may
                            ask for less
    retry                   how often and how soon a failed call is tried again
    split                   whether several targets share one evaluate() whose input or result is
                            larger than split_threshold_bytes: each gives a part of the result, with
                            the same bits, and if one fails another one gives its part. Without
                            it, and below the threshold, one target does it all
    split_threshold_bytes   most that one target does alone; a part has half of it or more
    token                   sent with every call, but never to another machine in plain text
    token_file              file with a token, read anew when it changes. Without both, the
                            variable GRADWIRE_TOKEN has one, or GRADWIRE_TOKEN_FILE names a file
    connect_timeout_s       seconds for which a call is tried again while it cannot connect,
                            which also bound one attempt to connect. None: as long as retry allows,
                            with attempts of 20 s; by default 3 s if the only target has not
                            answered a call yet. wait_ready() has its own timeout

    shared_memory           whether large tensors go through memory shared with the server, if its
                            address is a unix socket and it offers that (Linux); docs/local.md
    checksums               whether messages carry checksums: what changed on its way is found and
                            repeated. None means the variable GRADWIRE_CHECKSUMS, or else in plain
                            text to other machines. A server that knows none gets none

    If a server vanishes without closing its connections, as when its machine fails, calls in flight
    notice it within 40 s and are tried again on a new connection.

    Methods raise GradwireError if the service fails, RuntimeError after close().
    """

    def _prepare(self) -> None:
        options = self._options
        self._calls = PerProcess(lambda: UnaryCalls(ClientChannels(options), _RUNTIME))

    def evaluate(
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
        """Return the operator applied to an array.

        The result has the array's type, and is out if that is given.

        array         float32, float16, bfloat16 or float64, 1 to 8 axes, any strides: a NumPy array
                      or memmap, or anything with `__array__`, `__array_interface__` or DLPack.
                      Broadcast axes travel as one element
        output_shape  the result's; may be left out with out, or where attributes determine it
        out           a writable array or memmap of the result's type and shape that shares no
                      memory with the input. After an error its content is undefined
        timeout_s     seconds until DeadlineExceededError; by default the client's, which a stream
                      counts anew whenever something moves
        on_progress   called in this thread with (sent_bytes, received_bytes), both growing, at most
                      10 times a second and once at the end; its exceptions end the call
        on_timing     called in this thread with a Timing, once there is a result

        Small tensors travel in one message, larger ones as a stream, which resumes after a break.

        Raises InvalidRequestError, a ValueError, if an argument is wrong, and TypeError if array or
        out is no array.
        """
        calls = self._calls.get()
        evaluation = calls.channels.evaluation(
            op=op,
            array=array,
            output_shape=output_shape,
            out=out,
            timeout_s=timeout_s,
            on_progress=on_progress,
            on_timing=on_timing,
        )
        now(calls.evaluate(evaluation))
        if evaluation.streams:
            now(StreamRun(evaluation, calls.channels, _RUNTIME).run())
        return evaluation.result()

    @overload
    def evaluate_many(
        self,
        items: Iterable[ItemLike],
        *,
        ordered: Literal[True] = True,
        max_in_flight: int = 64,
        timeout_s: float | None = None,
    ) -> Results[Array]: ...

    @overload
    def evaluate_many(
        self,
        items: Iterable[ItemLike],
        *,
        ordered: Literal[False],
        max_in_flight: int = 64,
        timeout_s: float | None = None,
    ) -> Results[tuple[int, Array]]: ...

    def evaluate_many(
        self,
        items: Iterable[ItemLike],
        *,
        ordered: bool = True,
        max_in_flight: int = 64,
        timeout_s: float | None = None,
    ) -> Results[Any]:
        """Evaluate many items over one stream; return an iterator over their results.

        items          gradwire.Item(op, array, output_shape, out), or tuples of the same, as
                       evaluate() takes them. They are taken in this thread when results are asked
                       for, and small arrays may be reused when the next item is
        ordered        True for results in the order of the items; False for (index, result) as they
                       come
        max_in_flight  items that may be taken before their results are handed over
        timeout_s      seconds without an answer after which items in flight end with
                       DeadlineExceededError; by default the client's

        Items are taken ahead of results, in the thread that iterates. So an item can be made of an
        earlier result only with max_in_flight=1, and an iterable that blocks until it has a result
        blocks for ever; AsyncClient, or evaluate() in a loop, is for that.

        The error of a failed item is raised in its place; the next call of next() continues. Once
        the client is closed, items without a result raise CallCancelledError, and the iterator
        ends. Items without an answer when a stream breaks are sent again, by the rules of
        evaluate()'s retries. Items with large tensors go by evaluate()'s streams, one at a time.
        """
        batch = ItemBatch(
            self._options, ordered=ordered, max_in_flight=max_in_flight, timeout_s=timeout_s
        )
        return Results(items, self._calls.get(), batch)

    def empty(self, shape: Sizes, dtype: DTypeLike = np.float32) -> Array:
        """Return a new, uninitialized array that evaluate() need not copy.

        It lies in memory shared with the server if shared_memory has an effect; otherwise it is an
        ordinary array.
        """
        return self._calls.get().channels.shared_memory.empty(shape, dtype)

    def operators(self) -> tuple[OperatorInfo, ...]:
        """Return the server's description of each operator."""
        return now(self._calls.get().operators())

    def server_info(self) -> ServerInfo:
        """Return the server's version, backend and limits."""
        return now(self._calls.get().server_info())

    def wait_ready(self, timeout_s: float = 30.0) -> None:
        """Wait until the server serves.

        Raises UnavailableError if it does not serve in time, or if waiting does not help: the
        server does not use TLS although the client does, or its certificate is not signed by a
        trusted authority.
        """
        now(self._calls.get().wait_ready(timeout_s))

    def close(self) -> None:
        """Close the connection; calls in other threads end with CallCancelledError."""
        calls = self._calls.close()
        if calls is not None:
            calls.channels.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
