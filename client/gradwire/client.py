"""The blocking client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
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
from gradwire._transport.batch import Results
from gradwire._transport.channels import (
    BlockingChannel,
    ClientChannels,
    PerProcess,
    check_credentials,
)
from gradwire._transport.diagnosis import explained
from gradwire._transport.streams import try_stream
from gradwire._transport.tracing import method_of
from gradwire._transport.unary import Method, Reply, Request, Unary
from gradwire._wire.arguments import Item
from gradwire.errors import GradwireError, UnavailableError


class Client:
    """Connections to a gradwire server, or several alike; any number of threads may use it.

    It connects with the first call, which may be wait_ready(). In another process, pickled or
    forked, it connects anew. A process with grpc in it can be forked while no call is in flight,
    unless GRPC_ENABLE_FORK_SUPPORT is 0 or an event loop has used grpc: spawn processes then.

    target                  address of the server, such as "127.0.0.1:50051", or any gRPC target,
                            such as "dns:///name:50051". Several, with commas between or as a
                            sequence, take turns; "replicas+http://HOST:PORT/NAME" tells them
                            (docs/ray.md). None means GRADWIRE_TARGET, or else 127.0.0.1:50051
    credentials             TLS, as grpc.ssl_channel_credentials() makes it; None for plain text
    connections             to each server, at most so many for small calls and as many for
                            streams, opened when calls come at once. Each is served by one worker of
                            a server with several. 1 means a single one for everything
    timeout_s               seconds a call may take, and a stream may go without progress
    stream_threshold_bytes  largest input or result that still travels in one message
    chunk_bytes             most bytes of one message of a stream, 4096 to 32 MiB; the server may
                            ask for less
    retry                   how often and how soon a failed call is tried again
    split                   whether several targets share one evaluate() whose input or result is
                            larger than split_threshold_bytes: each gives a part of the result, with
                            the same bits, and where one fails another one gives its part. Without
                            it, and below the threshold, one target does it all
    split_threshold_bytes   most that one target does alone; a part has half of it or more
    token                   shown with every call, but never to another machine in plain text
    token_file              file with a token, read anew when it changes. Without both, the
                            variable GRADWIRE_TOKEN has one, or GRADWIRE_TOKEN_FILE names a file
    connect_timeout_s       seconds for which a call is tried again while no connection comes about,
                            which also bound one attempt to connect; None for as long as retry says,
                            and 20 s for an attempt. wait_ready() waits as long as it is told to

    A server that vanishes without a word, as when its machine does, is noticed within 40 s by the
    calls in flight, which are tried again on a new connection.

    Methods raise GradwireError where the service fails, RuntimeError after close().
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
        self._link = PerProcess(lambda: ClientChannels(self._options))
        self._target = ",".join(self._options.target)
        self._unary = Unary(
            self._target,
            lambda: self._link.get().unary,
            bearer=self._options.bearer,
            closed=lambda: self._link.closed,
        )

    def evaluate(
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
        """Return the operator applied to an array, in the array's type; out where it is given.

        array         float32, float16, bfloat16 or float64, 1 to 8 axes, any strides: a NumPy array
                      or memmap, or anything with `__array__`, `__array_interface__` or DLPack.
                      Broadcast axes travel as one element
        output_shape  the result's; may be left out with out, or where attributes determine it
        out           a writable array or memmap of the result's type and shape that shares no
                      memory with the input. After an error its content is undefined
        timeout_s     seconds until DeadlineExceededError; by default the client's, which a stream
                      counts anew whenever something moves
        on_progress   called in this thread with (sent_bytes, received_bytes), both growing, at most
                      10 times a second and once at the end; what it raises ends the call
        on_timing     called in this thread with a Timing, once there is a result

        Small tensors travel in one message, larger ones as a stream, which resumes where it broke.

        Raises InvalidRequestError, a ValueError, where an argument is wrong, TypeError where array
        or out is no array.
        """
        link = self._link.get()
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
        while (error := self._try(evaluation)) is not None:
            self._pause(error, evaluation.recover)
        return evaluation.result()

    @overload
    def evaluate_many(
        self,
        items: Iterable[Item | tuple[Any, ...]],
        *,
        ordered: Literal[True] = True,
        max_in_flight: int = 64,
        timeout_s: float | None = None,
    ) -> Results[NDArray[Any]]: ...

    @overload
    def evaluate_many(
        self,
        items: Iterable[Item | tuple[Any, ...]],
        *,
        ordered: Literal[False],
        max_in_flight: int = 64,
        timeout_s: float | None = None,
    ) -> Results[tuple[int, NDArray[Any]]]: ...

    def evaluate_many(
        self,
        items: Iterable[Item | tuple[Any, ...]],
        *,
        ordered: bool = True,
        max_in_flight: int = 64,
        timeout_s: float | None = None,
    ) -> Results[Any]:
        """Evaluate many items over one stream; return an iterator over their results.

        items          gradwire.Item(op, array, output_shape, out), or tuples of the same, as
                       evaluate() takes them. They are taken in this thread when results are asked
                       for, and small arrays may be used anew when the next item is
        ordered        True for results in the order of the items; False for (index, result) as they
                       come
        max_in_flight  items that may be taken before their results are handed over
        timeout_s      seconds without an answer after which what is in flight ends with
                       DeadlineExceededError; by default the client's

        Items are taken ahead of results, in the thread that iterates. So an item can be made of an
        earlier result only with max_in_flight=1, and an iterable that blocks until it has a result
        blocks for ever; AsyncClient, or evaluate() in a loop, is for that.

        An item that fails raises in its place, and the iterator goes on when it is asked again.
        Once the client is closed, items without a result raise CallCancelledError, and it ends.
        What a broken stream left without an answer is sent again, as evaluate() is tried again.
        Items with large tensors go by evaluate()'s streams, one at a time.
        """
        link = self._link.get()
        exchange = ItemBatch(
            options=self._options,
            budget=link.budget,
            ordered=ordered,
            max_in_flight=max_in_flight,
            timeout_s=timeout_s,
        )
        return Results(
            items,
            exchange,
            self._link,
            ordered=ordered,
            evaluate=lambda item: self.evaluate(
                item.op,
                item.array,
                output_shape=item.output_shape,
                out=item.out,
                timeout_s=timeout_s,
            ),
        )

    def operators(self) -> tuple[OperatorInfo, ...]:
        """Return the server's description of each operator."""
        request = v1.ListOperatorsRequest()
        return read_operators(self._call(lambda line: line.stub.ListOperators, request))

    def server_info(self) -> ServerInfo:
        """Return the server's version, backend and limits."""
        request = v1.GetServerInfoRequest()
        return read_server_info(self._call(lambda line: line.stub.GetServerInfo, request))

    def wait_ready(self, timeout_s: float = 30.0) -> None:
        """Wait until the server serves; raise UnavailableError if it does not in time.

        Also where waiting does not help: it speaks plain text and TLS was meant, or its certificate
        is of no authority trusted here.
        """

        def check(line: BlockingChannel) -> grpc.UnaryUnaryMultiCallable[bytes, bytes]:
            return line.channel.unary_unary(health.METHOD)

        patience = health.Patience(timeout_s, one_server=self._options.one_server)
        while True:
            reply = self._unary.ask(check, health.check_request(), timeout_s=patience.check_s)
            try:
                pause_s = patience.pause_s(reply)
            except UnavailableError as error:
                raise explained(error, self._options) from error.__cause__
            if pause_s is None:
                return
            time.sleep(pause_s)

    def close(self) -> None:
        """Close the connection; calls in other threads end with CallCancelledError."""
        link = self._link.close()
        if link is not None:
            link.close()

    def _try(self, evaluation: Evaluation) -> GradwireError | None:
        if evaluation.streams:
            return try_stream(evaluation, self._link.get())
        reply = self._unary.ask(
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

    def _call(self, method: Method[Request, Reply], request: Request) -> Reply:
        call = UnaryTries(self._options, self._link.get().budget)
        name = method_of(request)
        while True:
            reply = self._unary.ask(method, request, timeout_s=call.left_s, name=name)
            if not isinstance(reply, GradwireError):
                call.succeed()
                return reply
            self._pause(reply, call.recover)

    def _pause(self, error: GradwireError, recover: Callable[[GradwireError], float]) -> None:
        if self._link.closed:
            raise error
        try:
            pause_s = recover(error)
        except UnavailableError as last:
            raise explained(last, self._options) from last.__cause__
        time.sleep(pause_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[[], Self], tuple[()]]:
        return partial(type(self), **self._options.as_arguments()), ()
