"""A client calls one server or several, wherever their addresses come from."""

from __future__ import annotations

import itertools
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from gradwire import CallCancelledError, Client, health
from gradwire._core.options import channel_targets, read_target
from gradwire._transport.channels import AVOIDED_S, Pool
from gradwire._transport.replicas import FRESH_S, Replicas, resolve
from gradwire.errors import InvalidRequestError, UnavailableError
from support.certificates import Papers, trusting
from support.clients import CALLS, LARGE, ONCE, SMALL, Face, copied
from support.load import Callers
from support.processes import running_command
from support.raw_calls import wait_until
from support.relay import Relay
from support.servers import List, ServerThread, serving, serving_process


@pytest.mark.parametrize(
    ("target", "addresses"),
    [
        ("host:1", ("host:1",)),
        ("a:1,b:2", ("a:1", "b:2")),
        (" a:1 , b:2 ", ("a:1", "b:2")),
        (["a:1", "b:2"], ("a:1", "b:2")),
        (("a:1",), ("a:1",)),
        ("dns:///a:1", ("dns:///a:1",)),
        ("ipv4:127.0.0.1:1,127.0.0.1:2", ("ipv4:127.0.0.1:1,127.0.0.1:2",)),
        ("unix:/tmp/a,b", ("unix:/tmp/a,b",)),
        ("unix:///tmp/a", ("unix:///tmp/a",)),
        ("unix-abstract:name", ("unix-abstract:name",)),
        ("dns:host:1", ("dns:host:1",)),
        ("dns://8.8.8.8/host:1", ("dns://8.8.8.8/host:1",)),
        ("dns://[::1]:53/host:1", ("dns://[::1]:53/host:1",)),
        ("xds:///service", ("xds:///service",)),
        ("vsock:2:50051", ("vsock:2:50051",)),
        ("[::1]:1,[fe80::1%eth0]:65535", ("[::1]:1", "[fe80::1%eth0]:65535")),
        ("dns:///[::1]:1", ("dns:///[::1]:1",)),
        ("ipv6:[::1]:1,[::2]:2", ("ipv6:[::1]:1,[::2]:2",)),
        ("under_score.example:1,xn--bcher-kva:2", ("under_score.example:1", "xn--bcher-kva:2")),
        ("replicas+http://host:1/name", ("replicas+http://host:1/name",)),
    ],
)
def test_a_target_names_one_address_or_several(target: Any, addresses: tuple[str, ...]) -> None:
    assert read_target(target) == addresses


