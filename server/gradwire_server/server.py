"""Builds the server from its settings: the composition root."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import grpc

from gradwire_server import backends
from gradwire_server.backends import Backend
from gradwire_server.backends.changeover import load_kernels
from gradwire_server.config.addresses import check_free
from gradwire_server.config.settings import Settings
from gradwire_server.config.version import VERSION
from gradwire_server.engine import Preparer, TableCache
from gradwire_server.exporters import Instruments
from gradwire_server.observability import logs
from gradwire_server.rpc import codec, handlers
from gradwire_server.rpc.call_context import ActiveCalls
from gradwire_server.rpc.health import Health
from gradwire_server.rpc.interceptors import AuthorizingHandler
from gradwire_server.rpc.segments import SegmentListener, Segments
from gradwire_server.rpc.service_context import BackendInUse, ServiceContext
from gradwire_server.rpc.warm_up import check_backend
from gradwire_server.scheduling import malloc, tasks
from gradwire_server.scheduling.admission import Admission, InlineWork
from gradwire_server.scheduling.device_watch import DeviceWatch
from gradwire_server.scheduling.thread_pool import compute_pool
from gradwire_server.security.authorization import Authorizer


class Server:
    """A gRPC server with all its parts.

    Belongs to the event loop that makes it.

    backend       the backend and the reason for its choice; None takes the settings' choice
    cells         file descriptor of a supervisor's memory for the metrics of a worker, which shares
                  its port with others; None for a single process
    device        watch over the computing device; None for a new watch
    service       the parts that the handlers share
    instruments   metrics and traces of the server
    over          set once the device is lost and every call in flight has its status

    Raises ValueError if the tokens file cannot be used.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        backend: Backend | None = None,
        reason: str = "",
        cells: int | None = None,
        device: DeviceWatch | None = None,
    ) -> None:
        self.settings = settings
        self._authorizer = Authorizer(settings)
        self._shares_port = cells is not None
        self._pool = compute_pool(settings.threads)
        self._health = Health()
        self.instruments = Instruments(settings, cells=cells)
        self._device = device or device_watch(settings)
        self.over = asyncio.Event()
        self._ending: asyncio.Future[None] | None = None
        success_level = logging.INFO if settings.access_log else logging.DEBUG
        active = ActiveCalls(self.instruments.observer, success_level=success_level)
        self._chooses = backend is None
        if backend is None:
            first = None if settings.wait_for_kernels else backends.meanwhile(settings.backend)
            if first is None:
                in_use = BackendInUse(*settings.choose_backend())
            else:
                in_use = BackendInUse(*first)
        else:
            in_use = BackendInUse(backend, reason or f"{backend.name} was given")
        self.service = _service_context(settings, self._pool, in_use, active, self._device)
        self._background: list[asyncio.Task[None]] = []
        self._server = self._build()
        self._warm_up_s: float | None = None
        self.port = 0

    def _build(self) -> grpc.aio.Server:
        options = handlers.options(self.settings, shares_port=self._shares_port)
        server = grpc.aio.server(options=options)
        segments = Segments(self.service.admission)
        self._segments = _segment_listener(self.settings, segments)
        found = handlers.of_methods(self.service, segments, self._health)
        asking = AuthorizingHandler(found, self._authorizer, self.service.active)
        server.add_generic_rpc_handlers((asking,))
        return server

    async def start(self) -> None:
        """Listen, get ready, and serve.

        Calls that arrive meanwhile fail with StartingError. If other processes serve the same port,
        it listens last: they answer meanwhile.
        """
        if self._shares_port:
            await self._warm_up()
        await self.listen()
        await self.get_ready()

    async def listen(self) -> None:
        """Listen without evaluating yet; `port` then holds the port bound."""
        settings = self.settings
        if not self._shares_port:
            check_free(settings.address)
            if settings.local_socket:
                check_free(f"unix:{settings.local_socket}")
        if settings.tls_certificate:
            self.port = self._server.add_secure_port(
                settings.address, handlers.credentials(settings)
            )
        else:
            self.port = self._server.add_insecure_port(settings.address)
        if settings.local_socket:
            self._server.add_insecure_port(f"unix:{settings.local_socket}")
        if self._segments is not None:
            try:
                self._segments.start()
            except OSError as error:  # the path is too long, or belongs to another user
                logs.warning("no shared memory", error=str(error))
        self.instruments.start(self.service, address=self.bound)
        self._health.tell(serving=False)
        self._device.listeners_shut.clear()
        self._ending = asyncio.ensure_future(self._end_when_lost())
        await self._server.start()
        admission = self.service.admission
        trimming = malloc.trim_when_idle(lambda: admission.entered, self.service.off_loop)
        self._background.append(asyncio.create_task(trimming))

    async def get_ready(self) -> None:
        """Compile all code that calls need, then serve."""
        try:
            await self._warm_up()
        except BaseException:
            if self._device.lost.is_set():
                await self.over.wait()
            else:
                await self._server.stop(None)
                await self.instruments.stop()
            raise
        self.service.ready.set()
        self.instruments.note_serving(serves=True)
        self._health.tell(serving=True)
        in_use = self.service.in_use
        logs.info(
            "serving",
            address=self.bound,
            version=VERSION,
            backend=in_use.backend.name,
            backend_reason=in_use.reason,
            **({"backend_to_come": in_use.to_come} if in_use.to_come else {}),
            compute_threads=self.settings.threads,
            max_memory_bytes=self.settings.max_memory_bytes,
            tls=bool(self.settings.tls_certificate),
            tokens=self._authorizer.wants_tokens,
            warm_up_s=self._warm_up_s,
        )
        if in_use.to_come:
            self._background.append(asyncio.create_task(self._change_backend()))

    async def _warm_up(self) -> None:
        if self._warm_up_s is not None or not self.settings.warm_up:
            return
        backend = self.service.backend
        logs.info("warming up", backend=backend.name)
        started = time.monotonic()
        try:
            await self._compute_first(backend)
        except Exception as error:
            if not (self._chooses and isinstance(backend, backends.StoresKernels)):
                raise
            backend, reason = backends.instead_of_compiled(self.settings.backend, error)
            self.service.use(backend, reason)
            await self._compute_first(backend)
        self._warm_up_s = round(time.monotonic() - started, 3)

    async def _compute_first(self, backend: Backend) -> None:
        # Not watched: compilers may take longer than any call to a device.
        await self.service.off_loop(backend.warm_up)
        await self.service.compute(partial(check_backend, backend))

    async def _change_backend(self) -> None:
        """Compute with compiled kernels once they are there; calls go on meanwhile."""
        began, settings = time.monotonic(), self.settings
        try:
            backend, reason = await asyncio.to_thread(settings.choose_backend)
            if isinstance(backend, backends.StoresKernels):
                await load_kernels(backend, cache_dir=settings.compile_cache)
                await asyncio.to_thread(check_backend, backend)
        except Exception as error:  # noqa: BLE001 - NumPy goes on after any error of compilers
            backend, reason = backends.instead_of_compiled(settings.backend, error)
        self.service.use(backend, reason)
        self.instruments.sample()
        after_s = round(time.monotonic() - began, 3)
        logs.info("computing", backend=backend.name, after_s=after_s, backend_reason=reason)

    @property
    def bound(self) -> str:
        """The address with the port bound."""
        if self.settings.address.startswith("unix:"):
            return self.settings.address
        return f"{self.settings.address.rpartition(':')[0]}:{self.port}"

    async def turn_away(self, delay_s: float) -> None:
        """Report NOT_SERVING, and accept calls until load balancers have noticed."""
        logs.info("reporting NOT_SERVING", drain_delay_s=delay_s)
        self.instruments.note_serving(serves=False)
        self._health.leave()
        await asyncio.sleep(delay_s)

    async def stop(self, grace_s: float) -> None:
        """Stop the server after its running calls.

        It accepts no new calls, lets running ones finish, then ends the remaining ones. The health
        status does not change: if others serve the port, clients must not leave it.
        """
        logs.info("draining", grace_s=grace_s, streams=self.streams)
        tasks.cancel(self._background)
        await asyncio.gather(*self._background, return_exceptions=True)
        stopped = asyncio.ensure_future(self._server.stop(grace_s + _LAST_WORDS_S))
        await self.service.active.ended(grace_s)
        self.service.draining.set()
        await self.service.active.ended(_LAST_WORDS_S)
        # Statuses are still being sent; the remaining calls watch health, or do not read.
        await asyncio.wait({stopped}, timeout=_LAST_STATUS_S)
        await self._server.stop(None)
        await stopped
        if self._segments is not None:
            await self._segments.stop()
        for pool in (self._pool, self.service.table_pool):
            pool.shutdown(wait=False, cancel_futures=True)
        if self._device.lost.is_set():
            await self.over.wait()
        else:
            if self._ending is not None:
                self._ending.cancel()
            await self.instruments.stop()
        logs.info("stopped")

    async def _end_when_lost(self) -> None:
        """Wait for the loss of the device, then end.

        The listeners are closed, and every call in flight is ended.
        """
        await self._device.lost.wait()
        assert self._device.error is not None  # noqa: S101 - it is lost
        self.instruments.note_serving(serves=False)
        stopped = asyncio.ensure_future(self._server.stop(_LAST_WORDS_S))
        for _ in range(_TURNS_TO_CLOSE):
            await asyncio.sleep(0)
        self.service.active.end_all(self._device.error)
        self._device.listeners_shut.set()
        await self.service.active.ended(_LAST_WORDS_S)
        await asyncio.wait({stopped}, timeout=_LAST_STATUS_S)
        await asyncio.wait({asyncio.ensure_future(self._server.stop(None))}, timeout=_LAST_STATUS_S)
        await self.instruments.stop()
        self.over.set()

    @property
    def streams(self) -> int:
        """Streams open now."""
        return self.service.admission.streams


