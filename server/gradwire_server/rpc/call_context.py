"""Calls in flight: identity, deadline, timing, scheduler claims, final status."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeAlias, TypeVar, cast

import grpc

from gradwire_server.engine import EvaluationRequest
from gradwire_server.errors import (
    EvaluationError,
    InvalidDataError,
    MissingScopeError,
    ServerFullError,
    UnauthenticatedError,
)
from gradwire_server.observability import logs
from gradwire_server.observability.definitions import PHASES, Phase
from gradwire_server.observability.recording import CallRecord, Observer, Phases
from gradwire_server.rpc import codec
from gradwire_server.rpc.status_map import EncodedStatus, failure
from gradwire_server.scheduling import tasks
from gradwire_server.scheduling.admission import InlineWork
from gradwire_server.scheduling.scheduler import Claim

# grpc's types know no handlers of asyncio that read and write themselves. Unary methods have the
# same bytes on the wire as client streams, whose handlers read the request.
UNARY: Any = grpc.stream_unary_rpc_method_handler
STREAM: Any = grpc.stream_stream_rpc_method_handler
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
T = TypeVar("T")

_log = logging.getLogger("gradwire_server")

# grpc first reports the end of a cancelled call's input, and only then cancels the handler.
CANCELLATION_S = 0.1


async def half_close(field: str, came: str) -> InvalidDataError:
    """Return the error for input that ends too early.

    It does not return if the call is cancelled.
    """
    await asyncio.sleep(CANCELLATION_S)
    return InvalidDataError(field, came)


async def refusing(error: Exception) -> Any:
    """Do the work of a call that is refused."""
    raise error


class ActiveCalls:
    """Calls in flight, for a server that stops.

    It waits until none is left, or ends them all.

    observer       notified when each call begins and ends
    success_level  log level of calls that succeed
    in_phase       number of calls in each phase
    refusals       counts refusals by a full server, and refused callers
    end            the error of end_all(), once it was called
    """

    def __init__(self, observer: Observer, *, success_level: int = logging.DEBUG) -> None:
        self._count = 0
        self._at_work = set[asyncio.Task[Any]]()
        self.end: EvaluationError | None = None
        self.success_level = success_level
        self.observer = observer
        self.in_phase: dict[Phase, int] = dict.fromkeys(PHASES, 0)
        self.refusals = logs.Refusals()
        self.none_left = asyncio.Event()
        self.none_left.set()

    def __enter__(self) -> None:
        self.none_left.clear()
        self._count += 1

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if not self._count:
            self.none_left.set()

    async def ended(self, timeout_s: float) -> None:
        """Wait until no call is left, for a time at most."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.none_left.wait(), timeout_s)

    def end_all(self, error: EvaluationError) -> None:
        """End every call in flight, and every later one, with an error."""
        self.end = error
        tasks.cancel(self._at_work)

    async def work(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run the work of a call.

        Raises the error of end_all() if that was or is called.
        """
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - this is a coroutine
        if self.end is not None:
            raise self.end
        self._at_work.add(task)
        try:
            return await work()
        except asyncio.CancelledError:
            if self.end is None:
                raise
            task.uncancel()
            raise self.end from None
        finally:
            self._at_work.discard(task)


class ActiveCall(CallRecord):
    """One call in flight.

    observer     of all calls
    facts        further fields of the log line
    phases       time spent in each phase
    checksum     of the request; None if it has none
    """

    checksum: int | None = None
    _sizes: tuple[int, ...] = ()

    def __init__(self, method: str, context: Context, active: ActiveCalls) -> None:
        """Begin a call."""
        self.method = method
        self.context: Context = context
        self.facts: dict[str, Any] = {}
        self.phases = Phases(active.in_phase)
        self._active = active
        self._started = time.monotonic()
        self.observer = active.observer
        self.observer.begin(self)

    def take_id(self, request_id: str) -> None:
        """Check the request_id that the caller chose; ignore an empty one."""
        if request_id:
            self.request_id = codec.read_request_id(request_id)

    def note_request(self, request: EvaluationRequest, *, received: int) -> None:
        """Note the request, and how many bytes of its tensor were received."""
        self.operator, self.dtype = request.operator, request.input.dtype
        self._sizes, self.received_bytes = request.input.sizes, received

    def claim(self, work: int, *, paced: bool = False) -> Claim:
        """Return a claim on slots; for the arguments see Claim."""
        left_s: Any = self.context.time_remaining()  # grpc's types know no calls without deadline
        deadline = math.inf if left_s is None else time.monotonic() + left_s
        return Claim(work=work, peer=caller_of(self.context), deadline=deadline, paced=paced)

    def compute_inline(self, work: Callable[[], T], inline: InlineWork) -> T:
        """Run work that `inline` has admitted, on the event loop."""
        began = time.perf_counter()
        result = work()
        ended = time.perf_counter()
        self.phases.note("compute", began, ended)
        inline.spend(ended - began)
        return result

    def succeed(self) -> None:
        """End the call with OK."""
        self.context.set_trailing_metadata(self._trailers())
        self._finish(self._active.success_level, "OK")

    async def answer(
        self,
        work: Callable[[], Awaitable[T]],
        *,
        in_band: Callable[[EncodedStatus], Awaitable[object]] | None = None,
    ) -> T:
        """Run the work, and turn its exception into a status.

        The error is first sent through in_band, if that is given.
        """
        with self._active:
            try:
                reply = await self._active.work(work)
            except asyncio.CancelledError:
                self._finish(logging.INFO, "CANCELLED")
                raise
            except grpc.aio.InternalError:
                # A write that grpc could not carry out: the caller has gone, and grpc cancels the
                # handler next. It would log a status that it cannot send as an error.
                self._finish(logging.INFO, "CANCELLED")
                self.context.set_code(grpc.StatusCode.CANCELLED)
                await asyncio.sleep(CANCELLATION_S)
            except Exception as error:  # noqa: BLE001 - any error becomes the caller's status
                await self._fail(error, in_band)
            else:
                self.succeed()
                return reply
            # With any status but OK grpc sends no reply.
            return cast("T", None)

    async def _fail(
        self, error: Exception, in_band: Callable[[EncodedStatus], Awaitable[object]] | None
    ) -> None:
        failed = self._status(error).within(
            request_id=self.request_id, traceparent=self.traceparent
        )
        fault = failed.status == "INTERNAL"
        level = logging.ERROR if fault else logging.INFO
        if isinstance(error, ServerFullError):
            level = logging.DEBUG
            self._active.refusals.note(failed.facts.get("limit", ""))
        elif isinstance(error, UnauthenticatedError | MissingScopeError):
            level = logging.DEBUG
            self._active.refusals.note(failed.reason_name.lower(), peer=self.context.peer())
        self.facts |= {"reason": failed.reason_name, "error": failed.message}
        self._finish(level, failed.status, error if fault else None, failed=failed)
        if in_band is not None:
            await in_band(failed)
        details: tuple[str, str | bytes] = ("grpc-status-details-bin", failed.details())
        # Not abort(): its exception would tie grpc's call to this error and to every buffer in the
        # frames of its traceback, and keep them alive until a garbage collection.
        self.context.set_code(failed.code)
        self.context.set_details(failed.message)
        self.context.set_trailing_metadata((*self._trailers(), details))

    def _status(self, error: Exception) -> EncodedStatus:
        """Return the status of an error.

        Other protocols may have other codes.
        """
        return failure(error)

    def _trailers(self) -> tuple[tuple[str, str], ...]:
        return (
            ("gradwire-request-id", self.request_id),
            ("traceparent", self.traceparent),
            ("gradwire-timing", self.phases.told()),
        )

    def _finish(
        self,
        level: int,
        status: str,
        error: Exception | None = None,
        *,
        failed: EncodedStatus | None = None,
    ) -> None:
        duration_s = time.monotonic() - self._started
        self.observer.end(self, status=status, duration_s=duration_s, failed=failed)
        if not _log.isEnabledFor(level):
            return
        facts = {
            "method": self.method,
            "status": status,
            "duration_ms": round(duration_s * 1e3, 3),
            "request_id": self.request_id,
            "traceparent": self.traceparent,
        }
        if self.operator:
            facts |= {"operator": self.operator, "sizes": self._sizes}
        facts |= self.facts
        _log.log(level, "call", extra={"facts": facts}, exc_info=error)


def caller_of(context: Context) -> Hashable:
    """Return the key of a caller's fair share.

    It is the client certificate, or the calling machine. Not the connection: a caller that opens
    several would get several shares.
    """
    identities = context.peer_identities()
    if identities:
        return tuple(identities)
    return context.peer().rpartition(":")[0]
