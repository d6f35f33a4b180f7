"""Metrics: memory that processes share, the port that tells them, and what asks for them."""

import contextlib
import json
import os
import re
import signal
import socket
import threading
from contextlib import ExitStack
from functools import partial
from itertools import product
from operator import mul
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from gradwire import v1
from gradwire_server.observability.cells import (
    COUNTED,
    MOST,
    NOTES_BYTES,
    TOTAL,
    Cells,
    Ledger,
    Notes,
    cells,
    place,
)
from gradwire_server.observability.definitions import COUNTS, ERRORS, METHOD, METRICS, STATES, STEP
from support.examples import examples
from support.load import Callers, repeated
from support.processes import running_command
from support.raw_calls import (
    PATIENCE_S,
    ManyCall,
    RawClient,
    WaitingStream,
    as_stream,
    chunks,
    identity_request,
    named,
    opening,
    published_request,
    wait_until,
    wrong_request,
)
from support.scraping import get, scrape
from support.servers import served, serving


def test_metrics_are_openmetrics_on_request(told, server):
    assert told().value("gradwire_worker_ready") == 1
    accept = "application/openmetrics-text; version=1.0.0"
    _, content_type, text = get(server.http_address, Accept=accept)
    assert content_type.startswith(accept)
    assert text.endswith("# EOF\n")


@pytest.mark.parametrize(
    ("count", "says"),
    [
        *((100, says) for says in (b"", b"GET /metr", b"GET /metrics HTTP/1.0\r\nAccept: ")),
        (20, b"GET /metrics HTTP/1.0\r\n\r\n"),
    ],
)
def test_readers_that_wait_or_do_not_read_hold_up_no_scrape_no_call_and_no_stop(count, says):
    with ExitStack() as afterwards, served(http_port="0") as (server, client):
        host, port = server.http_address.split(":")
        silent = [
            afterwards.enter_context(socket.create_connection((host, int(port)), PATIENCE_S))
            for _ in range(count)
        ]
        for reader in silent:
            with contextlib.suppress(ConnectionError):
                reader.sendall(says)
        assert scrape(server.http_address).value("gradwire_worker_ready") == 1
        client.check_alive()
        # The server closes the oldest connections to make room.
        if count == 100:
            with contextlib.suppress(ConnectionResetError):
                assert silent[0].recv(100) == b""


STREAM = {"method": "EvaluateStream"}
UNARY = {"method": "Evaluate"}


@pytest.fixture
def server():
    with serving(http_port="0", max_streams=2, slab_bytes=1 << 16) as server:
        yield server


@pytest.fixture
def client(server):
    with RawClient(server.address) as client:
        yield client


@pytest.fixture
def told(server):
    """Read the metrics of the server."""
    return partial(scrape, server.http_address)


def test_calls_are_counted_with_their_phases_bytes_and_lookups(told, client):
    data = np.ones((64, 1 << 12), "<f4").tobytes()
    request = identity_request(64, 1 << 12, data=data)
    assert client.stream([opening(request), *chunks(data, 1 << 18)]).data == data
    for _ in range(3):
        client.evaluate(published_request())
    client.stub.ListOperators(v1.ListOperatorsRequest())
    name = "gradwire_plan_cache_lookups_total"
    wait_until(lambda: told().value(name, cache="evaluations", outcome="hit") == 2)
    client.evaluate(wrong_request())
    seen = told()
    assert seen.value(name, cache="tables", outcome="miss") == 2  # of two axes
    for direction, unary in (("received", 12), ("sent", 16)):
        assert seen.value(f"gradwire_{direction}_bytes_sum", **STREAM) == len(data)
        assert seen.value(f"gradwire_{direction}_bytes_sum", **UNARY) == 3 * unary
    # A step counts the bytes that it reads and those that it writes.
    assert seen.value("gradwire_step_bytes_sum") == 2 * len(data)
    assert seen.value("gradwire_step_bytes_count") > 1
    evaluated = {"dtype": "float32", "status": "OK"}
    for name in ("gradwire_requests_total", "gradwire_request_duration_seconds_count"):
        assert seen.value(name, **UNARY, operator="dml_resample_grad", **evaluated) == 3
        assert seen.value(name, **STREAM, operator="dml_resample", **evaluated) == 1
        assert seen.value(name, method="ListOperators", operator="unknown", status="OK") == 1
        assert seen.value(name, **UNARY, operator="unknown", status="INVALID_ARGUMENT") == 1
        assert seen.value(name) == 6
    assert seen.value("gradwire_worker_requests_total", worker="0") == 6
    once = {"operator": "dml_resample_grad"}
    spent = seen.value("gradwire_phase_duration_seconds_sum", **once)
    assert 0 < spent <= seen.value("gradwire_request_duration_seconds_sum", **once)
    phases = seen.labels("gradwire_phase_duration_seconds_count", "phase")
    assert phases == {"receive", "queue", "compute", "send"}


