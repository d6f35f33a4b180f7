"""`gradwire-server token` makes and revokes tokens of a running server; the rights of callers."""

import logging
import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from hashlib import sha256
from pathlib import Path

import pytest
from click.testing import CliRunner

from gradwire_server.command import gradwire_server
from gradwire_server.config.settings import Settings
from gradwire_server.config.tokens import Scope, add_token, read_tokens, revoke_token
from gradwire_server.errors import MissingScopeError, UnauthenticatedError
from gradwire_server.security.authorization import Authorizer, is_local, warn_if_open
from support.processes import run_command
from support.raw_calls import wait_until


def command(*arguments, env=None):
    return CliRunner(env=env).invoke(gradwire_server, ["token", *map(str, arguments)])


def test_a_token_is_printed_once_and_its_hash_kept(path):
    done = command("--file", path, "--name", "ci", "--scopes", "inspect,evaluate")
    assert done.exit_code == 0, done.output
    token = done.stdout.removesuffix("\n")
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", token)  # 32 bytes
    assert token not in path.read_text() + done.stderr
    (kept,) = read_tokens(path.read_bytes())
    assert (kept.name, kept.digest) == ("ci", sha256(token.encode()).digest())
    assert kept.scopes == set(Scope)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_tokens_are_added_and_revoked_beside_what_is_there(path):
    def kept():
        return [(token.name, token.expires) for token in read_tokens(path.read_bytes())]

    old, new = ("old", date(2026, 1, 31)), ("new", date(2027, 6, 30))
    there = "# ours\n\nold " + "0" * 64 + " evaluate 2026-01-31 # kept\n"
    path.write_text(there)
    path.chmod(0o640)
    assert command("--file", path, "--name", "new", "--expires", "2027-06-30").exit_code == 0
    assert path.read_text().startswith(there)
    assert kept() == [old, new]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    for name, left in (("old", [new]), ("new", [])):
        assert command("revoke", name, "--file", path).exit_code == 0
        assert kept() == left
    assert [each.name for each in path.parent.iterdir()] == ["tokens"]


@pytest.mark.parametrize(
    ("arguments", "words", "more"),
    [
        (("--name", "there"), "the name there is there already", ""),
        (("--name", ""), "'' is not a name", ""),
        (("revoke", "nobody"), "no token is named nobody", ""),
        (("revoke", "there"), "line 3", "half a line"),
        (("revoke", "there", "--name", "b"), "--name", ""),
        (("--scopes", "all"), "'all' is not a scope", ""),
        (("--scopes", ""), "opens nothing", ""),
        (("--expires", "soon"), "soon", ""),
        (("--expires", "2020-01-01"), "2020-01-01 is over", ""),
    ],
    ids=str,
)
def test_what_makes_no_sense_leaves_the_file_as_it_was(path, arguments, words, more):
    token = add_token(path, name="there", scopes=[Scope.EVALUATE])
    path.write_text(f"{path.read_text()}{more}\n")
    before = path.read_bytes()
    done = command(*arguments, "--file", path)
    assert done.exit_code != 0
    assert words in done.stderr
    assert token not in done.stderr
    assert not done.stdout
    assert path.read_bytes() == before


def test_tokens_are_listed_without_what_they_are(path):
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


def test_those_who_add_at_once_take_turns(path):
    with ThreadPoolExecutor(8) as threads:
        names = (f"t{number}" for number in range(40))
        made = [threads.submit(add_token, path, name=n, scopes=[Scope.EVALUATE]) for n in names]
        assert len({each.result() for each in made}) == 40
    assert len(read_tokens(path.read_bytes())) == 40


def test_the_command_needs_none_of_the_servers_settings(path):
    done = command(env={"GRADWIRE_TOKENS": str(path), "GRADWIRE_MAX_RANK": "0"})
    assert (done.exit_code, len(done.stdout)) == (0, 44)
    (token,) = read_tokens(path.read_bytes())
    assert token.name.startswith("token-")


def test_a_token_that_cannot_be_printed_is_not_kept(path):
    with Path("/dev/full").open("w") as full:
        done = run_command("token", "--file", str(path), "--name", "lost", stdout=full)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.endswith(f"No space left on device; lost is not in {path}")
    assert read_tokens(path.read_bytes()) == ()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (os.mkfifo, "not a regular file"),
        (lambda path: path.symlink_to("/dev/full"), "not a regular file"),
        (lambda path: path.write_bytes(b"#" * ((1 << 20) + 1)), "more than 1 MiB"),
    ],
    ids=["pipe", "device without an end", "too large"],
)
def test_a_file_that_can_hold_no_tokens_is_refused(make, words, path):
    with pytest.raises(ValueError, match=f"^--tokens is {path}: No such file"):
        authorizer(path)
    make(path)
    with pytest.raises(ValueError, match=f"^--tokens is {path}: {words}"):
        authorizer(path)
    done = command("--file", path)
    assert done.exit_code == 1
    assert words in done.stderr


