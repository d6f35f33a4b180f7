"""Connections, tokens and certificates: what a server is shown, and what errors tell."""

import itertools
import pickle
import socket
from concurrent.futures import ThreadPoolExecutor
from operator import methodcaller

import grpc
import pytest
import trustme

from gradwire import AsyncClient, Client
from gradwire._wire.files import Reloaded
from gradwire._wire.statuses import no_server
from gradwire.errors import AuthenticationError, InvalidRequestError, UnavailableError
from gradwire_server.config.tokens import Scope, add_token, revoke_token
from support import clients
from support.certificates import Papers, impatient, pair, trusting
from support.clients import CALLS, ONCE, SMALL, Counting, copied
from support.command_line import run_here
from support.raw_calls import wait_until
from support.relay import relaying
from support.servers import serving

STRANGER = trustme.CA()
CLOSED = "the server closed the connection; it probably requires TLS"
STRANGE = "not signed by a trusted authority"


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    return Papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="module")
def private(papers):
    with serving(**papers.settings) as server:
        yield server.address


@pytest.fixture(autouse=True)
def no_token_of_the_environment(monkeypatch):
    Counting.failed.clear()
    for name in ("GRADWIRE_TOKEN", "GRADWIRE_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


def check_nothing(address, credentials, words):
    """Assert that no kind of call is answered, and that each says why."""
    calls = [*CALLS.values(), methodcaller("wait_ready", 0.1)]
    with impatient(address, credentials) as client:
        for call in calls:
            with pytest.raises(UnavailableError, match=words):
                call(client)


def test_no_answer_without_what_a_server_wants(server, private, papers):
    check_nothing(private, None, CLOSED)
    check_nothing(private, trusting(STRANGER.cert_pem.bytes()), STRANGE)
    check_nothing(server.address, trusting(papers.roots), "the server does not use TLS")
    with serving(**papers.mutual) as mutual:
        check_nothing(mutual.address, None, CLOSED)
        for shown in (None, pair(STRANGER), pair(papers.authority, expired=True)):
            check_nothing(mutual.address, trusting(papers.roots, shown), CLOSED)
        credentials = trusting(papers.roots, pair(papers.authority))
        with Client(mutual.address, credentials=credentials) as client:
            assert client.operators()


def test_anothers_certificate_is_refused_and_an_expired_one_waited_for(tmp_path):
    papers = Papers(tmp_path)
    credentials = trusting(papers.roots)
    papers.write(name="elsewhere.test")
    with serving(**papers.settings) as server:
        check_nothing(server.address, credentials, "does not name the host")
    papers.write(expired=True)
    with (
        serving(**papers.settings) as server,
        Client(server.address, credentials=credentials, connect_timeout_s=60) as client,
        ThreadPoolExecutor(1) as caller,
    ):
        check_nothing(server.address, credentials, "certificate has expired")
        with impatient(server.address, credentials) as once:
            with pytest.raises(UnavailableError) as refused:
                once.operators()
            assert not refused.value.lasting
        answer = caller.submit(client.operators)
        papers.write()
        assert answer.result()


def test_what_waiting_does_not_mend_is_not_waited_for(private, server, papers, face):
    known, strange = trusting(papers.roots), trusting(STRANGER.cert_pem.bytes())
    for address, credentials in ((private, strange), (server.address, known)):
        with face(address, credentials=credentials, retry=clients.BRISK) as client:
            for call in (*CALLS.values(), methodcaller("wait_ready", 100_000)):
                with pytest.raises(UnavailableError) as refused:
                    call(client)
                assert refused.value.lasting
    # Another server may still do.
    with face([server.address, private], credentials=known, retry=clients.PROMPT) as client:
        client.wait_ready()
        for _ in range(4):
            assert client.operators()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("guarded") / "tokens"


@pytest.fixture(scope="module")
def token(path):
    return add_token(path, name="all", scopes=list(Scope))


@pytest.fixture(scope="module")
def guarded(path, token):
    assert token
    with serving(tokens=str(path)) as server:
        yield server.address


@pytest.fixture
def file(tmp_path, token):
    file = tmp_path / "token"
    file.write_text(f"{token}\n")
    return file


def test_every_call_shows_the_token_wherever_it_is_from(guarded, token, file, face, monkeypatch):
    def do_all(client):
        with client:
            for call in CALLS.values():
                call(client)
            client.wait_ready(10)

    do_all(face(guarded, token=token))
    do_all(pickle.loads(pickle.dumps(Client(guarded, token=token))))  # noqa: S301 - our own
    monkeypatch.setenv("GRADWIRE_TOKEN_FILE", str(file))
    do_all(face(guarded))
    monkeypatch.setenv("GRADWIRE_TOKEN_FILE", "/nowhere")
    monkeypatch.setenv("GRADWIRE_TOKEN", token)
    do_all(face(guarded))
    monkeypatch.setenv("GRADWIRE_TOKEN", "another")
    do_all(face(guarded, token_file=str(file)))


def test_a_file_is_read_anew_and_a_broken_one_is_not(guarded, path, file):
    def is_served(client):
        try:
            return bool(client.operators())
        except AuthenticationError:
            return False

    first = add_token(path, name="first", scopes=list(Scope))
    file.write_text(first)
    with Client(guarded, token_file=str(file)) as client:
        client.operators()
        file.write_text(add_token(path, name="second", scopes=list(Scope)))
        revoke_token(path, "first")
        with Client(guarded, token=first) as former:
            wait_until(lambda: not is_served(former))
        wait_until(lambda: is_served(client))
        for broken in ("", "two words"):
            file.write_text(broken)
            wait_until(lambda: is_served(client))
        file.unlink()
        assert is_served(client)


def test_a_file_is_not_read_for_every_call(file, monkeypatch):
    monkeypatch.setattr("gradwire._wire.files.LOOK_EVERY_S", 3600)
    file.write_bytes(b"before")
    read = Reloaded((str(file),), lambda held: held[0], on_error=pytest.fail)
    file.write_bytes(b"after")
    assert read.get() == b"before"
    assert read.look()
    assert read.get() == b"after"


def test_no_proxy_sees_calls_to_this_machine(address, monkeypatch):
    with relaying(address) as proxy:
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, f"http://{proxy.address}")
        for name in ("no_proxy", "no_grpc_proxy"):
            monkeypatch.delenv(name, raising=False)
        with Client(address) as client:
            client.operators()
        assert proxy.connections == 0


