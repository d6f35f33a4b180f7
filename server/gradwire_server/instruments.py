"""What measures one server: an observer of its calls, readings of its parts, and their ways out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial

from gradwire_server.backends import LeavesToCpu, TakesDeviceMemory
from gradwire_server.config.settings import Settings
from gradwire_server.config.version import VERSION
from gradwire_server.engine import NUMERICS_VERSION, Preparer
from gradwire_server.exporters import LAST_EXPORT_S, Outlets, are_wanted, tracer
from gradwire_server.observability import Cells, Ledgers, Observer, Recorder, Sampler
from gradwire_server.observability.cells import place, span
from gradwire_server.observability.definitions import (
    BUILD,
    CACHE,
    COMPUTED,
    DEVICE_MEMORY,
    LOOKUPS,
    MEMORY,
    MEMORY_LIMIT,
    OUTCOME,
    QUEUE_DEPTH,
    READY,
    STREAMS,
    STREAMS_LIMIT,
)
from gradwire_server.rpc.unary import Workshop

_log = logging.getLogger("gradwire_server")


class Instruments:
    """Belongs to the event loop that makes the server.

    observer  of calls; nobody listens behind it where neither metrics nor traces are wanted
    address   of the HTTP port; empty where there is none

    one_of_several  whether a supervisor tells the metrics
    cells           its memory for them, as a file descriptor; None where nobody wants them
    """

    def __init__(
        self,
        settings: Settings,
        *,
        one_of_several: bool,
        cells: int | None,
    ) -> None:
        self._settings = settings
        self._cells: Cells | None = None
        if cells is not None:
            self._cells = Cells.attached(cells)
            if self._cells is None:
                _log.warning("no metrics: the supervisor runs another version; restart it")
        elif not one_of_several and are_wanted(settings):
            self._cells = Cells.private()
        self._tells = self._cells is not None and not one_of_several
        self.observer = Observer(None if self._cells is None else Recorder(self._cells))
        self._serves = False
        self._outlets: Outlets | None = None
        self._sampler: Sampler | None = None

    @property
    def address(self) -> str:
        """Of the HTTP port; empty where there is none."""
        return "" if self._outlets is None else self._outlets.address

    def start(self, workshop: Workshop, *, address: str) -> None:
        """Open the ways out; address is the server's own.

        Raises OSError where the HTTP port's address cannot be had, ValueError as Outlets does.
        """
        if self._cells is not None and self._tells:
            ledgers = Ledgers.of_this_process(self._cells)
            self._outlets = Outlets(self._settings, ledgers, served=address)
        self.observer.tracer = tracer(self._settings, address=address)
        if self._cells is not None:
            self._tell_backend(self._cells, workshop)
            self._sampler = Sampler(self._cells, self._readings(workshop))
            self._sampler.start()

    def note_backend(self, workshop: Workshop) -> None:
        """Note that another backend computes."""
        if self._cells is not None and self._sampler is not None:
            builds = span(BUILD)
            for cell in range(builds.start, builds.stop):
                self._cells.values[cell] = 0.0
            self._tell_backend(self._cells, workshop)
            self._sampler.renew(self._readings(workshop))

    def _tell_backend(self, cells: Cells, workshop: Workshop) -> None:
        name, reason = workshop.backend.name, workshop.backend_reason
        cells.notes.tell({"backend": name, "backend_reason": reason})

    def note_serving(self, *, serves: bool) -> None:
        """Note that the server serves from now on, or does no more."""
        self._serves = serves
        if self._sampler is not None:
            self._sampler.sample()

    async def stop(self) -> None:
        """Tell the last of it and close the ways out, off the event loop."""
        if self._sampler is not None:
            await self._sampler.stop()
        closing: list[Coroutine[None, None, None]] = []
        if self.observer.tracer is not None:
            closing.append(asyncio.to_thread(self.observer.tracer.close, LAST_EXPORT_S))
        if self._outlets is not None:
            closing.append(asyncio.to_thread(self._outlets.close))
        await asyncio.gather(*closing)

    def _readings(self, workshop: Workshop) -> dict[int, Callable[[], float]]:
        """Say what is read of the server's parts, by the cell it goes to."""
        admission, in_phase = workshop.admission, workshop.active.in_phase
        build = place(BUILD, VERSION, NUMERICS_VERSION, workshop.backend.name)
        readings: dict[int, Callable[[], float]] = {
            place(QUEUE_DEPTH): lambda: in_phase["queue"],
            place(MEMORY): lambda: admission.memory_bytes,
            place(MEMORY_LIMIT): lambda: self._settings.max_memory_bytes,
            place(STREAMS): lambda: admission.streams,
            place(STREAMS_LIMIT): lambda: self._settings.max_streams,
            place(READY): lambda: self._serves,
            build: lambda: 1.0,
        }
        backend = workshop.backend
        if isinstance(backend, TakesDeviceMemory):
            readings[place(DEVICE_MEMORY)] = lambda: backend.memory_taken
        if isinstance(backend, LeavesToCpu):
            for name in COMPUTED.labels[0].values:
                readings[place(COMPUTED, name)] = partial(_computed, backend, name)
        for cache in CACHE.values:
            for index, outcome in enumerate(OUTCOME.values):
                readings[place(LOOKUPS, cache, outcome)] = partial(
                    _lookups, workshop.preparer, cache, index
                )
        return readings


def _computed(backend: LeavesToCpu, name: str) -> float:
    return backend.computed_by.get(name, 0)


def _lookups(preparer: Preparer, cache: str, index: int) -> float:
    found = preparer.table_lookups if cache == "tables" else preparer.lookups
    return found[index]
