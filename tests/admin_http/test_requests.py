"""Whatever comes to the HTTP port, it answers in bounded memory and time, and to its own names."""

import contextlib
import re
import socket
import time

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_server.admin_http.listener import MOST_HEAD_BYTES, Request
from support.raw_calls import RawClient
from support.servers import serving

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
def test_it_answers_to_addresses_and_its_own_names_alone(server, host):
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
    for nbytes, status in ((MOST_HEAD_BYTES, 200), (MOST_HEAD_BYTES + 8192, 431)):
        start = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: "
        assert say(server, start.ljust(nbytes - len(EMPTY), b"a"))[0] == status


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
