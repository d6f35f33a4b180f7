"""Streams without sockets, on a virtual clock: order, memory, stalls and the end of a server."""

from __future__ import annotations

import asyncio
import selectors
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

import grpc
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire import v1
from gradwire_server.backends import NumpyCpu
from gradwire_server.config.settings import Settings
from gradwire_server.engine import Preparer, TableCache, at_once
from gradwire_server.rpc import codec
from gradwire_server.rpc.call_context import ActiveCalls
from gradwire_server.rpc.service_context import BackendInUse, ServiceContext
from gradwire_server.rpc.stream import EvaluationStream
from gradwire_server.scheduling.admission import Admission, InlineWork
from gradwire_server.server import device_watch
from support.raw_calls import chunk, float32, identity_request, opening

T = TypeVar("T")

# Far more turns of the event loop than any of these tests takes.
_MOST_TURNS = 100_000


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for nothing: the clock jumps instead."""

    now = 1000.0
    turns = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.turns += 1
        if timeout is None or self.turns > _MOST_TURNS:
            raise AssertionError("every task waits, and nothing is due or everything at once")
        self.now += max(0.0, timeout)
        return super().select(0)


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop with a virtual clock; waiting takes no time."""
    selector = _JumpingSelector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(work)


class _Here(Executor):
    """Runs work at once, in the thread that submits it."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments, **named))
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            done.set_exception(error)
        return done


def virtual_service(**settings: Any) -> ServiceContext:
    """Return a service that computes with NumPy, in the running loop's thread."""
    made = Settings(**settings)
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    ready.set()
    pool: Any = _Here()
    return ServiceContext(
        settings=made,
        in_use=BackendInUse(NumpyCpu(), ""),
        preparer=Preparer(made.limits, TableCache(max_entries=1 << 16)),
        admission=Admission(
            max_memory_bytes=made.max_memory_bytes,
            max_streams=made.max_streams,
            clock=loop.time,
        ),
        pool=pool,
        active=ActiveCalls(),
        device=device_watch(made),
        ready=ready,
        draining=asyncio.Event(),
        inline=InlineWork(),
    )