def test_without_a_target_the_environment_tells_it(
    server: ServerThread, face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRADWIRE_TARGET", raising=False)
    assert read_target(None) == ("127.0.0.1:50051",)
    monkeypatch.setenv("GRADWIRE_TARGET", server.address)
    with face() as client:
        assert client.server_info()
    assert health.health() == "SERVING"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_several_servers_take_turns(host: str) -> None:
    with serving(max_streams=3) as one, serving(max_streams=5) as other:
        target = ",".join(f"{host}:{server.address.rpartition(':')[2]}" for server in (one, other))
        with Client(target) as client:
            seen = [client.server_info().limits.max_streams for _ in range(30)]
            assert set(seen) == {3, 5}
            assert health.health(target) == "SERVING"


def test_an_address_without_a_server_delays_and_fails_no_call(
    server: ServerThread, nobody: str, face: Face
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = [nobody, f"127.0.0.1:{silent.getsockname()[1]}", server.address]
        with face(target, retry=ONCE, timeout_s=5) as client:
            for array in [SMALL] * 6 + [LARGE] * 6:
                np.testing.assert_array_equal(copied(client, array), array)
        started = time.monotonic()
        assert health.health(target) == "SERVING"
        assert time.monotonic() < started + 3


@pytest.mark.parametrize(
    ("addresses", "secure", "targets"),
    [
        (["1.2.3.4:5", "1.2.3.4:6"], False, ("ipv4:1.2.3.4:5,1.2.3.4:6",)),
        (["[::1]:5", "[::2]:6"], False, ("ipv6:[::1]:5,[::2]:6",)),
        (["1.2.3.4:5", "1.2.3.4:6"], True, ("1.2.3.4:5", "1.2.3.4:6")),
        (["1.2.3.4:5", "[::1]:6"], False, ("1.2.3.4:5", "[::1]:6")),
        (["1.2.3.4:5", "host:6"], False, ("1.2.3.4:5", "host:6")),
        (["1.2.3.4:5"], False, ("1.2.3.4:5",)),
        ([], False, ()),
    ],
)
def test_grpc_goes_round_addresses_that_one_channel_can_have(
    addresses: list[str], targets: tuple[str, ...], *, secure: bool
) -> None:
    assert channel_targets(addresses, secure=secure) == targets


def test_a_name_of_dns_is_called(server: ServerThread) -> None:
    with Client(f"dns:///localhost:{server.server.port}") as client:
        np.testing.assert_array_equal(copied(client, SMALL), SMALL)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_calls_go_on_when_one_of_several_servers_dies(host: str) -> None:
    flags = ("--backend", "numpy_cpu")
    with serving_process(*flags) as one, serving_process(*flags) as other:
        with Callers(f"{host}:{one.port},{host}:{other.port}", "unary", "copy") as callers:
            callers.wait_for_more()
            one.kill()
            for _ in range(3):
                callers.wait_for_more()
        callers.check()


def test_streams_and_small_calls_have_connections_of_their_own(relay: Relay) -> None:
    for connections, expected in ((1, 1), (2, 1 + 2)):
        with Client(relay.address, connections=connections) as client:
            for array in (SMALL, LARGE, SMALL, LARGE):
                copied(client, array)
        assert relay.connections == expected


def test_the_connections_of_a_client_reach_all_workers(tmp_path: Path) -> None:
    flags = ("--workers", "2", "--backend", "numpy_cpu", "--access-log")
    with running_command(*flags, log=tmp_path / "log") as command:
        seen: set[str] = set()
        # Which worker has a connection is chance: five to one are all with the same, rarely.
        while seen != {"0", "1"}:
            with Callers(command.address, *["unary"] * 6, connections=6) as callers:
                callers.wait_for_more()
            callers.check()
            seen = set(re.findall(r" call worker=(\d) .*method=Evaluate ", command.log))


@pytest.fixture
def several() -> Generator[list[ServerThread]]:
    with ExitStack() as stack:
        yield [stack.enter_context(serving()) for _ in range(2)]


@pytest.fixture
def listed(several: list[ServerThread]) -> Generator[List]:
    made = List(*(one.address for one in several))
    yield made
    made.close()


def calls_of(server: ServerThread) -> int:
    return server.server.service.admission.entered


@contextmanager
def telling(tell: Callable[[], bytes]) -> Generator[str]:
    """Answer every request over HTTP, and yield a target that asks there."""

    class Tells(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(tell())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Tells) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"replicas+http://127.0.0.1:{server.server_address[1]}/x"
        server.shutdown()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_every_kind_of_call_finds_the_replicas(
    listed: List, face: Face, call: Callable[[Client], Any]
) -> None:
    with face(listed.url) as client:
        assert call(client) is not None


def test_readiness_and_health_find_the_replicas(listed: List, face: Face) -> None:
    with face(listed.url) as client:
        client.wait_ready()
    assert health.health(listed.url) == "SERVING"


def test_calls_go_to_those_that_come_and_not_to_those_that_went(
    listed: List, several: list[ServerThread]
) -> None:
    first, second = several
    listed.replicas = [first.address]
    with Client(listed.url) as client:
        copied(client, SMALL)
        assert (calls_of(first), calls_of(second)) == (1, 0)
        listed.replicas = [second.address]
        wait_until(lambda: copied(client, SMALL).any() and calls_of(second))
        before = calls_of(first)
        for _ in range(10):
            copied(client, SMALL)
        assert calls_of(first) == before


def test_replicas_stay_known_while_nobody_tells_of_them() -> None:
    listed = List("127.0.0.1:1", "[::1]:2", "name:3")
    known = ("127.0.0.1:1", "[::1]:2", "dns:///name:3")
    heard: list[Sequence[str]] = []
    replicas = Replicas(listed.url)
    replicas.subscribe(heard.append)
    replicas.look()
    assert replicas.addresses == known
    listed.replicas = []
    replicas.look()
    listed.close()
    replicas.look()
    assert replicas.addresses == known
    assert heard == [known]
    assert "no replicas are known" in str(replicas.failure)


def test_a_replica_that_is_killed_loses_no_call() -> None:
    with serving_process() as doomed, serving() as other:
        listed = List(doomed.address, other.address)
        with Client(listed.url) as client:
            for number in range(20):
                if number == 5:
                    doomed.kill()
                    listed.replicas = [other.address]
                copied(client, SMALL)
                copied(client, LARGE)
        listed.close()


def test_who_knows_no_replica_says_so_and_retries() -> None:
    listed = List()
    with Client(listed.url, retry=ONCE) as client:
        for array in (SMALL, LARGE):
            with pytest.raises(UnavailableError, match="it lists none now"):
                copied(client, array)
    with serving() as server, Client(listed.url) as client:
        late = threading.Timer(0.5, listed.replicas.append, (server.address,))
        late.start()
        copied(client, SMALL)
        late.join()
    listed.close()
    with pytest.raises(UnavailableError, match="no replicas are known from"):
        health.health(listed.url)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        *(b'{"replicas": %s}' % told for told in (b'"a:1"', b"[1]", b'["a"]', b'["a:1", "b:"]')),
        *(b'{"replicas": ["%s"]}' % told for told in (b"unix:/s", b"dns:///a:1", b"a:1,b:2")),
        b"\xff\xfe",
        b"[" * 100_000,
    ],
    ids=lambda body: str(body[:30]),
)
def test_a_list_that_is_none_is_not_taken(body: bytes) -> None:
    with (
        telling(lambda: body) as target,
        pytest.raises(UnavailableError, match="no replicas are known"),
    ):
        resolve(target)


