"""The SDK shows a token with every call, and to nobody who should not see it."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from gradwire import AsyncClient, Client, Item
from gradwire._core.options import is_local
from gradwire._wire.files import Reloaded
from gradwire.errors import (
    AuthenticationError,
    GradwireError,
    InvalidRequestError,
    PermissionDeniedError,
)
from gradwire_server.config.tokens import Scope, add_token, revoke_token
from support.certificates import Papers, trusting
from support.clients import BILINEAR, Face, halved
from support.command_line import run
from support.raw_calls import wait_until
from support.relay import relaying
from support.servers import ServerThread, serving

SMALL = np.ones((1, 1, 4, 4), np.float32)
LARGE = np.ones((1, 8, 512, 512), np.float32)
ITEM = Item(BILINEAR, SMALL, (1, 1, 2, 2))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guarded") / "tokens"


@pytest.fixture(scope="module")
def token(path: Path) -> str:
    return add_token(path, name="all", scopes=list(Scope))


@pytest.fixture(scope="module")
def guarded(path: Path, token: str) -> Iterator[ServerThread]:
    assert token
    with serving(tokens=str(path)) as server:
        yield server


@pytest.fixture(autouse=True)
def no_token_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRADWIRE_TOKEN", "GRADWIRE_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


def do_all(client: Client) -> None:
    assert halved(client, SMALL).shape == (1, 1, 2, 2)
    assert halved(client, LARGE).shape == (1, 8, 256, 256)
    assert len(list(client.evaluate_many([ITEM] * 3))) == 3
    assert client.operators()
    assert client.server_info().backend
    client.wait_ready(10)


def test_every_call_shows_the_token(guarded: ServerThread, token: str, face: Face) -> None:
    with face(guarded.address, token=token) as client:
        do_all(client)
    with pickle.loads(pickle.dumps(Client(guarded.address, token=token))) as copy:  # noqa: S301 - our own
        do_all(copy)


def test_the_environment_may_hold_it_or_its_file(
    guarded: ServerThread, token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{token}\n")
    monkeypatch.setenv("GRADWIRE_TOKEN_FILE", str(file))
    with Client(guarded.address) as client:
        do_all(client)
    monkeypatch.setenv("GRADWIRE_TOKEN_FILE", "/nowhere")
    monkeypatch.setenv("GRADWIRE_TOKEN", token)
    with Client(guarded.address) as client:
        do_all(client)
    monkeypatch.setenv("GRADWIRE_TOKEN", "another")
    with Client(guarded.address, token_file=str(file)) as client:
        do_all(client)


@pytest.mark.parametrize("shown", [None, "another"])
def test_without_a_token_that_is_taken_every_call_fails_at_once(
    guarded: ServerThread, face: Face, shown: str | None
) -> None:
    with face(guarded.address, token=shown) as client:
        for x in (SMALL, LARGE):
            with pytest.raises(AuthenticationError) as caught:
                halved(client, x)
            assert (caught.value.reason, caught.value.status) == ("UNAUTHENTICATED",) * 2
            assert caught.value.request_id
        with pytest.raises(AuthenticationError):
            list(client.evaluate_many([ITEM] * 3))
        for ask in (client.operators, client.server_info):
            with pytest.raises(AuthenticationError, match="token"):
                ask()
        client.wait_ready(10)


def test_a_token_without_the_scope_is_told_so(guarded: ServerThread, path: Path) -> None:
    token = add_token(path, name="looker", scopes=[Scope.INSPECT])
    with Client(guarded.address, token=token) as client:
        assert client.server_info().backend
        with pytest.raises(PermissionDeniedError, match="looker lacks the scope evaluate"):
            halved(client, SMALL)


def test_a_file_is_read_anew_and_a_broken_one_is_not(
    guarded: ServerThread, path: Path, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    first = add_token(path, name="first", scopes=list(Scope))
    file.write_text(first)
    with Client(guarded.address, token_file=str(file)) as client:
        client.operators()
        file.write_text(add_token(path, name="second", scopes=list(Scope)))
        revoke_token(path, "first")
        wait_until(lambda: is_served(client))
        wait_until(lambda: not is_served_with(guarded.address, first))
        assert is_served(client)
        for broken in ("", "two words"):
            file.write_text(broken)
            wait_until(lambda: is_served(client))
        file.unlink()
        assert is_served(client)


def is_served(client: Client) -> bool:
    try:
        client.operators()
    except AuthenticationError:
        return False
    return True


def is_served_with(address: str, token: str) -> bool:
    with Client(address, token=token) as client:
        return is_served(client)


def test_a_file_is_not_read_for_every_call(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(b"before")
    errors: list[Exception] = []
    file = Reloaded(
        (str(path),), lambda contents: contents[0], on_error=errors.append, every_s=3600
    )
    path.write_bytes(b"after")
    assert file.get() == b"before"
    assert file.look()
    assert (file.get(), errors) == (b"after", [])


def test_no_proxy_sees_what_goes_to_this_machine(
    guarded: ServerThread, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with relaying(guarded.address) as proxy:
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, f"http://{proxy.address}")
        for name in ("no_proxy", "no_grpc_proxy"):
            monkeypatch.delenv(name, raising=False)
        with Client(guarded.address, token=token) as client:
            client.operators()
        assert proxy.connections == 0


@pytest.mark.parametrize("bad", ["", "two words", "a\nb", "\u00e9"])
def test_a_file_without_a_token_is_refused_by_name(bad: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(bad)
    with pytest.raises(InvalidRequestError, match=re.escape(f"token_file: {file} holds no token")):
        Client(token_file=str(file))
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        Client(token_file=str(tmp_path / "none"))


def test_no_repr_shows_it(guarded: ServerThread, token: str) -> None:
    with Client(guarded.address, token=token) as client:
        client.operators()
        seen = [client, *vars(client).values(), vars(client)["_channels"].get()]
        assert token not in repr(seen)
    with pytest.raises(GradwireError) as caught, Client(guarded.address, token=token) as client:
        client.evaluate(BILINEAR, SMALL, output_shape=(1, 1, 1))
    assert token not in repr(caught.value)


@pytest.mark.slow
def test_commands_take_a_file_or_the_environment_and_no_token(
    guarded: ServerThread, token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(token)
    target = ("--target", guarded.address)
    assert run("info", *target, "--token-file", file).code == 0
    done = run("info", *target)
    assert (done.code, done.stdout) == (8, "")
    assert "a token is needed" in done.stderr
    assert run("health", *target).code == 0
    assert run("info", *target, "--token", token).code == 2
    assert run("info", "--token-file", file).code == 2
    monkeypatch.setenv("GRADWIRE_TOKEN", token)
    assert run("info", *target).code == 0
    done = run("info", "--target", "192.0.2.1:1")
    assert (done.code, done.stdout) == (2, "")
    assert "plain text" in done.stderr
    assert token not in done.stderr


def test_with_tls_a_token_goes_anywhere(path: Path, token: str, tmp_path: Path) -> None:
    papers = Papers(tmp_path)
    with serving(tokens=str(path), **papers.settings) as server:
        credentials = trusting(papers.roots)
        with Client(server.address, credentials=credentials, token=token) as client:
            do_all(client)
        with (
            Client(server.address, credentials=credentials) as client,
            pytest.raises(AuthenticationError),
        ):
            client.operators()


LOCAL = (
    "127.0.0.1:50051",
    "127.9.9.9:1",
    "localhost:50051",
    "[::1]:50051",
    "unix:/run/gradwire",
    "unix:///run/gradwire",
    "unix-abstract:gradwire",
    "dns:///localhost:50051",
    "ipv4:127.0.0.1:1,127.0.0.2:1",
    "ipv6:[::1]:1",
)
DISTANT = (
    "192.0.2.1:50051",
    "gradwire.example:50051",
    "localhost.example:50051",
    "127.0.0.1.example:50051",
    "[2001:db8::1]:50051",
    "dns:///gradwire.example:50051",
    "dns://127.0.0.1/gradwire.example:50051",
    "ipv4:127.0.0.1:1,192.0.2.1:1",
    "0.0.0.0:50051",
    "xds:///localhost",
)


@pytest.mark.parametrize("target", LOCAL)
def test_to_this_machine_a_token_goes_in_plain_text(target: str) -> None:
    assert is_local(target)
    Client(target, token="x").close()  # noqa: S106


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("target", DISTANT)
def test_to_no_other_machine_does_a_token_go_in_plain_text(
    target: str,
    kind: type[Client | AsyncClient],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not is_local(target)
    kind(target)
    options: list[dict[str, Any]] = [{"token": "hush"}, {"token_file": str(tmp_path / "none")}]
    for given in options:
        with pytest.raises(InvalidRequestError, match="plain text") as caught:
            kind(["127.0.0.1:1", target], **given)
        assert "hush" not in str(caught.value)
        assert caught.value.field == next(iter(given))
    kind(target, token="hush", credentials=grpc.ssl_channel_credentials())  # noqa: S106
    monkeypatch.setenv("GRADWIRE_TOKEN", "hush")
    with pytest.raises(InvalidRequestError, match=r"^GRADWIRE_TOKEN: "):
        kind(target)
