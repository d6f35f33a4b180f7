"""A client calls one server or several, wherever their addresses come from."""

import re
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from operator import methodcaller
from types import SimpleNamespace

import grpc
import numpy as np
import pytest

from gradwire import Client, health
from gradwire._core.options import read_target
from gradwire._transport.channels import AVOIDED_S, Pool
from gradwire._transport.replicas import Replicas, resolve
from gradwire.errors import CallCancelledError, InvalidRequestError, UnavailableError
from support.certificates import Papers, trusting
from support.clients import CALLS, LARGE, ONCE, PROMPT, SMALL, copied
from support.load import Callers
from support.processes import running_command
from support.raw_calls import wait_until
from support.relay import relaying
from support.servers import List, serving


@pytest.fixture(scope="module")
def other():
    with serving(max_streams=3) as other:
        yield other


def test_a_target_is_one_address_as_it_is_or_several():
    for target in (
        *("dns:///a:1", "ipv4:127.0.0.1:1,127.0.0.1:2", "unix:/tmp/a,b", "unix:///tmp/a"),
        *("unix-abstract:name", "dns:host:1", "dns://8.8.8.8/host:1", "dns://[::1]:53/host:1"),
        *("xds:///service", "vsock:2:50051", "dns:///[::1]:1", "ipv6:[::1]:1,[::2]:2"),
        *("replicas+http://host:1/name", "[fe80::1%eth0]:65535", "under_score.example:1"),
    ):
        assert read_target(target) == (target,)
    for several in ("a:1,b:2", " a:1 , b:2 ", ["a:1", "b:2"], ("a:1", "b:2")):
        assert read_target(several) == ("a:1", "b:2")


def test_without_a_target_the_environment_tells_it(server, face, monkeypatch):
    monkeypatch.delenv("GRADWIRE_TARGET", raising=False)
    assert read_target(None) == ("127.0.0.1:50051",)
    for target in (server.address, f"dns:///localhost:{server.server.port}"):
        monkeypatch.setenv("GRADWIRE_TARGET", target)
        with face() as client:
            np.testing.assert_array_equal(copied(client, SMALL), SMALL)
        assert health.health() == "SERVING"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_several_servers_take_turns_and_calls_go_on_when_one_dies(address, other, host):
    with relaying(other.address) as doomed:
        targets = (one.replace("127.0.0.1", host) for one in (doomed.address, address))
        target = ",".join(targets)
        with Client(target) as client:
            seen = set()
            # Until both are connected.
            wait_until(lambda: seen.add(client.server_info().limits.max_streams) or len(seen) == 2)
            assert seen == {client.server_info().limits.max_streams for _ in range(30)}
        assert health.health(target) == "SERVING"
        with Callers(target, "unary", "copy") as callers:
            callers.wait_for_more()
            doomed.close()
            for _ in range(3):
                callers.wait_for_more()
        callers.check()


def test_an_address_without_a_server_delays_and_fails_no_call(address, nobody, face):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = [nobody, f"127.0.0.1:{silent.getsockname()[1]}", address]
        with face(target, retry=ONCE, timeout_s=5) as client:
            for array in [SMALL] * 6 + [LARGE] * 6:
                np.testing.assert_array_equal(copied(client, array), array)
        started = time.monotonic()
        assert health.health(target) == "SERVING"
        assert time.monotonic() < started + 10


def listing(*replicas, **settings):
    return closing(List(*replicas, **settings))


def calls_of(server):
    return server.server.service.admission.entered


def tell(listener, answer):
    with listener.accept()[0] as asking:
        asking.recv(1 << 16)
        asking.sendall(answer)


def test_every_kind_of_call_finds_the_replicas(address, other, face):
    with listing(address, other.address) as listed:
        calls = [*CALLS.values(), methodcaller("wait_ready")]
        for call in calls:
            with face(listed.url) as client:
                call(client)
        assert health.health(listed.url) == "SERVING"