def test_who_speaks_no_http_is_told_so_in_printable_words() -> None:
    with serving() as server, pytest.raises(UnavailableError, match="with no HTTP") as raised:
        resolve(f"replicas+http://{server.address}/x")
    assert str(raised.value).isprintable()


def test_the_list_comes_by_tls_from_who_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    papers = Papers(tmp_path)
    with serving(**papers.settings) as server:
        listing = List(server.address, **papers.settings)
        assert listing.url.startswith("replicas+https://")
        with pytest.raises(UnavailableError, match=r"(?i)certificate"):
            resolve(listing.url)
        monkeypatch.setenv("SSL_CERT_FILE", papers.mutual["tls_client_ca"])
        assert ssl.get_default_verify_paths().cafile == papers.mutual["tls_client_ca"]
        credentials = trusting(papers.roots)
        with Client(listing.url, credentials=credentials, token="shown") as client:  # noqa: S106
            copied(client, SMALL)
        listing.close()


def test_no_token_goes_where_others_may_send_it() -> None:
    credentials = grpc.ssl_channel_credentials()
    Client("replicas+https://ray:1/x", credentials=credentials, token="a")  # noqa: S106
    Client("replicas+http://127.0.0.1:1/x", credentials=credentials, token="a")  # noqa: S106
    with pytest.raises(InvalidRequestError, match="give replicas\\+https"):
        Client("replicas+http://ray:1/x", credentials=credentials, token="a")  # noqa: S106
    with pytest.raises(InvalidRequestError, match="plain text"):
        Client("replicas+https://ray:1/x", token="a")  # noqa: S106


def test_the_list_is_asked_for_when_it_is_old_and_soon_after_a_failure() -> None:
    asked: list[float] = []
    now = 100.0

    def tell() -> bytes:
        asked.append(now)
        return json.dumps({"replicas": ["a:1"]}).encode()

    with telling(tell) as target:
        replicas = Replicas(target, clock=lambda: now)
        replicas.wait()
        assert asked == [100.0]
        for seconds, ask, most in (
            (0.1, replicas.refresh_soon, 1),
            (1.0, replicas.refresh, 1),
            (1.0, replicas.refresh_soon, 2),
            (FRESH_S, replicas.refresh, 3),
        ):
            now += seconds
            ask()
            wait_until(lambda: not replicas.refreshing)
            assert len(asked) == most


