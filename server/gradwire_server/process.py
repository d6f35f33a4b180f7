"""One process that serves: from its start to the signal that stops it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial

from gradwire_server import logs, malloc, signals
from gradwire_server.app import Server
from gradwire_server.backends import Backend
from gradwire_server.backends.device_process.jobs import Address
from gradwire_server.devices import Devices, are_wanted, shared
from gradwire_server.settings import Settings

_log = logging.getLogger("gradwire_server")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# How long a busy event loop keeps Python's lock from threads that compute, which need it a few
# times in each call. With the default of 5 ms they hardly get on while calls have to be refused.
_SWITCH_INTERVAL_S = 5e-5
# In the time in which one at least has to come.
_BEATS = 8


async def serve(
    settings: Settings,
    *,
    worker: int | None = None,
    backend: Backend | None = None,
    cells: int | None = None,
    addresses: Sequence[Address] = (),
    on_serving: Callable[[Server], object] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then stop gracefully.

    worker     number among the processes that serve the address together; None for one alone, which
               a second signal ends at once. One among several leaves on SIGUSR2, as if it had never
               been there; one alone ignores that
    backend    what computes; None takes the one that settings choose
    cells      file descriptor of the memory for the metrics of a worker, if they are wanted
    addresses  where a worker finds the devices that compute; one alone starts them itself
    on_serving  called in the event loop once the server serves

    Raises ValueError where no device is there, RuntimeError where one is lost for good.
    """
    facts = {} if worker is None else {"worker": worker}
    logs.configure(settings.log_format, settings.log_level, **facts)
    malloc.keep(settings.malloc_keep_bytes)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    asked, relieved = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, asked.set)
    loop.add_signal_handler(signal.SIGUSR2, partial(_leave, worker, asked, relieved))
    signals.release()
    starts_devices = are_wanted(settings) and worker is None and backend is None
    own = Devices(settings) if starts_devices else None
    over = asyncio.Event() if own is None else own.over
    try:
        start = _start(settings, backend, own, addresses, worker=worker, cells=cells)
        server = await _started(start, asked, over)
        beating = None if worker is None else asyncio.create_task(_beat(settings.stall_timeout_s))
        if server is not None:
            if on_serving is not None:
                on_serving(server)
            await _first(asked, over)
            if worker is None:
                for number in _SIGNALS:
                    loop.remove_signal_handler(number)
            if not relieved.is_set():
                await server.turn_away(settings.drain_delay_s)
            await server.stop(settings.grace_s)
        if beating is not None:
            beating.cancel()
    finally:
        if own is not None:
            await own.stop()
    if own is not None:
        own.check()


async def _start(
    settings: Settings,
    backend: Backend | None,
    own: Devices | None,
    addresses: Sequence[Address],
    *,
    worker: int | None,
    cells: int | None,
) -> Server:
    reason = ""
    if own is not None:
        await own.start()
        addresses = own.addresses
    if addresses:
        backend, reason = shared(settings, addresses)
    server = Server(
        settings,
        backend=backend,
        reason=reason,
        shares_port=worker is not None,
        cells=cells,
        devices=[] if own is None else own.ledgers,
    )
    await server.start()
    return server


async def _started(
    start: Coroutine[None, None, Server], asked: asyncio.Event, over: asyncio.Event
) -> Server | None:
    """Return a server that has started; None where its devices cannot be kept."""
    starting = asyncio.ensure_future(start)
    ending = asyncio.ensure_future(_first(asked, over))
    await asyncio.wait({starting, ending}, return_when=asyncio.FIRST_COMPLETED)
    ending.cancel()
    if starting.done():
        server = await starting
        # What starting leaves behind would otherwise be looked through during one of the first
        # calls.
        gc.collect()
        # Parents that start a server on port 0 read this line.
        print(f"gradwire-server listening on {server.bound}", flush=True)  # noqa: T201
        return server
    if asked.is_set():
        _log.info("stopped while starting")
        # A compiler at work cannot be asked to stop, and nothing else runs yet.
        os._exit(0)
    starting.cancel()
    await asyncio.wait({starting})
    return None


async def _beat(patience_s: float) -> None:
    """Give the process that watches the workers a sign of life, several within its patience."""
    pipe = sys.stdout.fileno()
    os.set_blocking(pipe, False)
    while True:
        # It may be stopped itself, and read nothing for long.
        with contextlib.suppress(BlockingIOError):
            os.write(pipe, b".")
        await asyncio.sleep(patience_s / _BEATS)


async def _first(*events: asyncio.Event) -> None:
    """Wait for one of several events."""
    waiting = {asyncio.ensure_future(one.wait()) for one in events}
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waiting:
            one.cancel()


def _leave(worker: int | None, asked: asyncio.Event, relieved: asyncio.Event) -> None:
    if worker is None:
        _log.warning("no rolling restart: that needs several workers")
        return
    relieved.set()
    asked.set()
