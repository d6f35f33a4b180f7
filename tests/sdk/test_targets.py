"""A client calls one server or several, wherever their addresses come from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradwire import Client, health
from gradwire._core.options import channel_targets, read_target
from support.clients import LARGE, SMALL, Face, copied
from support.load import Callers
from support.processes import running_command
from support.relay import Relay
from support.servers import ServerThread, serving, serving_process


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
