"""A client follows a list of replicas: those that come get calls, those that go get no more."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from gradwire import Client, Item
from gradwire._transport.replicas import FRESH_S, Replicas, resolve
from gradwire.errors import InvalidRequestError, UnavailableError
from gradwire.health import health
from gradwire_ray.listing import Listing
from gradwire_server.config.settings import Settings
from support.certificates import Papers, trusting
from support.clients import BILINEAR, ONCE, Face, halved
from support.raw_calls import wait_until
from support.servers import ServerThread, serving, serving_process

ONES = np.ones((1, 1, 4, 4), np.float32)
# Above the default threshold of streams.
LARGE = np.ones((1, 4, 256, 256), np.float32)


class List(Listing):
    """A list of replicas that a test changes."""

    def __init__(self, *replicas: str, **settings: Any) -> None:
        self.replicas = list(replicas)
        super().__init__(
            "some",
            host="127.0.0.1",
            port=0,
            settings=Settings(**settings),
            addresses=lambda: self.replicas,
        )
        self.target = self.url


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


def test_every_kind_of_call_finds_the_replicas(listed: List, face: Face) -> None:
    def first(call: Callable[[Any], Any]) -> Any:
        """Make a call with a client that has heard of no replica yet."""
        with face(listed.target) as client:
            return call(client)

    small = first(lambda client: halved(client, ONES))
    np.testing.assert_array_equal(small, np.full((1, 1, 2, 2), 4, np.float32))
    assert (first(lambda client: halved(client, LARGE)) == 4).any()
    items = [Item(BILINEAR, ONES, small.shape)] * 3
    many = first(lambda client: list(client.evaluate_many(items)))
    assert [each.tolist() for each in many] == [small.tolist()] * 3
    assert first(lambda client: client.server_info()).operators
    first(lambda client: client.wait_ready())
    assert health(listed.target) == "SERVING"


def test_calls_go_to_those_that_come_and_not_to_those_that_went(
    listed: List, several: list[ServerThread]
) -> None:
    first, second = several
    listed.replicas = [first.address]
    with Client(listed.target) as client:

        def call() -> None:
            halved(client, ONES)

        call()
        assert (calls_of(first), calls_of(second)) == (1, 0)
        listed.replicas = [second.address]

        def moved() -> bool:
            call()
            return calls_of(second) > 0

        wait_until(moved)
        before = calls_of(first)
        for _ in range(10):
            call()
        assert calls_of(first) == before


def test_replicas_stay_known_while_nobody_tells_of_them() -> None:
    listed = List("127.0.0.1:1", "[::1]:2", "name:3")
    known = ("127.0.0.1:1", "[::1]:2", "dns:///name:3")
    heard: list[Sequence[str]] = []
    replicas = Replicas(listed.target)
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
        with Client(listed.target) as client:
            for number in range(20):
                if number == 5:
                    doomed.kill()
                    listed.replicas = [other.address]
                halved(client, ONES)
                halved(client, LARGE)
        listed.close()


def test_who_knows_no_replica_says_so_and_retries() -> None:
    listed = List()
    with Client(listed.target, retry=ONCE) as client:
        for array in (ONES, LARGE):
            with pytest.raises(UnavailableError, match="it lists none now"):
                halved(client, array)
    with serving() as server, Client(listed.target) as client:
        late = threading.Timer(0.5, listed.replicas.append, (server.address,))
        late.start()
        halved(client, ONES)
        late.join()
    listed.close()
    with pytest.raises(UnavailableError, match="no replicas are known from"):
        health(listed.target)


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
            halved(client, ONES)
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
