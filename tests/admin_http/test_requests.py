"""The HTTP port: bounded memory and time whatever comes; its page tells what all workers did."""

import contextlib
import html.parser
import json
import re
import signal
import socket
import threading
import time
from functools import cache

import h11
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire import Client, ops
from gradwire_server.admin_http import page
from gradwire_server.admin_http.listener import MOST_HEAD_BYTES, Request
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

EMPTY = b"\r\n\r\n"
# Of an attacker's site whose name leads to this machine.
FOREIGN = (
    *("evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example"),
    *("[::1", "localhost:99999x", ""),
)
OURS = (
    *("localhost", "LOCALHOST:1", "status.localhost", "127.0.0.1:99", "[::1]:99", "10.1.2.3"),
    *("status.example", "Gradwire:9464"),
)


@pytest.fixture(scope="module")
def server():
    with serving(http_port="0", http_hosts="status.example, gradwire") as server:
        yield server


def connect(server, *, timeout_s=30):
    host, port = server.http_address.split(":")
    return socket.create_connection((host, int(port)), timeout_s)


def say(server, head):
    """Send a head; return status, headers by their names in lower case, and body."""
    with connect(server) as connection:
        connection.sendall(head + EMPTY)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while came := connection.recv(1 << 16):
                answer += came
    head, _, body = answer.partition(EMPTY)
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    status = re.fullmatch(r"HTTP/1\.1 (\d{3}) .+", first)
    assert status is not None, answer[:200]
    return int(status[1]), {name.lower(): text for name, text in headers.items()}, body


def ask(server, path, *, host="localhost", method="GET"):
    return say(server, f"{method} {path} HTTP/1.1\r\nHost: {host}".encode())


@pytest.mark.parametrize("path", ["/", "/status.json", "/metrics", "/healthz", "/readyz"])
def test_every_path_is_read_and_none_is_written(server, path):
    assert ask(server, path)[0] == ask(server, f"{path}?x=%00")[0] == 200
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH"):
        assert ask(server, path, method=method)[0] == 405
    _, full, body = ask(server, path, host="a.localhost")
    status, headers, nothing = say(server, f"HEAD {path} HTTP/1.0".encode())
    assert (status, nothing) == (200, b"")
    assert headers["content-type"] == full["content-type"]
    assert int(full["content-length"]) == len(body) > 0


def test_there_is_nothing_else(server):
    for path in ("/nothing", "//", "/%2e%2e/etc/passwd", "/../settings.py", "/page.js"):
        assert ask(server, path)[0] == 404, path


@pytest.mark.parametrize("path", ["/", "/metrics", "/healthz", "/nothing"])
def test_no_answer_is_kept_guessed_at_framed_or_read_by_another_site(server, path):
    _, headers, _ = ask(server, path)
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    policy = headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "frame-ancestors 'none'"} <= set(policy)
    assert "unsafe" not in headers["content-security-policy"]
    assert "access-control-allow-origin" not in headers
    assert "server" not in headers


@pytest.mark.parametrize("host", [*OURS, *FOREIGN])
def test_the_http_port_answers_to_addresses_and_its_own_names_alone(server, host):
    for path in ("/", "/healthz"):
        assert ask(server, path, host=host)[0] == (200 if host in OURS else 421 if host else 400)


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.1",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example",
        b"GET / HTTP/1.1\r\nHost:",
        b"GET / HTTP/1.0\r\nHost: ",
        b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost",
        b"GET / HTTP/2.0\r\nHost: localhost",
        b"GET / HTTP/1.1 more\r\nHost: localhost",
        b"GET  / HTTP/1.1\r\nHost: localhost",
        b"GET / HTTP/1.1\r\nHost : localhost",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nno header",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a\r\nauthorization: Bearer b",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked",
        b"GET",
        b"PRI * HTTP/2.0\r\n\r\nSM",
        b"hello",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
    ],
)
def test_what_is_no_request_is_told_so(server, request_):
    assert say(server, request_)[0] == 400


LINES = st.sampled_from([b"GET / HTTP/1.1", b"Host: a", b"Host:", b" a", b":", b"\xff: \x00", b""])


@given(st.binary(max_size=200) | st.lists(LINES | st.binary(max_size=20)).map(b"\r\n".join))
def test_any_bytes_are_a_request_or_a_refusal(head):
    connection = h11.Connection(h11.SERVER)
    try:
        connection.receive_data(head + EMPTY)
        event = connection.next_event()
        assert isinstance(event, h11.Request)
        found = Request.of(event, peer="ipv4:127.0.0.1:1", certified=False)
    except h11.RemoteProtocolError as caught:
        status = caught.error_status_hint
        assert status in {400, 405}
    else:
        assert found.path.startswith("/")
        assert event.method in {b"GET", b"HEAD"}


@pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\nX: "])
def test_a_request_without_end_is_read_to_the_limit(server, start):
    with connect(server) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(start.ljust(MOST_HEAD_BYTES + 8192, b"a"))
        assert connection.recv(100).startswith(b"HTTP/1.1 431 ")
    # The last read may complete a head that is longer than the limit.
    for nbytes, told in ((MOST_HEAD_BYTES, 200), (MOST_HEAD_BYTES + 8192, 431)):
        start = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: "
        assert say(server, start.ljust(nbytes - len(EMPTY), b"a"))[0] == told


def test_who_sends_a_byte_now_and_then_is_not_waited_for(server):
    began = time.monotonic()
    with connect(server, timeout_s=0.1) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(b"GET / HTTP/1.1\r\nHost: ")
        while time.monotonic() - began < 30:
            connection.sendall(b"a")
            with contextlib.suppress(TimeoutError):
                if not connection.recv(1000):
                    break
    assert time.monotonic() - began < 20
    with RawClient(server.address) as client:
        client.check_alive()


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


def replaced(value, text):
    """Put a text wherever there is one."""
    if isinstance(value, dict):
        return {key: replaced(each, text) for key, each in value.items()}
    if isinstance(value, list):
        return [replaced(each, text) for each in value]
    return text if isinstance(value, str) else value


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


HOSTILE = ("</script><img src=x onerror=alert(1)>", "\"'><svg onload=1>", "javascript:alert(1)")


@given(st.sampled_from(HOSTILE) | st.text(min_size=1))
def test_no_text_becomes_an_element_or_an_attribute(text):
    found, expected = plain()
    hostile = replaced(found, text) | {key: found[key] for key in ("state", "now")}
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
    assert told["settings"]["max_streams"] == told["streams"]["limit"] == 5
    names = ("operator", "calls", "failed", "items")
    rows = {tuple(each[name] for name in names) for each in told["operators"]}
    assert {("dml_resample_grad", 5, 1, 0), ("", 5, 4, 0)} < rows
    error = told["errors"][0]
    assert (error["count"], error["reason"], error["request_id"]) == (4, "INVALID_FIELD", "nightly")
    phases = {each["phase"]: each for each in told["latency"]}
    assert phases["call"]["count"] == 10
    assert 0 < phases["compute"]["p50_s"] <= phases["compute"]["p99_s"]


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

    wait_until(lambda: silent_s() < 1)
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
        assert {pid for each in told["workers"] for pid in each["pids"]} == {
            *command.workers.values()
        }
        for worker in told["workers"]:
            resident = memory_kib(worker["pids"][0], "VmRSS") << 10
            assert 0.5 < worker["resident_bytes"] / resident < 2
            assert worker["processor_s"] > 0
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
