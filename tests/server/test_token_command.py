"""`gradwire-server token` makes tokens that a running server takes, and takes them back."""

from __future__ import annotations

import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from hashlib import sha256
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner, Result

from gradwire_server.command import gradwire_server
from gradwire_server.config.tokens import Scope, add_token, read_tokens, revoke_token
from support.every_method import EVERY, SERVICE, bearer, call
from support.load import repeated
from support.processes import run_command, running_command
from support.raw_calls import RawClient, wait_until
from support.refusals import Refusal

LIST = f"{SERVICE}/ListOperators"


def command(*arguments: object) -> Result:
    return CliRunner().invoke(gradwire_server, ["token", *map(str, arguments)])


def test_a_token_is_printed_once_and_its_hash_kept(path: Path) -> None:
    done = command("--file", path, "--name", "ci", "--scopes", "inspect,evaluate")
    assert done.exit_code == 0, done.output
    token = done.stdout.removesuffix("\n")
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", token)  # 32 bytes
    assert token not in path.read_text()
    assert token not in done.stderr
    (kept,) = read_tokens(path.read_bytes())
    assert (kept.name, kept.digest) == ("ci", sha256(token.encode()).digest())
    assert kept.scopes == set(Scope)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_tokens_are_added_and_revoked_beside_what_is_there(path: Path) -> None:
    there = "# ours\n\nold " + "0" * 64 + " evaluate 2026-01-31 # kept\n"
    path.write_text(there)
    path.chmod(0o640)
    assert command("--file", path, "--name", "new", "--expires", "2027-06-30").exit_code == 0
    assert path.read_text().startswith(there)
    assert [token.expires for token in read_tokens(path.read_bytes())] == [
        date(2026, 1, 31),
        date(2027, 6, 30),
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert command("revoke", "old", "--file", path).exit_code == 0
    assert [token.name for token in read_tokens(path.read_bytes())] == ["new"]
    assert command("revoke", "new", "--file", path).exit_code == 0
    assert read_tokens(path.read_bytes()) == ()
    assert [each.name for each in path.parent.iterdir()] == ["tokens"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--name", "there"), "line 2: the name there is there already"),
        (("--name", "a b"), "name"),
        (("revoke", "nobody"), "no token is named nobody"),
        (("--scopes", "all"), "'all' is not a scope"),
        (("--scopes", ""), "opens nothing"),
        (("--expires", "soon"), "soon"),
    ],
    ids=str,
)
def test_what_makes_no_sense_leaves_the_file_as_it_was(
    path: Path, arguments: tuple[str, ...], words: str
) -> None:
    add_token(path, name="there", scopes=[Scope.EVALUATE])
    before = path.read_bytes()
    done = command(*arguments, "--file", path)
    assert done.exit_code != 0
    assert words in done.stderr
    assert not done.stdout
    assert path.read_bytes() == before


def test_a_file_with_a_broken_line_is_left_as_it_is(path: Path) -> None:
    token = add_token(path, name="there", scopes=[Scope.EVALUATE])
    path.write_text(path.read_text() + "half a line\n")
    before = path.read_bytes()
    done = command("revoke", "there", "--file", path)
    assert done.exit_code != 0
    assert "line 3" in done.stderr
    assert token not in done.stderr
    assert path.read_bytes() == before


def test_tokens_are_listed_without_what_they_are(path: Path) -> None:
    made = add_token(path, name="ops", scopes=list(Scope))
    add_token(path, name="old", scopes=[Scope.EVALUATE], expires=date(2026, 1, 31))
    add_token(path, name="new", scopes=[Scope.INSPECT], expires=date(9999, 1, 31))
    done = command("list", "--file", path)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "ops  evaluate,inspect",
        "old  evaluate  expired 2026-01-31",
        "new  inspect  until 9999-01-31",
    ]
    assert made not in done.stdout
    missing = command("list", "--file", path.with_name("none"))
    assert missing.exit_code == 1
    assert "none: No such file" in missing.stderr


