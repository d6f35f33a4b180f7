"""Metrics and traces: their collection, HTTP port and export.

Modules that need optional packages are imported here only, where a setting asks for them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradwire._wire.environment import VERSION
from gradwire.errors import installing
from gradwire_server.backends import LeavesToCpu, TakesDeviceMemory
from gradwire_server.config.settings import Settings
from gradwire_server.engine import NUMERICS_VERSION
from gradwire_server.observability import logs
from gradwire_server.observability.cells import Cells, Ledger, cells, place
from gradwire_server.observability.definitions import (
    BUILD,
    COMPUTED,
    DEVICE_MEMORY,
    KERNELS_PENDING,
    LAG,
    LOOKUPS,
    MEMORY,
    MEMORY_LIMIT,
    QUEUE_DEPTH,
    READY,
    SHARED_MEMORY,
    STREAMS,
    STREAMS_LIMIT,
    Metric,
)
from gradwire_server.observability.recording import Observer
from gradwire_server.rpc.service_context import ServiceContext

if TYPE_CHECKING:
    from gradwire_server.admin_http.site import Site
    from gradwire_server.observability.otlp import Tracer

_SAMPLE_EVERY_S = 0.25


def open_site(settings: Settings, ledgers: Sequence[Ledger], *, served: str) -> Site | None:
    """Open the HTTP port; None if the settings ask for none.

    served  address that the server serves

    Raises OSError if the address cannot be bound, ValueError if a setting names files that cannot
    be used.
    """
    if not settings.http_port:
        return None
    from gradwire_server.admin_http.site import Site  # noqa: PLC0415

    site = Site(settings, ledgers, served=served)
    logs.info("http", address=site.address, tls=bool(settings.tls_certificate))
    return site


def tracer(settings: Settings, *, address: str) -> Tracer | None:
    """Return the tracer of a server's calls.

    None if traces are off.

    OpenTelemetry's variables turn traces on and off too. Raises ValueError if the setting asks for
    traces that cannot be exported; if the environment alone does, a log line says so.
    """
    asked = settings.otlp_endpoint
    endpoints = [f"OTEL_EXPORTER_OTLP_{one}ENDPOINT" for one in ("TRACES_", "")]
    exporters = os.environ.get("OTEL_TRACES_EXPORTER", "otlp").split(",")
    if "otlp" not in map(str.strip, exporters) or not (asked or any(map(os.getenv, endpoints))):
        return None
    try:
        from gradwire_server.observability.otlp import Tracer, tracer_provider  # noqa: PLC0415

        url = f"{asked.rstrip('/')}/v1/traces" if asked else ""
        return Tracer(tracer_provider(url), address=address)
    except ModuleNotFoundError:
        why = installing("otel")
    except ValueError as error:
        why = str(error)
    if asked:
        raise ValueError(f"--otlp-endpoint is {asked}; traces: {why}")
    logs.warning("not exported", signal="traces", why=why)
    return None


class Instruments:
    """Metrics and traces of a server.

    They belong to the event loop that makes the server.

    observer  of calls; without effect if there are neither metrics nor traces
    serves    whether the server serves
    site      the HTTP port; None if this process has none

    cells  file descriptor of the memory of a supervisor, which has the HTTP port; None without
    """

    def __init__(self, settings: Settings, *, cells: int | None) -> None:
        self._settings = settings
        self._cells: Cells | None = None
        self._has_port = cells is None
        if settings.http_port:
            self._cells = Cells() if cells is None else Cells.attached(cells)
            if self._cells is None:
                logs.warning("no metrics: the supervisor runs another version; restart it")
        self.observer = Observer(self._cells)
        self.serves = False
        self.site: Site | None = None
        self._service: ServiceContext | None = None
        self._sampling: asyncio.Task[None] | None = None

    def start(self, service: ServiceContext, *, address: str) -> None:
        """Open the HTTP port and export traces; address is the server's own.

        Raises as open_site and tracer do.
        """
        self._service = service
        if self._has_port:
            self.site = open_site(self._settings, [Ledger(0, self._cells)], served=address)
        self.observer.tracer = tracer(self._settings, address=address)
        if self._cells is not None:
            self._sampling = asyncio.create_task(self._sample_often(self._cells))

    async def stop(self) -> None:
        """Export the last traces and close the HTTP port.

        Runs off the event loop.
        """
        if self._sampling is not None:
            self._sampling.cancel()
        self.sample()
        parts = (self.observer.tracer, self.site)
        await asyncio.gather(*(asyncio.to_thread(one.close) for one in parts if one is not None))

    async def _sample_often(self, own: Cells) -> None:
        """Sample four times a second, and measure the delay of that."""
        loop = asyncio.get_running_loop()
        while True:
            self.sample()
            due = loop.time() + _SAMPLE_EVERY_S
            await asyncio.sleep(_SAMPLE_EVERY_S)
            own.observe(LAG, max(0.0, loop.time() - due))

    def sample(self) -> None:
        """Write the values of the server's parts, and the notes."""
        own, service = self._cells, self._service
        if own is None or service is None:
            return
        backend, admission = service.backend, service.admission
        readings: list[tuple[float, Metric, *tuple[str, ...]]] = [
            (service.active.in_phase["queue"], QUEUE_DEPTH),
            (admission.memory_bytes, MEMORY),
            (self._settings.max_memory_bytes, MEMORY_LIMIT),
            (admission.lasting_bytes, SHARED_MEMORY),
            (admission.streams, STREAMS),
            (self._settings.max_streams, STREAMS_LIMIT),
            (self.serves, READY),
            (bool(service.to_come), KERNELS_PENDING),
            *(
                (name == backend.name, BUILD, VERSION, NUMERICS_VERSION, name)
                for name in BUILD.labels[-1].values
            ),
        ]
        if isinstance(backend, TakesDeviceMemory):
            readings.append((backend.memory_taken, DEVICE_MEMORY))
        if isinstance(backend, LeavesToCpu):
            readings += [(count, COMPUTED, name) for name, count in backend.computed_by.items()]
        for value, metric, *labels in readings:
            own.values[place(metric, *labels)] = value
        cells(LOOKUPS, own.array)[..., 0] = service.preparer.lookups
        told = {"backend": backend.name, "backend_reason": service.reason}
        own.notes.write(told | {"backend_to_come": service.to_come})
        own.beat()
