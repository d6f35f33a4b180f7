"""Builds the server from its settings: the composition root."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from functools import partial
from pathlib import Path

import grpc

from gradwire._wire.environment import VERSION
from gradwire_server import backends
from gradwire_server.backends import Backend
from gradwire_server.backends.changeover import load_kernels
from gradwire_server.config.addresses import check_free
from gradwire_server.config.settings import Settings
from gradwire_server.exporters import Instruments
from gradwire_server.observability import logs
from gradwire_server.rpc import handlers
from gradwire_server.rpc.call_context import ActiveCalls
from gradwire_server.rpc.health import Health
from gradwire_server.rpc.interceptors import AuthorizingHandler
from gradwire_server.rpc.segments import Segments
from gradwire_server.rpc.service_context import ServiceContext
from gradwire_server.rpc.warm_up import check_backend
from gradwire_server.scheduling import malloc, tasks
from gradwire_server.scheduling.device_watch import DeviceWatch
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

    _ending: asyncio.Future[None] | None = None

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
        authorizer = Authorizer(settings)
        self._shares_port = cells is not None
        self._health = Health()
        self.instruments = Instruments(settings, cells=cells)
        self.over = asyncio.Event()
        success_level = logging.INFO if settings.access_log else logging.DEBUG
        active = ActiveCalls(self.instruments.observer, success_level=success_level)
        self._chooses = backend is None
        to_come = ""
        if backend is None:
            first = None if settings.wait_for_kernels else backends.meanwhile(settings.backend)
            backend, reason, to_come = first or (*settings.choose_backend(), "")
        reason = reason or f"{backend.name} was given"
        device = device or DeviceWatch(stall_timeout_s=settings.stall_timeout_s)
        self.service = ServiceContext(
            settings, active, device, backend, reason=reason, to_come=to_come
        )
        self._background: list[asyncio.Task[None]] = []
        self._warm_up_s: float | None = None
        self.port = 0
        self._segments = Segments(self.service.admission, settings.users_sharing_memory)
        found = handlers.of_methods(self.service, self._segments, self._health)
        options = handlers.options(settings, shares_port=self._shares_port)
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((AuthorizingHandler(found, authorizer, active),))

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
        if settings.socket_path and settings.shared_memory and hasattr(os, "memfd_create"):
            try:
                self._segments.start(Path(f"{settings.socket_path}.memory"))
            except OSError as error:  # the path is too long, or belongs to another user
                logs.warning("no shared memory", error=str(error))
        self.instruments.start(self.service, address=self.bound)
        self.service.device.listeners_shut.clear()
        self._ending = asyncio.ensure_future(self._end_when_lost())
        await self._server.start()
        trimming = malloc.trim_when_idle(self.service.admission, self.service.pool)
        self._background.append(asyncio.create_task(trimming))

    async def get_ready(self) -> None:
        """Compile all code that calls need, then serve."""
        try:
            await self._warm_up()
        except BaseException:
            if not self.service.device.lost.is_set():
                await self._server.stop(None)
            await self._end()
            raise
        service = self.service
        service.ready.set()
        self._tell(serving=True)
        logs.info(
            "serving",
            address=self.bound,
            version=VERSION,
            backend=service.backend.name,
            backend_reason=service.reason,
            **({"backend_to_come": service.to_come} if service.to_come else {}),
            compute_threads=self.settings.threads,
            max_memory_bytes=self.settings.max_memory_bytes,
            tls=bool(self.settings.tls_certificate),
            tokens=bool(self.settings.tokens),
            warm_up_s=self._warm_up_s,
        )
        if service.to_come:
            self._background.append(asyncio.create_task(self._change_backend()))

    async def _warm_up(self) -> None:
        if self._warm_up_s is not None or not self.settings.warm_up:
            return
        backend = self.service.backend
        logs.info("warming up", backend=backend.name)
        started = time.monotonic()
        try:
            # Not watched: compilers may take longer than any call to a device.
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self.service.pool, backend.warm_up)
            await self.service.out_of_turn(partial(check_backend, backend))
        except Exception as error:
            if not (self._chooses and isinstance(backend, backends.StoresKernels)):
                raise
            self.service.use(*backends.instead_of_compiled(self.settings.backend, error))
        self._warm_up_s = round(time.monotonic() - started, 3)

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
        self._tell(serving=False)
        await asyncio.sleep(delay_s)

    def _tell(self, *, serving: bool) -> None:
        """Report from now on that the server serves, or not."""
        self.instruments.serves = serving
        self.instruments.sample()
        self._health.tell(serving=serving)

    async def stop(self, grace_s: float) -> None:
        """Stop the server after its running calls.

        It accepts no new calls, lets running ones finish, then ends the remaining ones. The health
        status does not change: if others serve the port, clients must not leave it.
        """
        logs.info("draining", grace_s=grace_s, streams=self.service.admission.streams)
        await tasks.end(self._background)
        stopped = asyncio.ensure_future(self._server.stop(grace_s + _LAST_WORDS_S))
        await self.service.active.ended(grace_s)
        self.service.draining.set()
        await self._shut(stopped)
        await self._segments.stop()
        for pool in (self.service.pool, self.service.table_pool):
            pool.shutdown(wait=False, cancel_futures=True)
        await self._end()
        logs.info("stopped")

    async def _shut(self, stopped: asyncio.Future[None]) -> None:
        """Wait for calls that were told to end, then end the others.

        stopped  grpc's end of the server
        """
        await self.service.active.ended(_LAST_WORDS_S)
        # Statuses are still being sent; the remaining calls watch health, or do not read.
        await asyncio.wait({stopped}, timeout=_LAST_STATUS_S)
        await asyncio.wait({asyncio.ensure_future(self._server.stop(None))}, timeout=_LAST_STATUS_S)
        # grpc leaves its tasks of the last calls behind, and prints their cancellation by the loop.
        if last := {task for task in asyncio.all_tasks() if task.get_name() == "rpc_task"}:
            await asyncio.wait(last, timeout=_LAST_STATUS_S)

    async def _end(self) -> None:
        """Export the last metrics and traces; a lost device does so itself."""
        if self.service.device.lost.is_set():
            await self.over.wait()
        else:
            if self._ending is not None:
                self._ending.cancel()
            await self.instruments.stop()

    async def _end_when_lost(self) -> None:
        """Wait for the loss of the device, then end.

        The listeners are closed, and every call in flight is ended.
        """
        device = self.service.device
        await device.lost.wait()
        assert device.error is not None  # noqa: S101 - it is lost
        self.instruments.serves = False
        self.instruments.sample()
        stopped = asyncio.ensure_future(self._server.stop(_LAST_WORDS_S))
        for _ in range(_TURNS_TO_CLOSE):
            await asyncio.sleep(0)
        self.service.active.end_all(device.error)
        device.listeners_shut.set()
        await self._shut(stopped)
        await self.instruments.stop()
        self.over.set()


# Time for streams, after the grace period, to report to their callers that the server stops.
_LAST_WORDS_S = 12.0
# How long the statuses of calls that have ended may take to leave.
_LAST_STATUS_S = 2.0
# Turns of the event loop in which grpc begins to stop: it closes its listeners first.
_TURNS_TO_CLOSE = 4