# Time for streams, after the grace period, to report to their callers that the server stops.
_LAST_WORDS_S = 12.0
# How long the statuses of calls that have ended may take to leave.
_LAST_STATUS_S = 2.0
# Turns of the event loop in which grpc begins to stop: it closes its listeners first.
_TURNS_TO_CLOSE = 4


def device_watch(settings: Settings) -> DeviceWatch:
    """Return the watch over the device of a server with these settings."""
    return DeviceWatch(stall_timeout_s=settings.stall_timeout_s)


def _segment_listener(settings: Settings, segments: Segments) -> SegmentListener | None:
    """Return the listener for shared memory; None if the server takes none."""
    if not (settings.socket_path and settings.shared_memory and hasattr(os, "memfd_create")):
        return None
    path = f"{settings.socket_path}.memory"
    return SegmentListener(path, segments, users=settings.users_sharing_memory)


def _service_context(
    settings: Settings,
    pool: ThreadPoolExecutor,
    in_use: BackendInUse,
    active: ActiveCalls,
    device: DeviceWatch,
) -> ServiceContext:
    admission = Admission(
        max_memory_bytes=settings.max_memory_bytes,
        max_streams=settings.max_streams,
        threads=settings.threads,
        max_queue=settings.max_queue,
        max_queue_s=settings.max_queue_s,
    )
    inline = InlineWork()
    inline.limit(in_use.backend, settings.threads)
    return ServiceContext(
        settings=settings,
        in_use=in_use,
        preparer=Preparer(
            settings.limits,
            TableCache(),
            encode_output=lambda output: codec.response_header(codec.write_descriptor(output)),
        ),
        admission=admission,
        pool=pool,
        active=active,
        device=device,
        ready=asyncio.Event(),
        draining=asyncio.Event(),
        inline=inline,
    )
