"""Where metrics and spans go, as the settings say; the one door to the libraries they need."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from gradwire_server.config.settings import Settings
from gradwire_server.observability.ledger import Ledgers
from gradwire_server.observability.otlp_settings import Export, Signal, export_of
from gradwire_server.security.certificates import Certificates

if TYPE_CHECKING:
    from gradwire_server.admin_http import Site
    from gradwire_server.observability.otlp import MetricsPusher
    from gradwire_server.observability.tracing import Tracer

_log = logging.getLogger("gradwire_server")

# What a collector may take for the last metrics and spans.
LAST_EXPORT_S = 3.0


def are_wanted(settings: Settings) -> bool:
    """Whether anybody will read the metrics."""
    return bool(settings.http_port) or _export(settings, "metrics") is not None


class Outlets:
    """The ways out for metrics: the HTTP port and the exporter, those that are wanted.

    address  of the HTTP port, with the port bound; empty where there is none

    served   address that the server serves

    Raises OSError where the address cannot be had, ValueError where a setting makes no sense,
    names files that cannot be used, or needs a package that is missing.
    """

    def __init__(self, settings: Settings, ledgers: Ledgers, *, served: str) -> None:
        certificates = Certificates.of(settings)
        if certificates is not None:
            ledgers.certificate_expires_s = lambda: certificates.get().expires_s
        self._site: Site | None = None
        self._pusher: MetricsPusher | None = None
        self.address = ""
        if settings.http_port:
            if find_spec("prometheus_client") is None:
                raise ValueError(
                    f"--http-port is {settings.http_port}; it needs prometheus_client: "
                    'pip install "gradwire[server]"'
                )
            from gradwire_server.admin_http import Site  # noqa: PLC0415

            self._site = Site(settings, ledgers, served=served, certificates=certificates)
            self.address = self._site.address
            facts = {"address": self.address, "tls": bool(settings.tls_certificate)}
            _log.info("http", extra={"facts": facts})
        export = _export(settings, "metrics")
        if export is not None:
            from gradwire_server.observability.otlp import MetricsPusher  # noqa: PLC0415

            self._pusher = MetricsPusher(export.endpoint, ledgers)

    def close(self) -> None:
        """Export what is left and stop answering."""
        if self._pusher is not None:
            self._pusher.close(LAST_EXPORT_S)
        if self._site is not None:
            self._site.close()


@contextmanager
def collecting(settings: Settings, *, served: str) -> Generator[Ledgers]:
    """Tell the metrics of several workers, if anybody wants them; yield what they count in.

    served  address that they serve

    Raises as Outlets does.
    """
    wanted = are_wanted(settings)
    ledgers = Ledgers(settings.workers, wanted=wanted)
    outlets = Outlets(settings, ledgers, served=served) if wanted else None
    try:
        yield ledgers
    finally:
        if outlets is not None:
            outlets.close()


def tracer(settings: Settings, *, address: str) -> Tracer | None:
    """Make what traces the calls of the server at an address; None where nobody wants that."""
    export = _export(settings, "traces")
    if export is None:
        return None
    from gradwire_server.observability.otlp import tracer_provider  # noqa: PLC0415
    from gradwire_server.observability.tracing import Tracer  # noqa: PLC0415

    return Tracer(tracer_provider(export.endpoint), address=address)


def _export(settings: Settings, signal: Signal) -> Export | None:
    """Say how a signal is exported.

    What the environment asks of every program is followed where that is possible; what this
    server's own setting asks for has to be.
    """
    asked = settings.otlp_endpoint
    try:
        export = export_of(signal, asked, os.environ)
    except ValueError as error:
        if asked:
            raise
        _tell(signal, str(error))
        return None
    if export is None or _is_there():
        return export
    needs = 'it needs: pip install "gradwire[otel]"'
    if asked:
        raise ValueError(f"--otlp-endpoint is {asked}; {needs}")
    _tell(signal, needs)
    return None


def _tell(signal: Signal, why: str) -> None:
    _log.warning("not exported", extra={"facts": {"signal": signal, "why": why}})


def _is_there() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False
