"""The blocking client."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from numpy.typing import NDArray

from gradwire import health, ops, v1
from gradwire._calls import Evaluation, UnaryCall
from gradwire._channel import Link, PerProcess, from_rpc_error
from gradwire._options import (
    CHUNK_BYTES,
    RETRY,
    STREAM_THRESHOLD_BYTES,
    TIMEOUT_S,
    Options,
)
from gradwire.errors import CallCancelledError, GradwireError
from gradwire.retries import RetryPolicy

Request = TypeVar("Request")
Reply = TypeVar("Reply")


class Client:
    """A connection to one gradwire server; any number of threads may use it.

    It connects with the first call. In another process, pickled or forked, it connects anew. A
    process with grpc in it can be forked while no call is in flight, of this client or any other,
    unless GRPC_ENABLE_FORK_SUPPORT is 0 or an event loop has used grpc: start processes by spawn
    then.

    target                  address of the server, such as "127.0.0.1:50051"; any gRPC target
    credentials             TLS, as grpc.ssl_channel_credentials() makes it; None for plain text
    timeout_s               seconds a call may take, and a stream may go without progress
    stream_threshold_bytes  largest input or result that still travels in one message
    chunk_bytes             most bytes of one message of a stream; the server may ask for less
    retry                   how often and how soon a failed call is tried again

    Every method raises GradwireError or one of its kinds where the service fails, RuntimeError
    after close().
    """

    def __init__(
        self,
        target: str,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        timeout_s: float = TIMEOUT_S,
        stream_threshold_bytes: int = STREAM_THRESHOLD_BYTES,
        chunk_bytes: int = CHUNK_BYTES,
        retry: RetryPolicy = RETRY,
    ) -> None:
        self._options = Options(
            target=target,
            credentials=credentials,
            timeout_s=timeout_s,
            stream_threshold_bytes=stream_threshold_bytes,
            chunk_bytes=chunk_bytes,
            retry=retry,
        )
        self._link = PerProcess(lambda: Link(self._options))

    def evaluate(
        self,
        op: ops.Operator,
        array: object,
        *,
        output_shape: Sequence[int] | None = None,
        out: NDArray[Any] | None = None,
        timeout_s: float | None = None,
        on_progress: Callable[[int, int], object] | None = None,
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

        Small tensors travel in one message, larger ones as a stream, which resumes where it broke.

        Raises InvalidRequestError, a ValueError, where an argument is wrong, TypeError where array
        or out is no array.
        """
        evaluation = Evaluation(
            op,
            array,
            output_shape=output_shape,
            out=out,
            timeout_s=timeout_s,
            on_progress=on_progress,
            options=self._options,
            link=self._link.get(),
        )
        while (error := self._try(evaluation)) is not None:
            self._pause(error, evaluation.recover)
        return evaluation.result()

    def operators(self) -> tuple[v1.OperatorInfo, ...]:
        """Return what the server tells of each of its operators."""
        stub = self._link.get().stub
        return tuple(self._call(stub.ListOperators, v1.ListOperatorsRequest()).operators)

    def server_info(self) -> v1.GetServerInfoResponse:
        """Return the server's version, backend and limits."""
        return self._call(self._link.get().stub.GetServerInfo, v1.GetServerInfoRequest())

    def wait_ready(self, timeout_s: float = 30.0) -> None:
        """Wait until the server serves; raise UnavailableError if it does not in time."""
        check: grpc.UnaryUnaryMultiCallable[bytes, bytes]
        check = self._link.get().channel.unary_unary(health.METHOD)
        patience = health.Patience(timeout_s)
        while True:
            reply = self._ask(check, health.check_request(), timeout_s=patience.check_s)
            pause_s = patience.pause_s(reply)
            if pause_s is None:
                return
            time.sleep(pause_s)

    def close(self) -> None:
        """Close the connection; calls in other threads end with CallCancelledError."""
        link = self._link.close()
        if link is not None:
            link.close()

    def _try(self, evaluation: Evaluation) -> GradwireError | None:
        link = self._link.get()
        if evaluation.streams:
            return self._try_stream(evaluation, link)
        request = evaluation.unary_request()
        reply = self._ask(
            link.evaluate,
            request,
            timeout_s=evaluation.left_s,
            request_id=evaluation.request_id,
        )
        if isinstance(reply, GradwireError):
            return reply
        evaluation.take(reply)
        return None

    def _try_stream(self, evaluation: Evaluation, link: Link) -> GradwireError | None:
        stream = evaluation.start_stream(link)
        try:
            while not stream.ended.wait(evaluation.next_look_s()):
                evaluation.look()
        except BaseException:
            stream.cancel()
            stream.ended.wait()
            raise
        return stream.outcome()

    def _call(
        self, method: grpc.UnaryUnaryMultiCallable[Request, Reply], request: Request
    ) -> Reply:
        call = UnaryCall(self._options, self._link.get())
        while True:
            reply = self._ask(method, request, timeout_s=call.left_s)
            if not isinstance(reply, GradwireError):
                call.succeed()
                return reply
            self._pause(reply, call.recover)

    def _ask(
        self,
        method: grpc.UnaryUnaryMultiCallable[Request, Reply],
        request: Request,
        *,
        timeout_s: float,
        request_id: str | None = None,
    ) -> Reply | GradwireError:
        try:
            return method(request, timeout=timeout_s)
        except grpc.RpcError as error:
            return from_rpc_error(error, request_id=request_id)
        except ValueError as error:
            # What grpc says of a channel that is closed.
            return CallCancelledError(str(error), request_id=request_id)

    def _pause(self, error: GradwireError, recover: Callable[[GradwireError], float]) -> None:
        if self._link.closed:
            raise error
        time.sleep(recover(error))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[..., Client], tuple[Any, ...]]:
        return _revive, (type(self), self._options.as_arguments())


def _revive(kind: type[Client], arguments: dict[str, Any]) -> Client:
    return kind(**arguments)