class VirtualCall:
    """A call as a handler sees it. The caller writes by `send`, and reads by `receive`.

    most  messages that the server may write before the caller reads one
    code  the call's status once it has ended; None for OK
    reads number of messages the server has read
    """

    def __init__(self, *, peer: str = "ipv4:127.0.0.1:1", most: int = 1) -> None:
        self._peer = peer
        self._most = most
        self._incoming: deque[Any] = deque()
        self._outgoing: deque[Any] = deque()
        self._changed = asyncio.Event()
        self.code: grpc.StatusCode | None = None
        self.details = ""
        self.reads = 0

    async def _until(self, holds: Callable[[], object]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    def send(self, *messages: Any) -> None:
        self._incoming.extend(messages)
        self._changed.set()

    def half_close(self) -> None:
        self.send(grpc.aio.EOF)

    async def receive(self) -> Any:
        await self._until(lambda: self._outgoing)
        self._changed.set()
        return self._outgoing.popleft()

    async def read(self) -> Any:
        await self._until(lambda: self._incoming)
        self.reads += 1
        message = self._incoming[0]
        if message is not grpc.aio.EOF:
            self._incoming.popleft()
        return message

    async def write(self, message: Any) -> None:
        await self._until(lambda: len(self._outgoing) < self._most)
        self._outgoing.append(message)
        self._changed.set()

    def peer(self) -> str:
        return self._peer

    def peer_identities(self) -> None: ...

    def time_remaining(self) -> None: ...

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def set_trailing_metadata(self, _metadata: object) -> None: ...

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        self.details = details


ROWS, COLUMNS = 64, 8
STALL_S = 20.0


def encoded(messages: Iterable[v1.EvaluateStreamRequest]) -> list[Any]:
    """Return messages as grpc hands them to the handler."""
    return [message.SerializeToString() for message in messages]


def halving() -> v1.EvaluateRequest:
    """Ask for the gradient of a bilinear enlargement of 32 rows to 64."""
    interpolate = v1.Interpolate(
        mode=v1.Interpolate.MODE_BILINEAR, data_format=v1.Interpolate.DATA_FORMAT_NCX
    )
    request = v1.EvaluateRequest(
        operator=v1.Operator(interpolate_backward=interpolate),
        input=float32(1, 1, ROWS, COLUMNS),
        output=float32(1, 1, ROWS // 2, COLUMNS),
    )
    request.data = np.random.default_rng(0).random((ROWS, COLUMNS), np.float32).tobytes()
    return request


def began(service: ServiceContext, call: VirtualCall) -> asyncio.Task[None]:
    context: Any = call
    return asyncio.ensure_future(EvaluationStream.serve(service, None, context))


def message(answer: Any) -> v1.EvaluateStreamResponse:
    data = answer if isinstance(answer, bytes) else answer.SerializeToString()
    return v1.EvaluateStreamResponse.FromString(data)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1), st.integers(1, 4), st.sampled_from((512, 1024, 4096))
)
def test_any_chunks_give_the_bits_of_the_whole(
    lengths: list[int], most: int, slab_bytes: int
) -> None:
    async def scene() -> None:
        service = virtual_service(slab_bytes=slab_bytes)
        request = halving()
        prepared = service.preparer.prepare(codec.read_request(request))
        expected = at_once(prepared, request.data, service.backend).tobytes()
        call = VirtualCall(most=most)
        call.send(*encoded([opening(request)]))
        serving = began(service, call)
        assert message(await call.receive()).WhichOneof("message") == "opened"
        at = number = 0
        while at < len(request.data):
            stop = at + 4 * lengths[number % len(lengths)]
            call.send(*encoded([chunk(at, request.data[at:stop])]))
            at, number = min(stop, len(request.data)), number + 1
        call.half_close()
        result = bytearray()
        while len(result) < len(expected):
            part = message(await call.receive()).chunk
            assert part.offset == len(result)
            result += part.data
        await serving
        assert bytes(result) == expected
        assert call.code is None
        admission = service.admission
        assert (admission.memory_bytes, admission.streams) == (0, 0)

    run_virtually(scene())


def test_a_caller_that_does_not_read_is_read_no_further() -> None:
    async def scene() -> None:
        service = virtual_service(stall_timeout_s=STALL_S, slab_bytes=128)
        request = identity_request(1 << 10)
        call = VirtualCall()
        call.send(*encoded([opening(request)]))
        serving = began(service, call)
        assert message(await call.receive()).opened.read_before_byte == 4 << 10
        call.send(*encoded(chunk(at, bytes(64)) for at in range(0, 4 << 10, 64)))
        await asyncio.sleep(STALL_S / 2)
        # The first message, and a chunk in each place: written, waiting, computed and just read.
        assert call.reads <= 8
        for _ in range(64):
            await call.receive()
        call.half_close()
        await serving
        assert call.code is None

    run_virtually(scene())


def test_a_stream_without_progress_ends_after_the_stall_timeout() -> None:
    async def scene() -> None:
        service = virtual_service(stall_timeout_s=STALL_S)
        loop = asyncio.get_running_loop()
        for sent in ([], [opening(halving())], [opening(halving()), chunk(0, bytes(1024))]):
            call = VirtualCall(most=100)
            call.send(*encoded(sent))
            start = loop.time()
            await began(service, call)
            assert STALL_S <= loop.time() - start < STALL_S + 1
            assert call.code is grpc.StatusCode.DEADLINE_EXCEEDED
            assert "GRADWIRE_STALL_TIMEOUT_S" in call.details
            assert service.admission.memory_bytes == 0

    run_virtually(scene())


def test_each_message_renews_the_stall_timeout() -> None:
    async def scene() -> None:
        service = virtual_service(stall_timeout_s=STALL_S)
        request = halving()
        call = VirtualCall(most=100)
        call.send(*encoded([opening(request)]))
        serving = began(service, call)
        for at in range(0, len(request.data), 256):
            await asyncio.sleep(0.9 * STALL_S)
            call.send(*encoded([chunk(at, request.data[at : at + 256])]))
        call.half_close()
        await serving
        assert call.code is None

    run_virtually(scene())