HERE, AWAY = "ipv4:127.0.0.1:40000", "ipv4:192.0.2.7:40000"
LOCAL = (
    *(HERE, "ipv4:127.1.2.3:1", "ipv6:[::1]:5", "ipv6:%5B::1%5D:5", "ipv6:[::ffff:127.0.0.1]:5"),
    *("unix:", "unix:/run/x", "unix-abstract:x"),
)
DISTANT = (
    *(AWAY, "ipv4:0.0.0.0:1", "ipv4:127.0.0.1.example.org:1", "ipv6:[2001:db8::1]:5"),
    *("ipv6:%5Bfe80::1%25eth0%5D:5", "ipv6:[::ffff:192.0.2.1]:5"),
    *("dns:localhost:1", "localhost", ""),
)


def authorizer(path, *, day=1):
    seconds = datetime(2026, 11, day, 23, 59, tzinfo=UTC).timestamp()
    return Authorizer(Settings(tokens=str(path)), clock=lambda: seconds)


def verdict(guard, scope, authorization, peer=HERE):
    refusal = guard.refusal(scope, authorization=authorization, peer=peer)
    if refusal is None:
        return ""
    return "forbidden" if isinstance(refusal, MissingScopeError) else "unknown"


def test_the_log_warns_of_an_address_that_every_client_may_call_and_of_no_other(caplog):
    beyond = {"address": "0.0.0.0:0", "insecure": True}
    for safe in ({"tokens": "tokens"}, {"anonymous_scopes": ""}, {"address": "127.0.0.1:0"}):
        warn_if_open(Settings(**beyond | safe))
    assert caplog.messages == []
    warn_if_open(Settings(**beyond))
    assert caplog.messages == ["no tokens: every client that reaches the server may call it"]


@pytest.mark.parametrize("peer", [*LOCAL, *DISTANT])
def test_callers_of_other_machines_have_the_scopes_of_strangers(peer):
    assert is_local(peer) == (peer in LOCAL)
    for scopes in ("evaluate", "", "evaluate,inspect"):
        guard = Authorizer(Settings(anonymous_scopes=scopes))
        for scope in Scope:
            allowed = peer in LOCAL or scope.value in scopes
            assert verdict(guard, scope, "Bearer x", peer) == ("" if allowed else "forbidden")
            assert guard.refusal(scope, authorization=None, peer=peer, certified=True) is None


def test_a_token_is_taken_whole_and_in_its_form_only(path):
    token = add_token(path, name="ci", scopes=list(Scope))
    guard = authorizer(path)
    text = f"Bearer {token}"
    for good in (text, f"bearer {token}", f"BEARER {token}"):
        assert verdict(guard, Scope.EVALUATE, good, AWAY) == ""
    digest = read_tokens(path.read_bytes())[0].digest.hex()
    shown = (f"{token[:-1]}", f"{token}x", f"{token} {token}", token.swapcase(), "\udcff", digest)
    bad = (token, f"Basic {token}", "Bearer", "Bearer ", "")
    for each in (*bad, *(f"Bearer {text}" for text in shown)):
        assert verdict(guard, Scope.EVALUATE, each) == "unknown"


def test_a_token_opens_what_its_scopes_name_until_the_end_of_its_last_day(path):
    token = add_token(path, name="a", scopes=[Scope.EVALUATE], expires=date(2026, 11, 1))
    bearer = f"Bearer {token}"
    guard = authorizer(path)
    assert verdict(guard, Scope.EVALUATE, bearer) == ""
    assert verdict(guard, Scope.INSPECT, bearer) == "forbidden"
    refusal = authorizer(path, day=2).refusal(Scope.EVALUATE, authorization=bearer, peer=HERE)
    assert isinstance(refusal, UnauthenticatedError)
    assert "expired on 2026-11-01" in refusal.message


def test_a_new_token_is_taken_at_once_and_a_revoked_one_is_refused_soon(path):
    first = add_token(path, name="first", scopes=[Scope.EVALUATE])
    guard = authorizer(path)
    assert verdict(guard, Scope.EVALUATE, f"Bearer {first}") == ""
    second = add_token(path, name="second", scopes=[Scope.EVALUATE])
    assert verdict(guard, Scope.EVALUATE, f"Bearer {second}") == ""
    revoke_token(path, "first")
    wait_until(lambda: verdict(guard, Scope.EVALUATE, f"Bearer {first}") == "unknown")
    assert verdict(guard, Scope.EVALUATE, f"Bearer {second}") == ""


@pytest.mark.parametrize(
    "broken",
    [b"", b"\n \n", b"ci\n", b"ci abc evaluate\n", b"\xff\xfe\x00", b"ci " + b"a" * 64 + b" all\n"],
    ids=repr,
)
def test_a_broken_file_is_refused_at_first_and_kept_out_later(path, broken, caplog):
    path.write_bytes(broken)
    with pytest.raises(ValueError, match=r"^--tokens is "):
        authorizer(path)
    path.unlink()
    token = add_token(path, name="ci", scopes=[Scope.EVALUATE])
    guard = authorizer(path)
    path.write_bytes(broken)
    with caplog.at_level(logging.ERROR, "gradwire_server"):
        assert verdict(guard, Scope.EVALUATE, "Bearer other") == "unknown"
        assert verdict(guard, Scope.EVALUATE, "Bearer other") == "unknown"
    assert [record.message for record in caplog.records] == ["tokens cannot be read"]
    assert verdict(guard, Scope.EVALUATE, f"Bearer {token}") == ""
