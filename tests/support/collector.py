"""A real OTLP receiver on a free loopback port, which keeps what it is sent."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Seen(NamedTuple):
    """A span, what it tells, and what its process tells of itself."""

    span: Span
    told: Mapping[str, Any]
    resource: Mapping[str, Any]


@dataclass
class Collector:
    """What came to a URL for OTEL_EXPORTER_OTLP_ENDPOINT."""

    url: str
    spans: list[Seen] = field(default_factory=list[Seen])

    def children(self, of: Seen) -> list[Seen]:
        return [seen for seen in self.spans if seen.span.parent_span_id == of.span.span_id]


def attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@contextmanager
def collecting() -> Generator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.headers["Content-Type"] == "application/x-protobuf"
            assert self.path == "/v1/traces"
            for each in ExportTraceServiceRequest.FromString(body).resource_spans:
                resource = attributes(each.resource.attributes)
                for span in (span for scope in each.scope_spans for span in scope.spans):
                    collector.spans.append(Seen(span, attributes(span.attributes), resource))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            # An answer without fields.
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's
            ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
