"""A client follows a list of replicas: those that come get calls, those that go get no more."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import numpy as np
import pytest
import trustme

from gradwire import (
    AsyncClient,
    Client,
    InvalidRequestError,
    Item,
    RetryPolicy,
    UnavailableError,
    ops,
)
from gradwire._core.options import read_target
from gradwire._transport.replicas import FRESH_S, Replicas, resolve
from gradwire.health import health
from gradwire_ray.listing import Listing
from gradwire_server.config.settings import Settings
from raw_calls import wait_until
from serving import ServerThread, serving, serving_process

OP = ops.InterpolateBackward(mode="nearest", data_format="NCX")
ONES = np.ones((1, 1, 4, 4), np.float32)
# Above the default threshold of streams.
LARGE = np.ones((1, 4, 256, 256), np.float32)
ONCE = RetryPolicy(max_attempts=1)


class List:
    """A list of replicas that a test changes."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = list(addresses)
        self._listing = Listing(
            "some",
            host="127.0.0.1",
            port=0,
            settings=Settings(),
            addresses=lambda: self.addresses,
        )
        self.target = self._listing.url
        self.close = self._listing.close


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


def test_every_kind_of_call_finds_the_replicas(listed: List) -> None:
    with Client(listed.target, retry=ONCE) as client:
        client.wait_ready()
        expected = client.evaluate(OP, LARGE, output_shape=(1, 4, 128, 128))
        small = client.evaluate(OP, ONES, output_shape=(1, 1, 2, 2))
        many = list(client.evaluate_many([Item(OP, ONES, (1, 1, 2, 2))] * 3))
        assert client.server_info().operators
    np.testing.assert_array_equal(small, np.full((1, 1, 2, 2), 4, np.float32))
    assert all((one == small).all() for one in many)
    assert health(listed.target) == "SERVING"

    async def call() -> None:
        for array, shape in ((ONES, (1, 1, 2, 2)), (LARGE, (1, 4, 128, 128))):
            async with AsyncClient(listed.target, retry=ONCE) as client:
                result = await client.evaluate(OP, array, output_shape=shape)
                np.testing.assert_array_equal(result, small if array is ONES else expected)
        async with AsyncClient(listed.target) as client:
            assert len([one async for one in client.evaluate_many([(OP, ONES, (1, 1, 2, 2))])]) == 1

    asyncio.run(call())


def test_calls_go_to_those_that_come_and_not_to_those_that_went(
    listed: List, several: list[ServerThread]
) -> None:
    first, second = several
    listed.addresses = [first.address]
    with Client(listed.target) as client:

        def call() -> None:
            client.evaluate(OP, ONES, output_shape=(1, 1, 2, 2))

        call()
        assert (calls_of(first), calls_of(second)) == (1, 0)
        listed.addresses = [second.address]

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
    listed.addresses = []
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
                    listed.addresses = [other.address]
                client.evaluate(OP, ONES, output_shape=(1, 1, 2, 2))
                client.evaluate(OP, LARGE, output_shape=(1, 4, 128, 128))
        listed.close()


def test_who_knows_no_replica_says_so_and_retries() -> None:
    listed = List()
    with Client(listed.target, retry=ONCE) as client:
        for shape, array in (((1, 1, 2, 2), ONES), ((1, 4, 128, 128), LARGE)):
            with pytest.raises(UnavailableError, match="it lists none now"):
                client.evaluate(OP, array, output_shape=shape)
    with serving() as server, Client(listed.target) as client:
        late = threading.Timer(0.5, listed.addresses.append, (server.address,))
        late.start()
        client.evaluate(OP, ONES, output_shape=(1, 1, 2, 2))
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
    class Tells(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Tells) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(UnavailableError, match="no replicas are known"):
            resolve(f"replicas+http://127.0.0.1:{server.server_address[1]}/x")
        server.shutdown()


def test_who_speaks_no_http_is_told_so_in_printable_words() -> None:
    with serving() as server, pytest.raises(UnavailableError, match="with no HTTP") as raised:
        resolve(f"replicas+http://{server.address}/x")
    assert str(raised.value).isprintable()


@pytest.mark.parametrize(
    "target",
    [
        "replicas+http://a:1/x,b:2",
        ["replicas+http://a:1/x", "b:2"],
        "replicas+ftp://a:1/x",
        "replicas+http://a/x",
        "replicas+http://a:b/x",
        "replicas+http://:1/x",
        "replicas+http://a:1/x?y",
        "replicas+http://user@a:1/x",
    ],
    ids=str,
)
def test_a_target_that_is_no_list_is_refused(target: str | list[str]) -> None:
    with pytest.raises(ValueError, match="a list of replicas stands alone"):
        read_target(target)


def test_the_list_comes_by_tls_from_who_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    for name, pems in (
        ("key", [certificate.private_key_pem]),
        ("certificate", certificate.cert_chain_pems),
        ("ca", [authority.cert_pem]),
    ):
        for number, pem in enumerate(pems):
            pem.write_to_path(str(tmp_path / name), append=number > 0)
    settings = Settings(
        tls_certificate=str(tmp_path / "certificate"), tls_key=str(tmp_path / "key")
    )
    credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
    with serving(tls_certificate=settings.tls_certificate, tls_key=settings.tls_key) as server:
        listing = Listing(
            "some",
            host="127.0.0.1",
            port=0,
            settings=settings,
            addresses=lambda: [server.address],
        )
        assert listing.url.startswith("replicas+https://")
        with pytest.raises(UnavailableError, match=r"(?i)certificate"):
            resolve(listing.url)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca"))
        assert ssl.get_default_verify_paths().cafile == str(tmp_path / "ca")
        with Client(listing.url, credentials=credentials, token="shown") as client:  # noqa: S106
            client.evaluate(OP, ONES, output_shape=(1, 1, 2, 2))
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

    class Tells(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(now)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"replicas": ["a:1"]}).encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Tells) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        target = f"replicas+http://127.0.0.1:{server.server_address[1]}/x"
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
        server.shutdown()