def test_what_goes_on_now_and_errors_by_reason_and_setting_are_told(told, client):
    streams = [WaitingStream(client) for _ in range(2)]
    wait_until(lambda: told().value("gradwire_streams", worker="0") == 2)
    seen = told()
    assert seen.value("gradwire_requests_in_flight", worker="0", **STREAM) == 2
    assert seen.value("gradwire_memory_bytes", worker="0") > 0
    assert seen.value("gradwire_streams_limit", worker="0") == 2
    assert client.stream(as_stream(published_request())).refusal is not None
    for stream in streams:
        stream.cancel()
    wait_until(lambda: not told().value("gradwire_requests_in_flight"))
    wait_until(lambda: not told().value("gradwire_streams"))
    client.evaluate(wrong_request())
    seen = told()
    assert seen.value("gradwire_requests_total", status="CANCELLED", **STREAM) == 2
    name = "gradwire_errors_total"
    assert seen.value(name, reason="OVERLOADED", limit="max_streams", **STREAM) == 1
    assert seen.value(name, reason="INVALID_FIELD", limit="", **UNARY) == 1
    assert seen.value(name) == 2


def test_items_of_evaluate_many_are_counted_with_their_bytes_and_errors(told, client):
    sound = published_request()
    with ManyCall(client) as call:
        requests = (sound, sound, wrong_request(), sound)
        call.send(*(named(each, f"{n}") for n, each in enumerate(requests)))
        assert len(call.answers()) == 4
    seen = told()
    evaluated = {"operator": "dml_resample_grad", "dtype": "float32", "status": "OK"}
    assert seen.value("gradwire_items_total", **evaluated) == 3
    failed = {"operator": "unknown", "status": "INVALID_ARGUMENT"}
    assert seen.value("gradwire_items_total", **failed) == 1
    many = {"method": "EvaluateMany"}
    assert seen.value("gradwire_errors_total", reason="INVALID_FIELD", **many) == 1
    assert seen.value("gradwire_received_bytes_sum", **many) == 4 * 12
    assert seen.value("gradwire_sent_bytes_sum", **many) == 3 * 16


def test_what_is_told_is_defined_and_documented_and_no_word_of_a_caller(server, told, client):
    request = published_request()
    request.request_id = "a-word-of-mine"
    client.evaluate(request, traceparent="a-trace-of-mine")
    request.operator.dml_resample_grad.scales[0] = -0.8125
    assert client.evaluate(request).refusal is not None
    seen = told()
    assert seen.value("gradwire_requests_total") == 2
    values = {value for _, labels in seen.samples for _, value in labels}
    allowed = {value for metric in METRICS for label in metric.labels for value in label.values}
    bounds = {str(bound) for metric in METRICS for bound in metric.buckets}
    assert values <= allowed | bounds | {"0", "+Inf"}
    assert not [value for value in values if "mine" in value or "8125" in value]
    assert seen.kinds == {metric.name: metric.kind for metric in METRICS}
    assert seen.helps == {metric.name: metric.help for metric in METRICS}
    backend = server.server.service.backend.name
    assert seen.value("gradwire_build_info", backend=backend) == 1
    document = (Path(__file__).parents[2] / "docs/metrics.md").read_text()
    rows = [line for line in document.splitlines() if line.startswith(("| `gradwire_", "| `proc"))]
    assert rows == [
        f"| `{metric.name}` | {metric.kind} | {', '.join(metric.label_names)} | {metric.help} |"
        for metric in METRICS
    ]
    for label in {label for metric in METRICS for label in metric.labels}:
        assert f"`{label.name}`" in document


def counts(seen):
    """Return all that may never fall; CPU time starts anew with a process."""
    return {
        key: value
        for key, value in seen.samples.items()
        if key[0].endswith(("_total", "_count", "_sum", "_bucket")) and key[0][:4] != "proc"
    }


