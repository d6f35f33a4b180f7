"""Reports of a call: where its time went, its progress, and its span in a trace."""

import json
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire import Timing
from gradwire._core.reports import read_timing
from gradwire._wire.requests import Progress
from gradwire._wire.semantic_conventions import of_address
from gradwire.errors import InvalidRequestError
from support.clients import COPY, LARGE, PROMPT, SMALL, copied, either_size, halved
from support.relay import relaying
from support.servers import serving


@either_size
def test_a_call_tells_its_timing_and_tries_once(address, face, array):
    timings = []
    with face(address) as client:
        halved(client, array[np.newaxis, np.newaxis], on_timing=timings.append)
        with pytest.raises(InvalidRequestError):
            client.evaluate(COPY, array, output_shape=(4, 0), on_timing=timings.append)
    (timing,) = timings
    told = [timing.receive_s, timing.queue_s, timing.compute_s, timing.send_s]
    assert all(phase is not None and 0 <= phase < timing.total_s for phase in told)
    assert timing.compute_s
    # Phases of a stream overlap.
    assert array is LARGE or sum(phase or 0 for phase in told) < timing.total_s
    assert timing.tries == 1
    options = {"connections": 1, "retry": PROMPT}
    with relaying(address, cuts=(100,) * 2) as relay, face(relay.address, **options) as client:
        copied(client, array, on_timing=timings.append)
    assert len(timings) == 2
    assert timings[1].tries >= 3


def test_an_exception_from_on_timing_reaches_the_caller(faced):
    with pytest.raises(ZeroDivisionError):
        copied(faced, SMALL, on_timing=lambda _: 1 // 0)


def test_what_is_not_understood_is_not_told():
    for told, compute_s in (
        ("compute;dur=1500", 1.5),
        ("receive;dur=1, compute;dur=2.5, send;dur=3", 0.0025),
        ('queue, compute;desc="all of it";dur=20', 0.02),
        *((told, None) for told in ("compute", "compute;dur=soon", "dur=3", "", b"x")),
    ):
        timing = read_timing([("gradwire-timing", told)], total_s=4, tries=2)
        assert (timing.compute_s, timing.queue_s) == (compute_s, None)
        assert (timing.total_s, timing.tries) == (4, 2)
    assert read_timing([("traceparent", "x")], total_s=1, tries=1) == Timing(total_s=1, tries=1)


# Times that floating-point numbers add exactly.
PAUSES = st.sampled_from([0.0, 1 / 32, 1 / 16, 1 / 8, 1 / 4])
STEPS = st.lists(st.tuples(PAUSES, st.integers(0, 100), st.integers(0, 100)))


@given(STEPS)
def test_reports_grow_and_keep_a_tenth_of_a_second_apart(steps):
    now, reports = 0.0, []
    progress = Progress(lambda *moved: reports.append((now, *moved)), clock=lambda: now)
    for pause, sent, received in steps:
        now += pause
        progress.report(sent, received)
        progress.report(0, 0)
    # Nothing is reported before anything has moved.
    assert all(any(each[1:]) for each in reports)
    progress.finish(100, 100)
    *early, end = reports
    assert end[1:] == (100, 100)
    for before, after in pairwise(early):
        assert after[0] - before[0] >= 0.1
        assert before[1:] != after[1:]
    for before, after in pairwise(reports):
        assert before[1] <= after[1]
        assert before[2] <= after[2]


TRACED = """
import asyncio, json, sys
import numpy as np
import gradwire
gradwire.Client(sys.argv[1]).operators()
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
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
    for options in {"stream_threshold_bytes": 0}, {}:
        client = Client(target, **options)
        client.evaluate(operator, small, output_shape=(1, 4))
    with client:
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


def test_every_call_is_a_span_below_the_callers_and_above_the_servers():
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="it needs the extra otel")
    from support.collector import collecting  # noqa: PLC0415 - it needs the extra

    with collecting() as collector:
        with serving(otlp_endpoint=collector.url, max_rank=5) as server:
            # A process of its own has one tracer for good.
            command = [sys.executable, "-W", "error", "-c", TRACED, server.address, collector.url]
            told = subprocess.check_output(command, text=True, timeout=60)  # noqa: S603
        outer = json.loads(told)
        callers = [seen for seen in collector.spans if seen.span.kind == 3]
        unary, many = "Evaluate", "EvaluateMany"
        names = ["EvaluateStream", unary, many, unary, unary, "GetServerInfo", many]
        assert [seen.span.name.rpartition("/")[2] for seen in callers] == names
        for seen in callers:
            span = seen.span
            assert span.trace_id.hex() == outer["trace"]
            assert span.parent_span_id.hex() == outer["span"]
            assert seen.told["rpc.system"] == "grpc"
            assert f"127.0.0.1:{seen.told['server.port']}" == server.address
            (answered,) = collector.children(seen)
            assert (answered.span.kind, answered.span.name) == (2, span.name)
            code = "rpc.grpc.status_code"
            assert answered.told[code] == seen.told[code]
        assert outer["failed"] == callers[3].told["error.type"] != "OK"
        assert [seen.span.status.code for seen in callers] == [0, 0, 0, 2, 0, 0, 0]


def test_an_address_is_told_in_its_parts():
    for address, host, *port in (
        ("127.0.0.1:50051", "127.0.0.1", 50051),
        *(("[::1]:7", "::1", 7), ("ipv6:%5B::1%5D:7", "::1", 7)),
        *(("ipv4:10.0.0.1:7", "10.0.0.1", 7), ("dns:///a.example:7", "a.example", 7)),
        *(("unix:/run/socket", "/run/socket"), ("unix:///run/socket", "/run/socket")),
        *(("ipv4:10.0.0.1:7,10.0.0.2:7", "10.0.0.1:7,10.0.0.2:7"), ("a.example", "a.example")),
    ):
        told = of_address("server", address)
        assert told == {"server.address": host, **({"server.port": port[0]} if port else {})}
