"""The SDK shows a token with every call, and to nobody who should not see it."""

from __future__ import annotations

import asyncio
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import trustme

from command_line import run
from gradwire import (
    AsyncClient,
    AuthenticationError,
    Client,
    GradwireError,
    InvalidRequestError,
    Item,
    PermissionDeniedError,
    ops,
)
from gradwire._wire.files import Reloaded
from gradwire_server.config.tokens import Scope, add_token, revoke_token
from raw_calls import wait_until
from relay import relaying
from serving import ServerThread, serving

OPERATOR = ops.InterpolateBackward(mode="nearest", data_format="NCX")
SMALL = np.ones((1, 1, 4, 4), np.float32)
LARGE = np.ones((1, 8, 512, 512), np.float32)


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


def halved(x: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> tuple[int, ...]:
    return (*x.shape[:2], x.shape[2] // 2, x.shape[3] // 2)


def do_all(client: Client) -> None:
    """Make a call of every kind."""
    for x in (SMALL, LARGE):
        assert client.evaluate(OPERATOR, x, output_shape=halved(x)).shape == halved(x)
    items = [Item(OPERATOR, SMALL, halved(SMALL))] * 3
    assert len(list(client.evaluate_many(items))) == 3
    assert client.operators()
    assert client.server_info().backend
    client.wait_ready(10)


async def do_all_async(client: AsyncClient) -> None:
    """Make a call of every kind."""
    for x in (SMALL, LARGE):
        assert (await client.evaluate(OPERATOR, x, output_shape=halved(x))).shape == halved(x)
    items = [Item(OPERATOR, SMALL, halved(SMALL))] * 3
    assert len([each async for each in client.evaluate_many(items)]) == 3
    assert await client.operators()
    assert (await client.server_info()).backend
    await client.wait_ready(10)


def test_every_call_shows_the_token(guarded: ServerThread, token: str) -> None:
    with Client(guarded.address, token=token) as client:
        do_all(client)
        with pickle.loads(pickle.dumps(client)) as copy:  # noqa: S301 - our own
            do_all(copy)

    async def main() -> None:
        async with AsyncClient(guarded.address, token=token) as client:
            await do_all_async(client)

    asyncio.run(main())


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
    guarded: ServerThread, shown: str | None
) -> None:
    with Client(guarded.address, token=shown) as client:
        for x in (SMALL, LARGE):
            with pytest.raises(AuthenticationError) as caught:
                client.evaluate(OPERATOR, x, output_shape=halved(x))
            assert (caught.value.reason, caught.value.status) == ("UNAUTHENTICATED",) * 2
            assert caught.value.request_id
        with pytest.raises(AuthenticationError):
            list(client.evaluate_many([Item(OPERATOR, SMALL, halved(SMALL))] * 3))
        for ask in (client.operators, client.server_info):
            with pytest.raises(AuthenticationError, match="token"):
                ask()
        client.wait_ready(10)


def test_a_token_without_the_scope_is_told_so(guarded: ServerThread, path: Path) -> None:
    token = add_token(path, name="looker", scopes=[Scope.INSPECT])
    with Client(guarded.address, token=token) as client:
        assert client.server_info().backend
        with pytest.raises(PermissionDeniedError, match="looker lacks the scope evaluate"):
            client.evaluate(OPERATOR, SMALL, output_shape=halved(SMALL))


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


@pytest.mark.parametrize("bad", ["", "two words", "a\nb", "\u00e9", " x"])
def test_what_is_no_token_is_refused_unshown(bad: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(InvalidRequestError) as caught:
        Client(token=bad)
    assert not bad.strip() or bad not in str(caught.value)
    file.write_text(bad if bad != " x" else "two words")
    with pytest.raises(InvalidRequestError, match=re.escape(f"token_file: {file} holds no token")):
        Client(token_file=str(file))
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        Client(token_file=str(tmp_path / "none"))
    with pytest.raises(InvalidRequestError, match="one of them"):
        Client(token="x", token_file=str(file))  # noqa: S106


def test_no_repr_shows_it(guarded: ServerThread, token: str) -> None:
    with Client(guarded.address, token=token) as client:
        client.operators()
        seen = [client, *vars(client).values(), vars(client)["_channels"].get()]
        assert token not in repr(seen)
    with pytest.raises(GradwireError) as caught, Client(guarded.address, token=token) as client:
        client.evaluate(OPERATOR, SMALL, output_shape=(1, 1, 1))
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
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "chain.pem")
    with serving(
        tokens=str(path),
        tls_certificate=str(tmp_path / "chain.pem"),
        tls_key=str(tmp_path / "key.pem"),
    ) as server:
        credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
        with Client(server.address, credentials=credentials, token=token) as client:
            do_all(client)
        with (
            Client(server.address, credentials=credentials) as client,
            pytest.raises(AuthenticationError),
        ):
            client.operators()
