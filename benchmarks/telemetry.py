"""Cost of metrics and traces for a call, and of a scrape.

    python -m benchmarks telemetry [--rounds N] [--calls N] [--json FILE]

Alone: the hooks of a tiny unary call, beginning and end, in microseconds. In a server: CPU time of
the server's process and latency of a tiny Evaluate, with metrics and traces turned on and off, each
in a server of its own, in turn; two servers measure nothing, and their difference is the noise. A
scrape is of a server that has seen every operator with every data type; then it is scraped ten
times a second while calls are made.
"""

from __future__ import annotations

import http.client
import json
import re
import statistics
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from benchmarks import machine
from benchmarks.servers import OURS, Server, started
from benchmarks.wire.loads import EVALUATE, method_of
from gradwire import Client, ops, v1
from gradwire.tensors import DTYPES
from gradwire_server.observability.cells import Cells
from gradwire_server.observability.otlp import Tracer
from gradwire_server.observability.recording import CallRecord, Observer, Phases

_REPEATS = 20_000
_SCRAPED_CALLS = 3000
_SCRAPE_EVERY_S = 0.1
# Nothing listens there: spans cost the server all but the sending.
_NO_COLLECTOR = "http://127.0.0.1:1"
_OPERATORS = (
    ops.DmlResample(interpolation_mode="linear"),
    ops.DmlResample2(interpolation_mode="linear"),
    ops.DmlResampleGrad(interpolation_mode="linear"),
    ops.DmlResampleGrad1(interpolation_mode="linear"),
    ops.Interpolate(mode="linear", data_format="NCX", sizes=(4, 4)),
    ops.InterpolateBackward(mode="linear", data_format="NCX"),
)
SERVERS = {
    "nothing": (),
    "nothing, again": (),
    "metrics": ("--http-port", "127.0.0.1:0"),
    "traces": ("--otlp-endpoint", _NO_COLLECTOR),
}
# The example of DirectML's page on ResampleGrad.
_REQUEST = v1.EvaluateRequest(
    operator=ops.to_message(
        ops.DmlResampleGrad(interpolation_mode="nearest_neighbor", scales=(0.5, 1.5))
    ),
    input=v1.TensorDescriptor(data_type=v1.DataType.DATA_TYPE_FLOAT32, sizes=(1, 3)),
    output=v1.TensorDescriptor(data_type=v1.DataType.DATA_TYPE_FLOAT32, sizes=(2, 2)),
    data=np.array([[4, 5, 6]], "<f4").tobytes(),
).SerializeToString()
_ENVIRONMENT = {"traces": {"OTEL_METRICS_EXPORTER": "none"}}


@dataclass
class FinishedCall(CallRecord):
    """Facts of a unary call that its end reports."""

    method: str = "Evaluate"
    operator: str = "dml_resample_grad"
    dtype: np.dtype[Any] | None = field(default_factory=lambda: np.dtype(np.float32))
    received_bytes: int = 12
    sent_bytes: int = 16
    phases: Phases = field(default_factory=Phases)
    traceparent: str = ""

    def __post_init__(self) -> None:
        self.context = SimpleNamespace(
            peer=lambda: "ipv4:127.0.0.1:50000", invocation_metadata=lambda: ()
        )
        for phase in ("receive", "queue", "compute"):
            with self.phases.spending(phase):
                pass


def hooks_us() -> dict[str, float]:
    """Return microseconds of begin and end, by listener."""
    unsampled = Tracer(TracerProvider(sampler=ALWAYS_OFF), address="127.0.0.1:1")
    observers = {
        "nobody": Observer(),
        "metrics": Observer(Cells()),
        "traces, not sampled": Observer(None, unsampled),
        "traces, sampled": Observer(None, Tracer(TracerProvider(), address="127.0.0.1:1")),
    }
    call = FinishedCall()
    return {name: _hook_us(observer, call) for name, observer in observers.items()}


