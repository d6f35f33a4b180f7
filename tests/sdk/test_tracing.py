"""A trace goes on in the server where the caller uses OpenTelemetry; else nothing does."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from gradwire._transport.tracing import call_span, status_of
from gradwire._wire.semantic_conventions import Conventions, of_address
from gradwire.errors import CallCancelledError
from support.servers import serving

PLAIN = """
import sys
import numpy as np
from gradwire import Client, ops
operator = ops.DmlResample(interpolation_mode="linear")
with Client(sys.argv[1]) as client:
    print(client.evaluate(operator, np.ones((1, 1), np.float32), output_shape=(1, 1)))
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""

TRACED = """
import asyncio, json, sys
import numpy as np
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from gradwire import AsyncClient, Client, ops

target, url = sys.argv[1:]
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(url + "/v1/traces")))
trace.set_tracer_provider(provider)
operator, small = ops.DmlResample(interpolation_mode="linear"), np.ones((1, 4), np.float32)

async def again():
    async with AsyncClient(target) as client:
        await client.evaluate(operator, small, output_shape=(1, 4))
        await client.server_info()
        async for _ in client.evaluate_many([(operator, small, (1, 4))] * 3):
            pass

with trace.get_tracer("a test").start_as_current_span("outer") as outer:
    with Client(target, stream_threshold_bytes=0) as client:
        client.evaluate(operator, small, output_shape=(1, 4))
    with Client(target) as client:
        client.evaluate(operator, small, output_shape=(1, 4))
        for _ in client.evaluate_many([(operator, small, (1, 4))] * 3):
            pass
        client.wait_ready()
        try:
            client.evaluate(operator, np.ones((1,) * 6, np.float32), output_shape=(1,) * 6)
        except Exception as error:
            failed = error.status
    asyncio.run(again())
told = outer.get_span_context()
print(json.dumps({"trace": f"{told.trace_id:032x}", "span": f"{told.span_id:016x}",
                  "failed": failed}))
"""


def run(script: str, *arguments: str) -> str:
    """Run a script in a process of its own, since that has one tracer for good."""
    command = [sys.executable, "-W", "error", "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def test_a_process_that_does_not_use_opentelemetry_never_imports_it() -> None:
    with serving() as server:
        printed = run(PLAIN, server.address)
    assert printed == "[[1.]]\n[]\n"


def test_every_call_is_a_span_below_the_callers_and_above_the_servers() -> None:
    pytest.importorskip(
        "opentelemetry.exporter.otlp.proto.http", reason='the extra "otel" is not installed'
    )
    from support.collector import collecting  # noqa: PLC0415 - it needs the extra

    with collecting() as collector:
        with serving(otlp_endpoint=collector.url, max_rank=5) as server:
            outer: dict[str, Any] = json.loads(run(TRACED, server.address, collector.url))
        callers = [seen for seen in collector.spans if seen.span.kind == 3]
        names = [seen.span.name.rpartition("/")[2] for seen in callers]
        assert names == [
            "EvaluateStream",
            "Evaluate",
            "EvaluateMany",
            "Evaluate",
            "Evaluate",
            "GetServerInfo",
            "EvaluateMany",
        ]
        for seen in callers:
            span = seen.span
            assert (span.trace_id.hex(), span.parent_span_id.hex()) == (
                outer["trace"],
                outer["span"],
            )
            assert seen.told["rpc.system"] == "grpc"
            assert f"127.0.0.1:{seen.told['server.port']}" == server.address
            (answered,) = collector.children(seen)
            assert answered.span.kind == 2
            assert answered.span.name == span.name
            codes = [each.told["rpc.grpc.status_code"] for each in (seen, answered)]
            assert codes[0] == codes[1]
        failed = callers[3]
        assert outer["failed"] == failed.told["error.type"] != "OK"
        assert [seen.span.status.code for seen in callers] == [0, 0, 0, 2, 0, 0, 0]


def test_without_a_tracer_a_call_sends_nothing_more() -> None:
    with call_span("Evaluate", target="127.0.0.1:1", bearer=None) as span:
        assert span.metadata is None
        span.answer = None


def test_an_error_without_a_status_is_unknown() -> None:
    assert status_of(CallCancelledError("closed")) == "UNKNOWN"
    assert status_of(object()) == "OK"


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("127.0.0.1:50051", {"server.address": "127.0.0.1", "server.port": 50051}),
        ("[::1]:7", {"server.address": "::1", "server.port": 7}),
        ("ipv4:10.0.0.1:7", {"server.address": "10.0.0.1", "server.port": 7}),
        ("ipv6:%5B::1%5D:7", {"server.address": "::1", "server.port": 7}),
        ("dns:///a.example:7", {"server.address": "a.example", "server.port": 7}),
        ("unix:/run/socket", {"server.address": "/run/socket"}),
        ("unix:///run/socket", {"server.address": "/run/socket"}),
        ("ipv4:10.0.0.1:7,10.0.0.2:7", {"server.address": "10.0.0.1:7,10.0.0.2:7"}),
        ("a.example", {"server.address": "a.example"}),
    ],
)
def test_an_address_is_told_in_its_parts(address: str, told: dict[str, Any]) -> None:
    assert of_address("server", address) == told


@pytest.mark.parametrize(
    ("variable", "names"),
    [
        ("", {"rpc.system", "rpc.service", "rpc.method"}),
        ("http", {"rpc.system", "rpc.service", "rpc.method"}),
        ("rpc", {"rpc.system.name", "rpc.method"}),
        ("rpc/dup", {"rpc.system", "rpc.service", "rpc.system.name", "rpc.method"}),
    ],
)
def test_the_conventions_are_those_that_are_asked_for(variable: str, names: set[str]) -> None:
    chosen = Conventions.chosen({"OTEL_SEMCONV_STABILITY_OPT_IN": variable})
    assert chosen.of_method("Evaluate").keys() == names
    assert len(chosen.of_status("OK", failed=False)) == (2 if variable == "rpc/dup" else 1)
    assert chosen.of_status("status 99", failed=True)["error.type"] == "status 99"