def test_each_command_has_a_help_of_its_own() -> None:
    pages = {name: command(name, "--help") for name in ("create", "list", "revoke")}
    assert all(page.exit_code == 0 for page in pages.values())
    assert len({page.stdout for page in pages.values()}) == len(pages)
    assert "--scopes" in pages["create"].stdout
    assert "--scopes" not in pages["list"].stdout
    assert "NAME" in pages["revoke"].stdout
    for text in ("--help", "-h"):
        whole = command(text).stdout
        for name in pages:
            assert f"  {name} " in whole
        assert "--scopes" not in whole


def test_those_who_add_at_once_take_turns(path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        names = (f"t{number}" for number in range(40))
        made = [threads.submit(add_token, path, name=n, scopes=[Scope.EVALUATE]) for n in names]
        assert len({each.result() for each in made}) == 40
    assert len(read_tokens(path.read_bytes())) == 40


def test_a_server_without_a_usable_file_does_not_start(path: Path) -> None:
    for content in (None, b"", b"not of tokens\n"):
        if content is not None:
            path.write_bytes(content)
        done = run_command("--address", "127.0.0.1:0", "--no-warm-up", "--tokens", str(path))
        assert done.returncode == 1
        assert "--tokens is " in done.stderr


def test_the_command_needs_none_of_the_servers_settings(path: Path) -> None:
    done = run_command("token", env={"GRADWIRE_TOKENS": str(path), "GRADWIRE_MAX_RANK": "0"})
    assert (done.returncode, len(done.stdout)) == (0, 44)
    (token,) = read_tokens(path.read_bytes())
    assert token.name.startswith("token-")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_tokens_are_rotated_under_load_without_a_lost_call(
    path: Path, tmp_path: Path, workers: int
) -> None:
    first = add_token(path, name="first", scopes=list(Scope))
    flags = ["--address", "127.0.0.1:0", "--no-warm-up", "--tokens", str(path)]
    flags += ["--backend", "numpy_cpu", "--workers", str(workers)]
    shown = [first]

    def ask() -> list[Refusal] | None:
        with RawClient(server.address) as client:
            ended = [call(client.channel, each, EVERY[each], bearer(shown[-1])) for each in EVERY]
        return [refusal for _, refusal in ended if refusal is not None] or None

    with running_command(*flags, log=tmp_path / "log") as server, repeated(ask) as load:
        for number in range(3):
            # Taken at once by each worker; then the old one is revoked, and none takes it.
            shown.append(add_token(path, name=f"next-{number}", scopes=list(Scope)))
            load.wait_for_more(6)
            revoke_token(path, "first" if number == 0 else f"next-{number - 1}")
            wait_until(lambda: all(is_refused(server.address, shown[-2]) for _ in range(8)))
    assert not [token for token in shown if token in server.log]


def is_refused(address: str, token: str) -> bool:
    """Ask on a connection of its own, which any worker may take."""
    with RawClient(address) as client:
        _, refusal = call(client.channel, LIST, EVERY[LIST], bearer(token))
    assert refusal is None or refusal.code is grpc.StatusCode.UNAUTHENTICATED
    return refusal is not None


def test_a_token_that_cannot_be_printed_is_not_kept(path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = run_command("token", "--file", str(path), "--name", "lost", stdout=full)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.endswith(f"No space left on device; lost is not in {path}")
    assert read_tokens(path.read_bytes()) == ()


@pytest.mark.parametrize("kind", ["pipe", "device without an end", "too large"])
def test_a_file_that_can_hold_no_tokens_is_refused_unread(kind: str, path: Path) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "too large":
        path.write_bytes(b"#" * ((1 << 20) + 1))
    else:
        path.symlink_to("/dev/full")
    words = "more than 1 MiB" if kind == "too large" else "not a regular file"
    done = command("--file", path)
    assert done.exit_code == 1
    assert words in done.stderr
    served = run_command("--tokens", str(path), "--address", "127.0.0.1:0")
    assert served.returncode == 1
    assert f"--tokens is {path}: {words}" in served.stderr


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("revoke", "a", "--name", "b"), "--name"),
        (("lost",), "'lost'"),
        (("--name", ""), "'' is not a name"),
        (("--expires", "2020-01-01"), "2020-01-01 is over"),
    ],
)
def test_a_token_that_nobody_can_mean_is_not_made(
    arguments: tuple[str, ...], word: str, path: Path
) -> None:
    done = command(*arguments, "--file", path)
    assert done.exit_code != 0
    assert word in done.stderr
    assert not path.exists()