@pytest.mark.slow
def test_workers_are_merged_and_one_that_is_killed_is_not_ready_and_no_count_is_lost_with_it(
    tmp_path,
):
    flags = ("--workers", "2", "--http-port", "127.0.0.1:0")
    with running_command(*flags, log=tmp_path / "log") as command:
        told = partial(scrape, command.http_address)
        workers = {"0", "1"}
        calls = 0

        def fallen():
            now = counts(told())
            less = [key for key, value in before.items() if now.get(key, 0) < value]
            before.update(now)
            return less or None

        def by_worker():
            nonlocal calls
            with RawClient(command.address) as client:
                client.evaluate(published_request())
            calls += 1
            seen = told()
            assert seen.value("gradwire_requests_total", method="Evaluate", status="OK") == calls
            each = [seen.value("gradwire_worker_requests_total", worker=name) for name in workers]
            assert sum(each) == calls
            return each

        wait_until(lambda: all(by_worker()))
        seen = told()
        assert seen.value("gradwire_worker_ready") == 2
        memory = "process_resident_memory_bytes"
        assert seen.labels(memory, "worker") == {*workers, "supervisor"}
        before = counts(told())
        pid = command.workers[1]
        os.kill(pid, signal.SIGSTOP)
        # Its metrics are read where they are; it need not answer.
        assert told().value("gradwire_streams_limit", worker="1") == 32
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not told().value("gradwire_worker_ready", worker="1"))
        wait_until(lambda: told().value("gradwire_worker_ready", worker="1"))
        assert told().value("gradwire_requests_in_flight") == 0
        assert fallen() is None
        assert all(by_worker())
        with Callers(command.address, "unary") as callers, repeated(fallen, threads=1):
            for number in (0, 1):
                callers.wait_for_more()
                command.kill_worker(number)
                command.wait_for_log(f" worker serves worker={number} ", times=2 + number)
        callers.check()
        wait_until(lambda: told().value("gradwire_worker_ready") == 2)
        seen = told()
        counted = seen.value("gradwire_requests_total", method="Evaluate", status="OK") - calls
        # A try whose answer was lost with its worker was counted too, once for each kill at most.
        assert callers.seen["calls"] <= counted <= callers.seen["calls"] + 2
        assert seen.value("gradwire_requests_in_flight") == 0


def test_every_time_series_has_cells_of_its_own():
    numbers = np.arange(TOTAL, dtype=float)
    found = []
    for metric in (*COUNTS, *STATES):
        for values in product(*(label.values for label in metric.labels)):
            first = place(metric, *values)
            found += range(first, first + metric.shape[-1])
    assert sorted(found) == list(range(1, TOTAL - 1))
    assert max(cells(metric, numbers).max() for metric in COUNTS) == COUNTED - 1


@given(st.lists(st.floats(0, 1e12), max_size=40))
def test_values_fall_into_the_buckets_that_prometheus_client_puts_them_in(values):
    registry = CollectorRegistry()
    oracle = Histogram("oracle", "oracle", buckets=STEP.buckets, registry=registry)
    own = Cells()
    for value in (*values, *STEP.buckets):
        oracle.observe(value)
        own.observe(STEP, value)
    ours = cells(STEP, own.array)
    assert registry.get_sample_value("oracle_sum") == pytest.approx(ours[0])
    samples = [sample for metric in oracle.collect() for sample in metric.samples]
    counts = [sample.value for sample in samples if sample.name == "oracle_bucket"]
    assert counts == np.cumsum(ours[1:]).tolist()


@examples(40)
@given(st.lists(st.tuples(st.sampled_from(["start", "end", "count"]), st.integers(0, 3))))
def test_counts_never_fall_and_none_is_lost_when_processes_come_and_go(events):
    ledger, cell = Ledger(0), place(STEP) + 1
    running = []
    counted, before = 0, np.zeros(COUNTED)
    for event, amount in events:
        if event == "start":
            stack = ExitStack()
            running.append((stack, stack.enter_context(ledger.process())))
        elif running and event == "end":
            running.pop(0)[0].close()
        elif running:
            own = running[-1][1]
            own.values[cell] += amount
            own.values[TOTAL - 2] = 1
            counted += amount
        now = ledger.read().values
        assert (now[:COUNTED] >= before).all()
        assert now[cell] == counted
        assert running or not now[COUNTED:].any()
        before = now[:COUNTED].copy()
    for stack, _ in running:
        stack.close()