def _hook_us(observer: Observer, call: FinishedCall) -> float:
    times: list[float] = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(_REPEATS // 5):
            observer.begin(call)
            observer.end(call, status="OK", duration_s=3e-4)
        times.append((time.perf_counter() - began) / (_REPEATS // 5))
    return round(statistics.median(times) * 1e6, 2)


class TimedServer:
    """One server and measurements of its calls."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._evaluate = method_of(server.address, EVALUATE)
        self.latency_us: list[float] = []
        self.cpu_us: list[float] = []

    def run(self, calls: int) -> None:
        """Make calls back to back.

        Keeps their median and the server's CPU time per call.
        """
        times: list[float] = []
        before = _cpu_s(self._server.pid)
        for _ in range(calls):
            began = time.perf_counter()
            self._evaluate(_REQUEST)
            times.append(time.perf_counter() - began)
        self.cpu_us.append((_cpu_s(self._server.pid) - before) / calls * 1e6)
        self.latency_us.append(statistics.median(times) * 1e6)


def _cpu_s(pid: int) -> float:
    """Return a process's CPU time in nanosecond steps.

    /proc has only hundredths of a second.
    """
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def servers(rounds: int, calls: int) -> dict[str, Any]:
    """Return medians of rounds, and differences to a bare server.

    A bare server measures nothing.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        contestants: dict[str, TimedServer] = {}
        for name, flags in SERVERS.items():
            server = stack.enter_context(
                started(
                    *(*OURS, "--backend", "numpy_cpu", "--log-level", "warning", *flags),
                    log=folder / name,
                    env=_ENVIRONMENT.get(name),
                )
            )
            contestants[name] = TimedServer(server)
        for each in contestants.values():
            each.run(calls)
            each.cpu_us.clear()
            each.latency_us.clear()
        for number in range(rounds):
            order = list(contestants.values())
            for each in order if number % 2 else order[::-1]:
                each.run(calls)
    return {name: _compared(each, contestants["nothing"]) for name, each in contestants.items()}


def _compared(one: TimedServer, plain: TimedServer) -> Mapping[str, float]:
    def more(ours: list[float], theirs: list[float]) -> float:
        return round(statistics.median(a - b for a, b in zip(ours, theirs, strict=True)), 1)

    return {
        "p50_us": round(statistics.median(one.latency_us), 1),
        "more_p50_us": more(one.latency_us, plain.latency_us),
        "server_cpu_us": round(statistics.median(one.cpu_us), 1),
        "more_server_cpu_us": more(one.cpu_us, plain.cpu_us),
    }


def scrapes(workers: int) -> dict[str, float]:
    """Return a scrape's time and size, and latencies of calls.

    Latencies are those with scrapes and without.
    """
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        flags = ("--backend", "numpy_cpu", "--workers", str(workers), *SERVERS["metrics"])
        with started(*OURS, *flags, log=log) as server, Client(server.address) as client:
            (address,) = re.findall(r" http address=(\S+)", log.read_text())
            for dtype, operator in product(DTYPES.values(), _OPERATORS):
                array = np.ones((1, 1, 4, 4), dtype)
                client.evaluate(operator, array, output_shape=(1, 1, 4, 4))
            took, size = _scrape(address, times=30)
            over = threading.Event()
            scraping = threading.Thread(target=_scrape_until, args=(address, over))
            quiet = _latencies_us(server.address)
            scraping.start()
            scraped = _latencies_us(server.address)
            over.set()
            scraping.join()
    return {
        "ms": round(statistics.median(took) * 1e3, 1),
        "bytes": size,
        **{f"calls_p{p}_us": round(float(np.percentile(quiet, p)), 1) for p in (50, 99)},
        **{f"calls_p{p}_us_scraped": round(float(np.percentile(scraped, p)), 1) for p in (50, 99)},
    }


def _scrape_until(address: str, over: threading.Event) -> None:
    while not over.wait(_SCRAPE_EVERY_S):
        _scrape(address, times=1)


def _scrape(address: str, *, times: int) -> tuple[list[float], int]:
    connection = http.client.HTTPConnection(address)
    took: list[float] = []
    size = 0
    for _ in range(times):
        began = time.perf_counter()
        connection.request("GET", "/metrics")
        size = len(connection.getresponse().read())
        took.append(time.perf_counter() - began)
    connection.close()
    return took, size


def _latencies_us(address: str) -> list[float]:
    took: list[float] = []
    evaluate = method_of(address, EVALUATE)
    for _ in range(_SCRAPED_CALLS):
        began = time.perf_counter()
        evaluate(_REQUEST)
        took.append((time.perf_counter() - began) * 1e6)
    return took


def main(argv: list[str] | None = None) -> int:
    """Measure and print."""
    parser = machine.parser("telemetry", __doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--calls", type=int, default=100)
    arguments = parser.parse_args(argv)
    found = {
        "grpcio": grpc.__version__,
        "hooks_us": hooks_us(),
        "servers": servers(arguments.rounds, arguments.calls),
        "scrape": {f"workers={workers}": scrapes(workers) for workers in (1, 2)},
    }
    machine.write(arguments.json, found)
    print(json.dumps(found, indent=2))
    return 0
