"""One serving process, from its start to the stop signal."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Never

import uvloop

from gradwire_server.backends import Backend
from gradwire_server.config.settings import Settings
from gradwire_server.errors import DeviceLostError
from gradwire_server.observability import logs
from gradwire_server.processes import startup
from gradwire_server.scheduling import malloc, tasks
from gradwire_server.scheduling.device_watch import LOST_STATUS, DeviceWatch
from gradwire_server.security.authorization import warn_if_open
from gradwire_server.server import Server

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Switch interval of Python's lock, which computing threads need a few times in each call. With the
# default of 5 ms a busy event loop that refuses calls nearly stops them.
_SWITCH_INTERVAL_S = 5e-5


def run(serving: Coroutine[Any, Any, None]) -> None:
    """Run serve() on uvloop: a small call takes a third fewer instructions."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serving)


async def serve(
    settings: Settings,
    *,
    worker: int | None = None,
    backend: Backend | None = None,
    cells: int | None = None,
    beside: Callable[[Server], Coroutine[None, None, None]] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then stop gracefully.

    If the device is lost the process exits with LOST_STATUS, once calls have their status.

    worker   number among the processes that serve the address together, which stop on SIGUSR2
             without being NOT_SERVING first; None for a single process, which ignores SIGUSR2 and
             which a second signal ends at once
    backend  None selects the one in the settings
    cells    file descriptor of the memory for a worker's metrics
    beside   runs beside the server once it serves, and is cancelled at its end

    Raises ValueError if the backend cannot run.
    """
    facts = {} if worker is None else {"worker": worker}
    logs.configure(settings.log_format, settings.log_level, **facts)
    malloc.keep_freed_memory()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    asked, relieved = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, asked.set)
    loop.add_signal_handler(signal.SIGUSR2, partial(_leave, worker, asked, relieved))
    startup.release()
    device = DeviceWatch(stall_timeout_s=settings.stall_timeout_s)
    start = _start(settings, backend, device, cells=cells)
    server = await _started(start, asked, device)
    if worker is None:
        warn_if_open(settings)
    reporting = asyncio.create_task(beside(server)) if beside else None
    await tasks.first(asked, server.over)
    if worker is None:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
    if not server.over.is_set():
        if not relieved.is_set():
            await server.turn_away(settings.drain_delay_s)
        await server.stop(settings.grace_s)
    if device.lost.is_set():
        _end_without_device()
    if reporting is not None:
        reporting.cancel()


async def _start(
    settings: Settings, backend: Backend | None, device: DeviceWatch, *, cells: int | None
) -> Server:
    reason = ""
    if backend is None and settings.backend == "cuda":
        # In a thread of its own: a driver may hang.
        opening = ThreadPoolExecutor(1).submit(settings.choose_backend)
        chosen = await device.result(opening)
        backend, reason = chosen
    server = Server(settings, backend=backend, reason=reason, cells=cells, device=device)
    await server.start()
    return server


async def _started(
    start: Coroutine[None, None, Server], asked: asyncio.Event, device: DeviceWatch
) -> Server:
    """Return the started server.

    Exits if the device is lost or a stop signal came.
    """
    starting = asyncio.ensure_future(start)
    await tasks.first(starting, asked, device.lost)
    if device.lost.is_set():
        _end_without_device()
    if not starting.done():
        logs.info("stopped while starting")
        # A running compiler cannot be interrupted, and nothing else runs yet.
        os._exit(0)
    try:
        server = await starting
    except DeviceLostError as error:
        device.lose(str(error))
        _end_without_device()
    # Otherwise one of the first calls would wait for the collection of the start's garbage.
    gc.collect()
    # Parents that start a server on port 0 read this line.
    startup.tell(f"gradwire-server listening on {server.bound}")
    return server


def _end_without_device() -> Never:
    """Exit without waiting for threads: one may hang in a driver forever."""
    logging.shutdown()
    os._exit(LOST_STATUS)


def _leave(worker: int | None, asked: asyncio.Event, relieved: asyncio.Event) -> None:
    if worker is None:
        logs.warning("no rolling restart: that needs several workers")
        return
    relieved.set()
    asked.set()