class Calls:
    """Calls on a pool whose connections are named after their targets and numbers.

    opened, closed  connections so far
    now             what the pool's clock says
    """

    def __init__(self, targets: str, *, connections: int = 2) -> None:
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.now = 100.0
        self.pool = Pool(
            targets,
            self._open,
            connections=connections,
            close_one=self.closed.append,
            clock=lambda: self.now,
        )

    def _open(self, target: str) -> str:
        self.opened.append(f"{target}{sum(name[0] == target for name in self.opened)}")
        return self.opened[-1]

    def begin(self, count: int) -> list[str]:
        """Begin so many calls, which stay; return their connections."""
        return [self.pool.take()[1] for _ in range(count)]

    def end(self, count: int, *, failed: bool = False) -> list[str]:
        """Begin so many calls at once and end them; return their connections."""
        taken = [self.pool.take() for _ in range(count)]
        for seat, _ in taken:
            self.pool.give_back(seat, failed=failed)
        return [connection for _, connection in taken]


def test_calls_spread_over_targets_first_and_then_evenly_over_connections() -> None:
    calls = Calls("a", connections=3)
    assert [calls.end(1) for _ in range(5)] == [["a0"]] * 5
    assert calls.opened == ["a0"]
    taken = [calls.pool.take() for _ in range(7)]
    assert [connection for _, connection in taken] == ["a0", "a1", "a2", "a0", "a1", "a2", "a0"]
    for seat, _ in (taken[1], taken[4]):
        calls.pool.give_back(seat, failed=False)
    assert calls.begin(4) == ["a1", "a1", "a1", "a2"]
    several = Calls("abc")
    seen = [several.end(1)[0] for _ in range(6)]
    assert all(one != other for one, other in itertools.pairwise(seen))
    assert sorted(several.begin(3)) == ["a0", "b0", "c0"]
    assert sorted(several.begin(3)) == ["a1", "b1", "c1"]


def test_a_connection_that_failed_is_avoided_for_a_while_and_so_is_its_target() -> None:
    calls = Calls("a")
    calls.end(1, failed=True)
    assert calls.begin(3) == ["a1"] * 3
    calls.now += AVOIDED_S
    assert calls.begin(1) == ["a0"]
    two = Calls("ab")
    (failed,) = two.end(1, failed=True)
    assert failed[0] not in {name[0] for name in two.begin(4)}
    two.now += AVOIDED_S
    assert two.begin(1)[0][0] == failed[0]


def test_where_all_targets_failed_connections_that_did_not_come_first() -> None:
    calls = Calls("ab")
    calls.end(2, failed=True)
    assert sorted(calls.begin(2)) == ["a1", "b1"]
    one = Calls("a")
    one.end(2, failed=True)
    assert one.begin(4) == ["a0", "a1", "a0", "a1"]


def test_threads_never_lose_count() -> None:
    pool = Pool("ab", str, connections=2)

    def call() -> None:
        for number in range(2000):
            seat, _ = pool.take()
            pool.give_back(seat, failed=number % 7 == 0)

    with ThreadPoolExecutor(8) as threads:
        for each in [threads.submit(call) for _ in range(8)]:
            each.result()
    assert {pool.take()[0].calls for _ in range(4)} == {1}


def test_new_targets_take_turns_with_those_that_stay() -> None:
    calls = Calls("ab", connections=1)
    calls.end(2)
    calls.pool.renew("bc")
    assert sorted(calls.begin(4)) == ["b0", "b0", "c0", "c0"]
    assert calls.closed == ["a0"]


def test_a_target_that_goes_ends_its_calls_first() -> None:
    calls = Calls("a", connections=1)
    first, second = calls.pool.take()[0], calls.pool.take()[0]
    calls.pool.renew("b")
    assert calls.begin(1) == ["b0"]
    calls.pool.give_back(first, failed=False)
    assert not calls.closed
    calls.pool.give_back(second, failed=True)
    assert calls.closed == ["a0"]


def test_closing_finds_all_connections_and_opens_no_more() -> None:
    calls = Calls("a")
    seat, _ = calls.pool.take()
    calls.pool.renew("b")
    calls.begin(1)
    assert sorted(calls.pool.close()) == ["a0", "b0"]
    calls.pool.give_back(seat, failed=False)
    calls.pool.renew("c")
    with pytest.raises(CallCancelledError, match="closed"):
        calls.pool.take()
    assert calls.opened == ["a0", "b0"]