def note(made, message, *, alike=""):
    texts = dict.fromkeys(("method", "operator", "status", "reason", "request_id"), "text")
    made.error(**texts, message=message, alike=alike)


def test_the_latest_errors_are_kept_and_one_that_comes_again_only_adds_to_its_count():
    memory = bytearray(NOTES_BYTES)
    made = Notes(memoryview(memory))
    assert made.read() == ({}, [])
    for number in range(3 * MOST):
        note(made, str(number))
    for number in range(10_000):
        note(made, f"full; retry after {number} ms", alike="max_queue")
    made.write({})
    told = [(error["message"], error["count"]) for error in made.read()[1]]
    assert told == [
        *((str(number), 1) for number in range(2 * MOST + 1, 3 * MOST)),
        ("full; retry after 9999 ms", 10_000),
    ]
    memory[100] ^= 1
    assert Notes(memoryview(memory)).read() == ({}, []), "what is not whole is not told"


TEXTS = st.text(max_size=3000) | st.builds(mul, st.text(max_size=50), st.integers(0, 120))


@given(st.lists(TEXTS, max_size=5), TEXTS)
def test_any_text_fits_or_is_cut(texts, fact):
    memory = bytearray(NOTES_BYTES)
    made, reader = (Notes(memoryview(memory)) for _ in range(2))
    for text in texts:
        note(made, text)
    made.write({"backend": fact})
    # As another process reads them.
    description, errors = reader.read()
    assert sorted(error["message"] for error in errors) == sorted(text[:600] for text in set(texts))
    assert description == {"backend": fact}


FILES = Path(__file__).parents[2] / "deploy/monitoring"
PANELS = json.loads((FILES / "dashboard.json").read_text())["panels"]
DASHBOARD = [target["expr"] for panel in PANELS for target in panel.get("targets", ())]
ALERTS = re.findall(
    r"expr: (?:>-\n)?((?:.|\n)*?)\n +(?:for|labels):", (FILES / "alerts.yml").read_text()
)
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}
# Of Prometheus itself, and of every time series it scrapes.
OWN = {"up": {"job", "instance"}}
SERIES = OWN | {
    metric.name + suffix: {*metric.label_names, "job", "instance"}
    | ({"le"} if suffix == "_bucket" else set())
    for metric in METRICS
    for suffix in SUFFIXES[metric.kind]
}


@pytest.mark.parametrize("query", [*DASHBOARD, *ALERTS])
def test_a_query_asks_for_what_there_is(query):
    names = set(re.findall(r"\b(?:gradwire|process)_\w+|\bup\b", query))
    assert names
    assert names <= SERIES.keys()
    labels = set().union(*(SERIES[name] for name in names))
    asked = re.findall(r"(\w+)(?:=~|!=|=)\"", query)
    for grouped in re.findall(r"by \(([^)]*)\)", query):
        asked += grouped.split(", ")
    assert set(asked) <= labels
    assert query.count("(") == query.count(")")


def test_every_alert_is_tested():
    named = re.findall(r"- alert: (\w+)", (FILES / "alerts.yml").read_text())
    assert len(named) == len(ALERTS) > 10
    tested = re.findall(r"alertname: (\w+)", (FILES / "alerts_test.yml").read_text())
    assert len(set(named)) == len(named)
    assert all(tested.count(name) > 1 for name in named if name != "GradwireDown")
    assert set(named) == set(tested)


@pytest.mark.parametrize("value", ["EvaluateFaster", "", "x" * 1000, "OK\n"])
def test_a_value_that_is_not_known_counts_as_the_last_one(value):
    assert place(ERRORS, value, value, "other") == place(ERRORS, "unknown", "UNSPECIFIED", "other")
    assert METHOD.values[-1] == "unknown"


@pytest.mark.parametrize("size", [0, 8, TOTAL * 8])
def test_cells_of_another_layout_are_left_alone(size):
    fd = os.memfd_create("other")
    os.ftruncate(fd, size)
    assert Cells.attached(fd) is None


def test_a_busy_event_loop_shows_as_lag(server, told):
    over = threading.Event()

    def big():
        name, seen = "gradwire_event_loop_lag_seconds_bucket", told()
        return seen.value(name, le="+Inf") - seen.value(name, le="0.1")

    before = big()
    server.loop.call_soon_threadsafe(over.wait, 0.6)
    wait_until(lambda: big() > before)
    over.set()