def test_replicas_stay_known_while_nobody_tells_of_them():
    listed = List("127.0.0.1:1", "[::1]:2", "name:3")
    known = ("127.0.0.1:1", "[::1]:2", "dns:///name:3")
    heard = []
    replicas = Replicas(listed.url)
    replicas.subscribe(heard.append)
    replicas.look()
    listed.replicas = []
    replicas.look()
    listed.close()
    replicas.look()
    assert replicas.addresses == known
    assert heard == [known]
    assert "no replicas are known" in str(replicas.failure)


def test_a_replica_that_goes_ends_its_calls_and_takes_no_more_and_one_that_vanishes_loses_none(
    server, other
):
    with (
        relaying(server.address) as slow,
        listing(slow.address) as listed,
        Client(listed.url, retry=ONCE) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        # The call takes 12 s, unless it is let go.
        slow.delay_s = 0.2
        call, before = pool.submit(copied, client, LARGE), calls_of(other)
        wait_until(lambda: slow.carried_bytes > 100_000)
        listed.replicas = [other.address]
        wait_until(lambda: copied(client, SMALL).any() and calls_of(other) > before)
        slow.delay_s = 0.0
        np.testing.assert_array_equal(call.result(), LARGE)
        gone = calls_of(server)
        for _ in range(10):
            copied(client, SMALL)
        assert calls_of(server) == gone
    with (
        relaying(server.address) as doomed,
        listing(doomed.address, server.address) as listed,
        Client(listed.url) as client,
    ):
        for number in range(20):
            if number == 5:
                doomed.close()
                listed.replicas = [server.address]
            copied(client, SMALL)
            copied(client, LARGE)


def test_who_knows_no_replica_says_so_and_retries(address):
    with listing() as listed:
        with Client(listed.url, retry=ONCE) as client:
            for array in (SMALL, LARGE):
                with pytest.raises(UnavailableError, match="it lists none now"):
                    copied(client, array)
        with Client(listed.url, retry=PROMPT) as client:
            late = threading.Timer(0.5, listed.replicas.append, (address,))
            late.start()
            copied(client, SMALL)
            late.join()
    with pytest.raises(UnavailableError, match="no replicas are known from"):
        health.health(listed.url)


def test_a_list_that_is_none_is_not_taken():
    for body in (
        *(b"", b"[]", b"{}", b"\xff\xfe", b"[" * 100_000),
        *(b'{"replicas": %s}' % told for told in (b'"a:1"', b"[1]", b'["a"]', b'["a:1", "b:"]')),
        *(b'{"replicas": ["%s"]}' % told for told in (b"unix:/s", b"dns:///a:1", b"a:1,b:2")),
    ):
        with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
            told = pool.submit(tell, listener, b"HTTP/1.0 200 OK\r\n\r\n" + body)
            with pytest.raises(UnavailableError, match="no replicas are known"):
                resolve(f"replicas+http://127.0.0.1:{listener.getsockname()[1]}/x")
            told.result()


def test_a_trusted_list_comes_by_tls(tmp_path, monkeypatch):
    papers = Papers(tmp_path)
    tls = papers.settings
    with serving(**tls) as server, listing(server.address, **tls) as listed:
        assert listed.url.startswith("replicas+https://")
        with pytest.raises(UnavailableError, match=r"(?i)certificate"):
            resolve(listed.url)
        monkeypatch.setenv("SSL_CERT_FILE", papers.mutual["tls_client_ca"])
        assert ssl.get_default_verify_paths().cafile == papers.mutual["tls_client_ca"]
        credentials = trusting(papers.roots)
        with Client(listed.url, credentials=credentials, token="shown") as client:  # noqa: S106
            copied(client, SMALL)


def test_no_token_goes_where_others_may_send_it():
    options = {"credentials": grpc.ssl_channel_credentials(), "token": "a"}
    Client("replicas+https://ray:1/x", **options)
    Client("replicas+http://127.0.0.1:1/x", **options)
    with pytest.raises(InvalidRequestError, match="give replicas\\+https"):
        Client("replicas+http://ray:1/x", **options)
    with pytest.raises(InvalidRequestError, match="plain text"):
        Client("replicas+https://ray:1/x", token="a")  # noqa: S106


def test_a_finalizer_may_end_a_call_while_a_connection_is_taken():
    pool = Pool(vars(Client())["_options"], ["127.0.0.1:1"], close_one=grpc.Channel.close)
    dropped = [pool.take()]

    def finalized():
        while dropped:
            pool.give_back(dropped.pop(), failed=False)
        return 100.0

    vars(pool)["_clock"] = finalized
    # In a thread, which may be left behind.
    taking = threading.Thread(target=pool.take, daemon=True)
    taking.start()
    taking.join(10)
    assert not taking.is_alive()
    assert not dropped


def test_the_connections_of_a_client_reach_all_workers(tmp_path):
    flags = ("--workers", "2", "--backend", "numpy_cpu", "--access-log")
    with running_command(*flags, log=tmp_path / "log") as command:
        seen = set()
        # Which worker has a connection is chance: five to one are all with the same, rarely.
        while seen != {"0", "1"}:
            with Callers(command.address, *["unary"] * 6, connections=6) as callers:
                callers.wait_for_more()
            callers.check()
            seen = set(re.findall(r" call worker=(\d) .*method=Evaluate ", command.log))


class Named(str):
    """A channel that is named after its target and number."""

    __slots__ = ()

    def unary_unary(self, _):
        """Make no call."""

    stream_stream = unary_unary


class Calls:
    """Calls on a pool of named channels."""

    def __init__(self, targets):
        self.opened, self.closed = [], []
        self.now = 100.0
        api = SimpleNamespace(insecure_channel=self._open)
        options = vars(Client())["_options"]
        self.pool = Pool(options, targets, close_one=self.closed.append, api=api)
        vars(self.pool)["_clock"] = lambda: self.now

    def _open(self, target, _):
        self.opened.append(Named(f"{target}{sum(name[0] == target for name in self.opened)}"))
        return self.opened[-1]

    def begin(self, count):
        """Begin so many calls, which stay; return their channels."""
        return [self.pool.take().channel for _ in range(count)]

    def fail(self, count):
        """Begin so many calls at once, which fail; return their channels."""
        taken = [self.pool.take() for _ in range(count)]
        for each in taken:
            self.pool.give_back(each, failed=True)
        return [each.channel for each in taken]


def test_targets_come_and_go_and_those_that_go_end_their_calls_first():
    calls = Calls("ab")
    taken = {each.channel: each for each in (calls.pool.take() for _ in range(2))}
    assert sorted(taken) == ["a0", "b0"]
    calls.pool.renew("bc")
    assert sorted(calls.begin(4)) == ["b0", "b1", "c0", "c1"]
    assert not calls.closed
    calls.pool.give_back(taken["a0"], failed=True)
    assert calls.closed == ["a0"]
    calls.pool.renew("c")
    assert sorted(calls.pool.close()) == ["b0", "b1", "c0", "c1"]
    calls.pool.give_back(taken["b0"], failed=False)
    with pytest.raises(CallCancelledError, match="closed"):
        calls.pool.take()
    assert len(calls.opened) == 5


def test_a_connection_that_failed_is_avoided_for_a_while_and_so_is_its_target():
    calls = Calls("a")
    calls.fail(1)
    assert calls.begin(3) == ["a1"] * 3
    calls.now += AVOIDED_S
    assert calls.begin(1) == ["a0"]
    two = Calls("ab")
    (failed,) = two.fail(1)
    assert failed[0] not in {name[0] for name in two.begin(4)}
    two.now += AVOIDED_S
    assert two.begin(1)[0][0] == failed[0]
    # Where all failed, connections that did not come first.
    for targets, connections in (("ab", ["a1", "b1"]), ("a", ["a0", "a1"])):
        calls = Calls(targets)
        calls.fail(2)
        assert sorted(calls.begin(2)) == connections
