"""The status page tells in words what all workers did, and those that have died."""

import contextlib
import html.parser
import json
import re
import signal
import threading
from functools import cache
from typing import Any, cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gradwire import Client, ops
from gradwire._wire.environment import VERSION
from gradwire_server.admin_http import page
from gradwire_server.admin_http.status import DEAD_S, SILENT_S, is_alive, quantile, state_of, status
from gradwire_server.backends.numpy_cpu import NumpyCpu
from gradwire_server.config.settings import Settings
from gradwire_server.config.tokens import Scope, add_token
from gradwire_server.observability.cells import TOTAL, Cells, Ledger, Worker, place
from gradwire_server.observability.definitions import READY, REQUEST_DURATION
from support.processes import memory_kib, running_command
from support.raw_calls import RawClient, as_stream, published_request, wait_until, wrong_request
from support.scraping import get
from support.servers import ServerThread, serving

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&amp;"


class Reader(html.parser.HTMLParser):
    """Reads a page: its elements in their order, with their attributes, and its text."""

    def __init__(self, found):
        super().__init__()
        self.open = []
        self.seen = []
        self.text = ""
        self.feed(page.render(found).decode())
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in {"meta", "link"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += f" {data}"


Told = dict[str, "Told"] | list["Told"] | str | float | None


def replaced(value, text):
    """Put a text wherever there is one."""
    if isinstance(value, dict):
        return {key: replaced(each, text) for key, each in value.items()}
    if isinstance(value, list):
        return [replaced(each, text) for each in value]
    return text if isinstance(value, str) else value


Structure = list[tuple[str, set[str], dict[str, str | None]]]


def structure(found):
    """Return the elements, with the names of their attributes, and those that lead elsewhere."""
    links = {"href", "src", "action", "style"}
    seen = Reader(found).seen
    return [(tag, set(has), {name: has[name] for name in has.keys() & links}) for tag, has in seen]


@cache
def plain():
    """Return what a server tells that has counted a call and an error, and the page of it."""
    cells = Cells()
    cells.observe(REQUEST_DURATION, 0.1, "Evaluate", "interpolate", "float32", "OK")
    names = {"status": "s", "reason": "r", "message": "m", "request_id": "i"}
    cells.notes.error(method="Evaluate", operator="interpolate", **names)
    cells.notes.write({"backend": "b", "backend_reason": "w", "backend_to_come": "c"})
    ledger = Ledger(0, cells)
    found = status(Settings(max_rank=3), [ledger], address="a:1")
    return found, structure(found)


@given(st.sampled_from([HOSTILE, '"><svg onload=1>', "javascript:alert(1)"]) | st.text(min_size=1))
def test_no_text_becomes_an_element_or_an_attribute(text):
    found, expected = plain()
    kept = {key: found[key] for key in ("state", "now")}
    hostile = cast("dict[str, Any]", replaced(found, text)) | kept
    hostile["workers"] = [each | {"state": "serving"} for each in hostile["workers"]]
    for error, original in zip(hostile["errors"], found["errors"], strict=True):
        error["latest"] = original["latest"]
    assert structure(hostile) == expected
    assert not any(name.startswith("on") for _, names, _ in expected for name in names)


@given(st.lists(st.floats(1e-6, 100), min_size=1, max_size=200), st.floats(0.01, 1))
def test_a_quantile_is_in_the_bucket_of_the_value_itself(values, share):
    bounds = REQUEST_DURATION.buckets
    counts = np.bincount(np.searchsorted(bounds, values), minlength=len(bounds) + 1)
    told = quantile(bounds, np.asarray(counts, np.float64), share)
    assert told is not None
    bucket = np.searchsorted(bounds, np.quantile(values, share, method="inverted_cdf"))
    lower = 0.0 if bucket == 0 else bounds[bucket - 1]
    assert lower * (1 - 1e-12) <= told <= bounds[bucket] * (1 + 1e-12)


def test_a_quantile_lies_evenly_within_its_bucket_and_at_most_at_the_last_bound():
    for counts, value in (((1, 1, 2, 0), 3.0), ((0, 0, 0, 3), 4.0), ((0, 0, 0, 0), None)):
        assert quantile((1.0, 2.0, 4.0), np.asarray(counts, np.float64), 0.75) == value


def worker(silent_s, *, ready=True, pids=(1,)):
    values = np.zeros(TOTAL)
    values[place(READY)] = ready
    return Worker("0", values, pids, silent_s, {}, [])


def test_a_silent_event_loop_hangs_if_it_served_and_a_server_lives_while_one_does():
    assert state_of(worker(SILENT_S - 1)) == "serving"
    assert state_of(worker(SILENT_S)) == "hangs"
    # It compiles, say.
    assert state_of(worker(SILENT_S, ready=False)) == "not ready"
    assert state_of(worker(0.0, ready=False, pids=())) == "away"
    dead = worker(DEAD_S)
    assert is_alive([dead, worker(0.0)])
    assert not is_alive([dead, worker(DEAD_S + 1)])
    assert not is_alive([dead, worker(0.0, ready=False)])
    assert is_alive([worker(DEAD_S, ready=False)] * 2)


def told_at(address):
    return json.loads(get(address, "/status.json")[2])


def refuse(address, request_id="nightly"):
    wrong = wrong_request()
    wrong.request_id = request_id
    with RawClient(address) as client:
        assert client.evaluate(wrong).refusal is not None


def test_calls_items_and_errors_are_told():
    copy = ops.InterpolateBackward(mode="nearest", data_format="NCX")
    items = [(copy, np.ones((1, 1, 4, 4), np.float32), (1, 1, 2, 2))] * 7
    large = published_request()
    large.input.sizes[:] = [1 << 20, 1 << 20]
    with serving(http_port="0", backend=NumpyCpu(), max_streams=5) as server:
        address = server.http_address
        with RawClient(server.address) as client:
            for _ in range(3):
                client.evaluate(published_request())
            client.stream(as_stream(published_request()))
            # One that is refused for a limit has its operator.
            assert client.stream(as_stream(large)).refusal is not None
        with Client(server.address) as sdk:
            assert len(list(sdk.evaluate_many(items))) == 7
        for _ in range(4):
            refuse(server.address)
        wait_until(lambda: told_at(address)["totals"]["calls"] == 10)
        wait_until(lambda: [one["count"] for one in told_at(address)["errors"]] == [4, 1])
        told = told_at(address)
    assert told["state"] == "serving"
    nbytes = 4 * (12 + 16) + 7 * (64 + 16)
    assert told["totals"] == {"calls": 10, "items": 7, "failed": 5, "tensor_bytes": nbytes}
    assert (told["version"], told["address"]) == (VERSION, server.address)
    assert (told["backend"], told["backend_reason"]) == ("numpy_cpu", "numpy_cpu was given")
    assert told["settings"]["max_streams"] == told["streams"]["limit"] == 5
    names = ("operator", "calls", "failed", "items")
    rows = [tuple(each[name] for name in names) for each in told["operators"]]
    assert rows == [
        ("interpolate_backward", 0, 0, 7),
        ("dml_resample_grad", 5, 1, 0),
        ("", 5, 4, 0),
    ]
    error = told["errors"][0]
    assert (error["count"], error["reason"], error["request_id"]) == (4, "INVALID_FIELD", "nightly")
    assert "input.sizes[0]" in error["message"]
    phases = {each["phase"]: each for each in told["latency"]}
    assert phases["call"]["count"] == 10
    assert 0 < phases["compute"]["p50_s"] <= phases["compute"]["p99_s"]
    assert [each["device_memory_bytes"] for each in told["workers"]] == [0]


def test_secrets_are_masked(tmp_path):
    tokens = tmp_path / "secret"
    add_token(tokens, name="reader", scopes={Scope.INSPECT})
    with serving(http_port="0.0.0.0:0", http_open=True, tokens=str(tokens)) as server:
        told = told_at(f"127.0.0.1:{server.http_address.rpartition(':')[2]}")
    assert told["settings"]["tokens"] == "***"
    assert str(tokens) not in json.dumps(told)


def test_probes_tell_whether_calls_are_taken_and_the_silence_of_the_event_loop():
    server, over = ServerThread(http_port="0", backend=NumpyCpu()), threading.Event()
    server.listen()
    address = server.http_address
    assert get(address, "/healthz")[0] == 200
    server.wait_until_serving()
    assert get(address, "/readyz")[0] == 200

    def silent_s():
        return float(told_at(address)["workers"][0]["silent_s"])

    assert silent_s() < 1
    server.loop.call_soon_threadsafe(over.wait)
    wait_until(lambda: silent_s() > 1)
    over.set()
    wait_until(lambda: silent_s() < 1)
    server.stop()


def test_workers_are_one_server_the_dead_are_not_forgotten_and_probes_tell_who_serves(tmp_path):
    flags = ("--workers", "2", "--http-port", "0", "--drain-delay-s", "60")
    with running_command(*flags, log=tmp_path / "log") as command:
        address = command.http_address
        told = told_at(address)
        assert (told["state"], told["workers_serving"]) == ("serving", 2)
        assert told["backend"] == "numpy_cpu"
        assert {pid for each in told["workers"] for pid in each["pids"]} == {
            *command.workers.values()
        }
        for worker in told["workers"]:
            resident = memory_kib(worker["pids"][0], "VmRSS") << 10
            assert 0.5 < worker["resident_bytes"] / resident < 2
            assert worker["processor_s"] > 0
            assert worker["request_budget_bytes"] == 0
        budget = told["settings"].get("max_memory_bytes", Settings().max_memory_bytes)
        assert told["request_budget_bytes"] == {"now": 0, "limit": budget}
        seen = []

        def both():
            seen.append(f"call {len(seen)}")
            refuse(command.address, seen[-1])
            return all(re.search(rf"worker={one} .*reason=INVALID", command.log) for one in "01")

        wait_until(both)
        wait_until(lambda: [one["count"] for one in told_at(address)["errors"]] == [len(seen)])
        command.kill_worker(0)
        command.wait_for_log(" worker serves worker=0 ", times=2)
        wait_until(lambda: [each["restarts"] for each in told_at(address)["workers"]] == [1, 0])
        wait_until(lambda: told_at(address)["workers_serving"] == 2)
        told = told_at(address)
        (error,) = told["errors"]
        assert error["count"] == len(seen) == told["totals"]["calls"]

        def is_partly():
            # One that is back before anybody has looked is killed once more.
            with contextlib.suppress(ProcessLookupError):
                command.kill_worker(1)
            return bool(told_at(address)["state"] == "partly")

        wait_until(is_partly)
        assert get(address, "/readyz")[0] == 200
        wait_until(lambda: told_at(address)["state"] == "serving")
        command.signal(signal.SIGTERM)
        wait_until(lambda: get(address, "/readyz")[0] == 503)
        assert get(address, "/healthz")[0] == 200
        wait_until(lambda: told_at(address)["state"] == "away")
