"""The Prometheus endpoint: an HTTP server in threads of its own, away from the event loop."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, cast

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as PrometheusMetric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample as PrometheusSample

from gradwire_server.addresses import split
from gradwire_server.telemetry.families import Family, families
from gradwire_server.telemetry.ledger import Ledgers
from gradwire_server.telemetry.processes import Processes

# A reader that takes longer is no scraper.
_PATIENCE_S = 5.0
# While it writes an answer this thread holds the interpreter, and the event loop would wait for the
# switch interval again and again: it pauses after so many lines, for so long.
_LINES = 40
_PAUSE_S = 50e-6
# Answers made at once; the others wait.
_AT_ONCE = 4
# Connections that are open, most of which say nothing if there are many: one more closes the
# oldest, since a scrape is over in milliseconds.
_MOST_OPEN = 32


class Endpoint:
    """Answers GET /metrics from when it is made until close().

    address  HOST:PORT with the port bound

    Raises OSError where the address cannot be had.
    """

    def __init__(self, address: str, ledgers: Ledgers) -> None:
        host, port = split(address)
        try:
            self._server = _Server(host, port, _Metrics(ledgers))
        except OSError as error:
            reason = error.strerror or error
            raise OSError(f"metrics_address {address} cannot be had: {reason}") from error
        self.address = f"{host}:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="gradwire-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(socketserver.ThreadingMixIn, HTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, metrics: _Metrics) -> None:
        name = host.strip("[]")
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        self.address_family, _, _, _, place = found[0]
        self.registry = CollectorRegistry()
        self.registry.register(metrics)
        self._free = threading.BoundedSemaphore(_AT_ONCE)
        self._open: dict[socket.socket, None] = {}
        self._lock = threading.Lock()
        super().__init__((str(place[0]), port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer's own looks the host's name up.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def answer(self, encode: Callable[[CollectorRegistry], bytes]) -> bytes:
        """Make an answer when it is its turn."""
        with self._free:
            return encode(self.registry)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open[request] = None
        self._cut(down_to=_MOST_OPEN)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def server_close(self) -> None:
        super().server_close()
        self._cut(down_to=0)

    def _cut(self, *, down_to: int) -> None:
        """End the oldest connections: their threads find them so, and close them."""
        with self._lock:
            while len(self._open) > down_to:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: readers come and go, and stderr is for log lines."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _PATIENCE_S

    def do_GET(self) -> None:
        """Answer a scrape, in the format it asks for."""
        if self.path.partition("?")[0] not in {"/", "/metrics"}:
            self.send_error(HTTPStatus.NOT_FOUND, explain="the metrics are at /metrics")
            return
        encode, content_type = choose_encoder(self.headers.get("Accept", ""))
        body = cast("_Server", self.server).answer(encode)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "gradwire"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
        """Say nothing: one line for every scrape is noise."""


class _Metrics(Collector):
    """Gives a registry of prometheus_client what the ledgers hold."""

    def __init__(self, ledgers: Ledgers) -> None:
        self._ledgers = ledgers
        self._processes = Processes()
        self._lock = threading.Lock()

    def describe(self) -> Iterable[PrometheusMetric]:
        return []

    def collect(self) -> Iterator[PrometheusMetric]:
        with self._lock:
            workers, devices = self._ledgers.read(), self._ledgers.read_devices()
            processes = [*workers, *(one.processes for one in devices)]
            found = [*families(workers, devices), *self._processes.read(processes)]
        for family in found:
            metric = _in_prometheus_form(family)
            metric.samples = _WithPauses(metric.samples)
            yield metric


class _WithPauses(list[PrometheusSample]):
    """Samples whose reader lets other threads run now and then."""

    def __iter__(self) -> Iterator[PrometheusSample]:
        for number, sample in enumerate(super().__iter__()):
            if number % _LINES == 0:
                time.sleep(_PAUSE_S)
            yield sample


def _in_prometheus_form(family: Family) -> PrometheusMetric:
    metric = family.metric
    names = metric.label_names
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=names)
        bounds = [*map(str, metric.buckets), "+Inf"]
        for sample in family.samples:
            counts = _running_sums(sample.buckets)
            buckets = list(zip(bounds, counts, strict=True))
            histogram.add_metric(sample.labels, buckets, sum_value=sample.value)
        return histogram
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    plain = kind(metric.name, metric.help, labels=names)
    for sample in family.samples:
        plain.add_metric(sample.labels, sample.value)
    return plain


def _running_sums(counts: tuple[float, ...]) -> list[float]:
    total = 0.0
    sums: list[float] = []
    for count in counts:
        total += count
        sums.append(total)
    return sums