def test_no_repr_shows_it(guarded, token):
    with Client(guarded, token=token) as client:
        client.operators()
        seen = [client, *vars(client).values(), vars(client)["_calls"].get()]
        assert token not in repr(seen)
        with pytest.raises(InvalidRequestError) as caught:
            client.evaluate(clients.BILINEAR, SMALL, output_shape=(1, 1, 1))
    assert token not in repr(caught.value)


def test_commands_take_a_token_from_the_environment_and_show_it_to_nobody(
    guarded, token, monkeypatch
):
    assert run_here("info", "--target", guarded, "--token", token).code == 2
    monkeypatch.setenv("GRADWIRE_TOKEN", token)
    assert run_here("info", "--target", guarded).code == 0
    done = run_here("info", "--target", "192.0.2.1:1")
    assert (done.code, done.stdout) == (2, "")
    assert "plain text" in done.stderr
    assert token not in done.stderr


LOCAL = (
    *("127.0.0.1:50051", "127.9.9.9:1", "localhost:50051", "[::1]:50051", "unix:/run/gradwire"),
    *("unix:///run/gradwire", "unix-abstract:gradwire", "dns:///localhost:50051", "ipv6:[::1]:1"),
    "ipv4:127.0.0.1:1,127.0.0.2:1",
)
DISTANT = (
    *("192.0.2.1:50051", "gradwire.example:50051", "localhost.example:50051", "xds:///localhost"),
    *("127.0.0.1.example:50051", "[2001:db8::1]:50051", "dns:///gradwire.example:50051"),
    *("dns://127.0.0.1/gradwire.example:50051", "ipv4:127.0.0.1:1,192.0.2.1:1", "0.0.0.0:50051"),
)


def test_in_plain_text_a_token_goes_to_this_machine_and_to_no_other(monkeypatch):
    for target in LOCAL:
        Client(target, token="hush").close()  # noqa: S106
    for target, kind in itertools.product(DISTANT, (Client, AsyncClient)):
        monkeypatch.delenv("GRADWIRE_TOKEN", raising=False)
        kind(target)
        for field in ("token", "token_file"):
            with pytest.raises(InvalidRequestError, match="plain text") as caught:
                kind(["127.0.0.1:1", target], **{field: "hush"})
            assert "hush" not in str(caught.value)
            assert caught.value.field == field
        kind(target, token="hush", credentials=grpc.ssl_channel_credentials())  # noqa: S106
        monkeypatch.setenv("GRADWIRE_TOKEN", "hush")
        with pytest.raises(InvalidRequestError, match=r"^GRADWIRE_TOKEN: "):
            kind(target)


POLICY = Counting(max_attempts=4, initial_backoff_s=0.01, max_backoff_s=0.01)


def unavailable(face, target, array=SMALL, **options):
    with face(target, **options) as client, pytest.raises(UnavailableError) as caught:
        copied(client, array)
    return caught.value


@clients.either_size
@pytest.mark.parametrize(("connect_timeout_s", "tries"), [(None, 4), (3600.0, 4), (0.005, 2)])
def test_connecting_is_tried_for_as_long_as_the_client_is_told(
    nobody, face, array, connect_timeout_s, tries
):
    error = unavailable(face, nobody, array, retry=POLICY, connect_timeout_s=connect_timeout_s)
    assert error.unreachable
    assert len(Counting.failed) == tries


def test_an_attempt_to_connect_takes_no_longer(face):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        # By itself gRPC waits 20 s for a server that takes a connection and says nothing.
        unavailable(face, target, connect_timeout_s=0.2, timeout_s=10, retry=POLICY)


@clients.either_size
def test_what_is_wrong_at_any_address_is_told(face, array, nobody, private):
    # gRPC tells of the address of a name that failed last, which may be another one.
    name = private.replace("127.0.0.1", "localhost")
    for target in (name, f"{private},{nobody}", f"{nobody},{private}", f"ipv4:{private},{nobody}"):
        assert "requires TLS" in str(unavailable(face, target, array, retry=POLICY))
    assert str(unavailable(face, nobody, array, retry=ONCE)).startswith(f"{no_server(nobody)}: ")
    unknown = unavailable(face, "nothing.invalid:1", retry=POLICY, connect_timeout_s=0.005)
    assert unknown.unreachable
    assert str(unknown).startswith("the host name in target cannot be resolved; ")
