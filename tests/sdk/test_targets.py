"""A client calls one server or several, wherever their addresses come from."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from callers import Callers
from gradwire import AsyncClient, Client, InvalidRequestError, health, ops
from gradwire._core.options import channel_targets, read_target
from processes import running_command
from relay import relaying
from serving import serving, serving_process

COPY = ops.DmlResample(interpolation_mode="linear")
SMALL = np.ones((4, 4), np.float32)
LARGE = np.ones((1024, 1024), np.float32)


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


@pytest.mark.parametrize("target", ["", ",", "a:1,", [], ["a:1", ""], ["a:1", 2], 5, b"a:1"])
def test_what_is_no_address_is_refused(target: Any) -> None:
    with pytest.raises(ValueError, match="target is "):
        Client(target)


@pytest.mark.parametrize(
    ("target", "at_fault", "would_do"),
    [
        ("127.0.0.1:115587", "127.0.0.1:115587", "from 1 to 65535"),
        ("127.0.0.1:0", "127.0.0.1:0", "from 1 to 65535"),
        ("127.0.0.1", "127.0.0.1", "HOST:PORT"),
        ("localhost", "localhost", "HOST:PORT"),
        ("http://127.0.0.1:1", "http://127.0.0.1:1", "HOST:PORT without a scheme"),
        ("https://host:1/", "https://host:1/", "HOST:PORT without a scheme"),
        ("grpc://host:1", "grpc://host:1", "HOST:PORT without a scheme"),
        ("host:", "host:", "HOST:PORT"),
        ("host:1/", "host:1/", "HOST:PORT"),
        ("host:port", "host:port", "HOST:PORT"),
        ("host:-1", "host:-1", "HOST:PORT"),
        ("host: 1", "host: 1", "HOST:PORT"),
        (":1", ":1", "HOST:PORT"),
        ("::1", "::1", "[::1]:PORT"),
        ("[::1]", "[::1]", "give [::1]:PORT"),
        ("[host]:1", "[host]:1", "IPv6 in brackets"),
        ("dns:///host", "dns:///host", "HOST:PORT"),
        ("dns:///host:70000", "dns:///host:70000", "from 1 to 65535"),
        ("ipv4:1.2.3.4", "ipv4:1.2.3.4", "HOST:PORT"),
        ("ipv4:1.2.3.4:1,host:1", "ipv4:1.2.3.4:1,host:1", "addresses of IPv4"),
        ("ipv6:1.2.3.4:1", "ipv6:1.2.3.4:1", "addresses of IPv6"),
        ("a..b:1", "a..b:1", "1 to 63 characters"),
        (".:1", ".:1", "1 to 63 characters"),
        (f"{'x' * 64}.y:1", f"{'x' * 64}.y:1", "1 to 63 characters"),
        (f"dns:///{'x' * 64}:1", f"dns:///{'x' * 64}:1", "1 to 63 characters"),
        ("\0:1", "\0:1", "HOST:PORT"),
        ("unix:", "unix:", "unix:NAME"),
        ("a:1,b", "b", "HOST:PORT"),
        (["a:1", "b:99999"], "b:99999", "from 1 to 65535"),
        ("replicas+http://host:0/name", "replicas+http://host:0/name", "HOST:PORT/NAME"),
    ],
)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_target_that_cannot_be_dialed_as_meant_is_refused_at_once(
    kind: type[Client | AsyncClient], target: Any, at_fault: str, would_do: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        kind(target)
    assert caught.value.field == "target"
    assert f"target is {at_fault!r}" in str(caught.value)
    assert would_do in str(caught.value)


def test_a_target_in_the_environment_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRADWIRE_TARGET", "127.0.0.1")
    with pytest.raises(
        InvalidRequestError, match=r"GRADWIRE_TARGET is '127\.0\.0\.1'; give HOST:PORT"
    ):
        Client()


def test_without_a_target_the_environment_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADWIRE_TARGET", raising=False)
    assert read_target(None) == ("127.0.0.1:50051",)
    with serving() as server:
        monkeypatch.setenv("GRADWIRE_TARGET", server.address)
        with Client() as client:
            client.server_info()
            assert health.health() == "SERVING"

        async def ask() -> None:
            async with AsyncClient() as client:
                await client.server_info()

        asyncio.run(ask())
    monkeypatch.setenv("GRADWIRE_TARGET", "a:1,")
    with pytest.raises(ValueError, match="GRADWIRE_TARGET is 'a:1,'"):
        Client()


@pytest.mark.parametrize(
    ("addresses", "secure", "targets"),
    [
        (["1.2.3.4:5", "1.2.3.4:6"], False, ("ipv4:1.2.3.4:5,1.2.3.4:6",)),
        (["[::1]:5", "[::2]:6"], False, ("ipv6:[::1]:5,[::2]:6",)),
        (["1.2.3.4:5", "1.2.3.4:6"], True, ("1.2.3.4:5", "1.2.3.4:6")),
        (["1.2.3.4:5", "[::1]:6"], False, ("1.2.3.4:5", "[::1]:6")),
        (["1.2.3.4:5", "host:6"], False, ("1.2.3.4:5", "host:6")),
        (["1.2.3.4:5"], False, ("1.2.3.4:5",)),
    ],
)
def test_grpc_goes_round_addresses_that_one_channel_can_have(
    addresses: list[str], targets: tuple[str, ...], *, secure: bool
) -> None:
    assert channel_targets(addresses, secure=secure) == targets


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_several_servers_take_turns(host: str) -> None:
    with serving(max_streams=3) as one, serving(max_streams=5) as other:
        target = ",".join(f"{host}:{server.address.rpartition(':')[2]}" for server in (one, other))
        with Client(target) as client:
            seen = [client.server_info().limits.max_streams for _ in range(30)]
            assert set(seen) == {3, 5}
            assert health.health(target) == "SERVING"


def test_a_name_of_dns_is_called() -> None:
    with serving() as server, Client(f"dns:///localhost:{server.server.port}") as client:
        np.testing.assert_array_equal(client.evaluate(COPY, SMALL, output_shape=(4, 4)), SMALL)


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


def test_streams_and_small_calls_have_connections_of_their_own() -> None:
    with serving() as server, relaying(server.address) as relay:
        for connections, expected in ((1, 1), (2, 1 + 2)):
            with Client(relay.address, connections=connections) as client:
                for array in (SMALL, LARGE, SMALL, LARGE):
                    client.evaluate(COPY, array, output_shape=array.shape)
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
