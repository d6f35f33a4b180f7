"""Metrics and traces of a server: their collection, the HTTP port and the OTLP exporters.

Modules that need optional packages are imported here only, where a setting asks for them.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from gradwire_server.backends import LeavesToCpu, TakesDeviceMemory
from gradwire_server.config.settings import Settings
from gradwire_server.config.version import VERSION
from gradwire_server.engine import NUMERICS_VERSION, Preparer
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
from gradwire_server.rpc.service_context import ServiceContext
from gradwire_server.security.certificates import Certificates

if TYPE_CHECKING:
    from gradwire_server.admin_http import Site
    from gradwire_server.observability.otlp import MetricsPusher, Tracer

_log = logging.getLogger("gradwire_server")

# Time limit, in seconds, for exporting the last metrics and spans.
LAST_EXPORT_S = 3.0

Signal = Literal["traces", "metrics"]
_PROTOCOL = "http/protobuf"


def are_wanted(settings: Settings) -> bool:
    """Whether metrics are exported."""
    return bool(settings.http_port) or otlp_endpoint(settings, "metrics") is not None


class MetricsExporters:
    """The HTTP port and the metrics exporter, each if the settings ask for it.

    address  of the HTTP port, with the port bound; empty if there is none

    served   address that the server serves

    Raises OSError if the address cannot be bound, ValueError if a setting is invalid, names files
    that cannot be used, or needs a package that is missing.
    """

    def __init__(self, settings: Settings, ledgers: Ledgers, *, served: str) -> None:
        certificates = Certificates.of(settings)
        if certificates is not None:
            ledgers.certificate_expires_s = lambda: certificates.get().expires_s
        self._site: Site | None = None
        self._pusher: MetricsPusher | None = None
        self.address = ""
        if settings.http_port:
            for package in ("h11", "jinja2", "prometheus_client"):
                if find_spec(package) is None:
                    raise ValueError(
                        f"--http-port is {settings.http_port}; it needs {package}: "
                        'pip install "gradwire[server]"'
                    )
            from gradwire_server.admin_http import Site  # noqa: PLC0415

            self._site = Site(settings, ledgers, served=served, certificates=certificates)
            self.address = self._site.address
            facts = {"address": self.address, "tls": bool(settings.tls_certificate)}
            _log.info("http", extra={"facts": facts})
        endpoint = otlp_endpoint(settings, "metrics")
        if endpoint is not None:
            from gradwire_server.observability.otlp import MetricsPusher  # noqa: PLC0415

            try:
                self._pusher = MetricsPusher(endpoint, ledgers)
            except ValueError as error:
                _refuse(settings, "metrics", str(error))

    def close(self) -> None:
        """Export the last metrics and close the HTTP port."""
        if self._pusher is not None:
            self._pusher.close(LAST_EXPORT_S)
        if self._site is not None:
            self._site.close()


@contextmanager
def collecting(settings: Settings, *, served: str) -> Generator[Ledgers]:
    """Export the metrics of several workers, if asked for; yield the ledgers they count in.

    served  address that they serve

    Raises as MetricsExporters does.
    """
    wanted = are_wanted(settings)
    ledgers = Ledgers(settings.workers, wanted=wanted)
    exporters = MetricsExporters(settings, ledgers, served=served) if wanted else None
    try:
        yield ledgers
    finally:
        if exporters is not None:
            exporters.close()


def tracer(settings: Settings, *, address: str) -> Tracer | None:
    """Return the tracer of the calls of the server at an address; None if traces are off."""
    endpoint = otlp_endpoint(settings, "traces")
    if endpoint is None:
        return None
    from gradwire_server.observability.otlp import Tracer, tracer_provider  # noqa: PLC0415

    try:
        return Tracer(tracer_provider(endpoint), address=address)
    except ValueError as error:
        _refuse(settings, "traces", str(error))
        return None


def otlp_endpoint(settings: Settings, signal: Signal) -> str | None:
    """Return where a signal is exported over OTLP; None if it is not.

    Empty leaves the URL to the exporter, which reads OpenTelemetry's variables. Those enable and
    disable exports too.
    """
    asked, name = settings.otlp_endpoint, signal.upper()
    prefixes = (f"OTEL_EXPORTER_OTLP_{name}_", "OTEL_EXPORTER_OTLP_")
    exporters = os.environ.get(f"OTEL_{name}_EXPORTER", "otlp").split(",")
    is_off = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if is_off or "otlp" not in map(str.strip, exporters):
        return None
    if not asked and not any(os.environ.get(f"{prefix}ENDPOINT") for prefix in prefixes):
        return None
    protocols = {f"{each}PROTOCOL": os.environ.get(f"{each}PROTOCOL") for each in prefixes}
    variable, protocol = next(filter(lambda one: one[1], protocols.items()), ("", _PROTOCOL))
    if protocol != _PROTOCOL:
        _refuse(settings, signal, f"{variable} is {protocol}; {_PROTOCOL} is supported")
        return None
    if not _is_there():
        _refuse(settings, signal, 'install "gradwire[otel]"')
        return None
    return f"{asked.rstrip('/')}/v1/{signal}" if asked else ""


def _refuse(settings: Settings, signal: Signal, why: str) -> None:
    """Log that a signal is not exported; raise ValueError if the setting asks for it."""
    if settings.otlp_endpoint:
        raise ValueError(f"--otlp-endpoint is {settings.otlp_endpoint}; {signal}: {why}")
    _log.warning("not exported", extra={"facts": {"signal": signal, "why": why}})


def _is_there() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


class Instruments:
    """Metrics and traces of a server. Belongs to the event loop that makes the server.

    observer  of calls; without effect if neither metrics nor traces are exported
    address   of the HTTP port; empty if there is none

    one_of_several  whether a supervisor exports the metrics
    cells           file descriptor of the supervisor's memory for them; None if none are exported
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
            self._cells = Cells()
        self._exports_metrics = self._cells is not None and not one_of_several
        self.observer = Observer(None if self._cells is None else Recorder(self._cells))
        self._serves = False
        self._exporters: MetricsExporters | None = None
        self._sampler: Sampler | None = None

    @property
    def address(self) -> str:
        """The address of the HTTP port; empty if there is none."""
        return "" if self._exporters is None else self._exporters.address

    def start(self, service: ServiceContext, *, address: str) -> None:
        """Open the HTTP port and the exporters; address is the server's own.

        Raises as MetricsExporters does.
        """
        if self._cells is not None and self._exports_metrics:
            ledgers = Ledgers.of_this_process(self._cells)
            self._exporters = MetricsExporters(self._settings, ledgers, served=address)
        self.observer.tracer = tracer(self._settings, address=address)
        if self._cells is not None:
            self._describe_backend(self._cells, service)
            self._sampler = Sampler(self._cells, self._readings(service))
            self._sampler.start()

    def note_backend(self, service: ServiceContext) -> None:
        """Note that another backend computes."""
        if self._cells is not None and self._sampler is not None:
            builds = span(BUILD)
            for cell in range(builds.start, builds.stop):
                self._cells.values[cell] = 0.0
            self._describe_backend(self._cells, service)
            self._sampler.renew(self._readings(service))

    def _describe_backend(self, cells: Cells, service: ServiceContext) -> None:
        name, reason = service.backend.name, service.backend_reason
        cells.notes.describe({"backend": name, "backend_reason": reason})

    def note_serving(self, *, serves: bool) -> None:
        """Note that the server serves from now on, or no longer serves."""
        self._serves = serves
        if self._sampler is not None:
            self._sampler.sample()

    async def stop(self) -> None:
        """Export the last metrics and traces and close the exporters, off the event loop."""
        if self._sampler is not None:
            await self._sampler.stop()
        closing: list[Coroutine[None, None, None]] = []
        if self.observer.tracer is not None:
            closing.append(asyncio.to_thread(self.observer.tracer.close, LAST_EXPORT_S))
        if self._exporters is not None:
            closing.append(asyncio.to_thread(self._exporters.close))
        await asyncio.gather(*closing)

    def _readings(self, service: ServiceContext) -> dict[int, Callable[[], float]]:
        """Return functions that read values of the server's parts, by the cell of each."""
        admission, in_phase = service.admission, service.active.in_phase
        build = place(BUILD, VERSION, NUMERICS_VERSION, service.backend.name)
        readings: dict[int, Callable[[], float]] = {
            place(QUEUE_DEPTH): lambda: in_phase["queue"],
            place(MEMORY): lambda: admission.memory_bytes,
            place(MEMORY_LIMIT): lambda: self._settings.max_memory_bytes,
            place(STREAMS): lambda: admission.streams,
            place(STREAMS_LIMIT): lambda: self._settings.max_streams,
            place(READY): lambda: self._serves,
            build: lambda: 1.0,
        }
        backend = service.backend
        if isinstance(backend, TakesDeviceMemory):
            readings[place(DEVICE_MEMORY)] = lambda: backend.memory_taken
        if isinstance(backend, LeavesToCpu):
            for name in COMPUTED.labels[0].values:
                readings[place(COMPUTED, name)] = partial(_computed, backend, name)
        for cache in CACHE.values:
            for index, outcome in enumerate(OUTCOME.values):
                readings[place(LOOKUPS, cache, outcome)] = partial(
                    _lookups, service.preparer, cache, index
                )
        return readings


def _computed(backend: LeavesToCpu, name: str) -> float:
    return backend.computed_by.get(name, 0)


def _lookups(preparer: Preparer, cache: str, index: int) -> float:
    found = preparer.table_lookups if cache == "tables" else preparer.lookups
    return found[index]
