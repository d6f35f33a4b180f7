"""How the program ends, and what its help says."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import time
from dataclasses import fields
from importlib.metadata import version

import pytest

from gradwire import errors
from gradwire._wire.environment import SERVER_VARIABLES
from gradwire._wire.statuses import no_server
from gradwire.cli import output
from gradwire.cli.app import commands
from gradwire_server.config.settings import Settings
from support.command_line import GRADWIRE, run, run_here
from support.processes import run_command


def every_kind(kind: type[errors.GradwireError]) -> list[type[errors.GradwireError]]:
    return [kind, *(each for child in kind.__subclasses__() for each in every_kind(child))]


@pytest.mark.parametrize("kind", every_kind(errors.GradwireError))
def test_every_error_of_the_sdk_has_the_code_that_help_documents(
    kind: type[errors.GradwireError],
) -> None:
    documented: dict[type[errors.GradwireError], tuple[int, str]] = {
        errors.InvalidRequestError: (2, "invalid request"),
        errors.UnsupportedOperatorError: (3, "does not know"),
        errors.LimitExceededError: (4, "limit"),
        errors.UseStreamError: (4, "limit"),
        errors.OverloadedError: (5, "overloaded"),
        errors.DeadlineExceededError: (6, "deadline"),
        errors.UnavailableError: (7, "no server"),
        errors.AuthenticationError: (8, "needs a token"),
        errors.PermissionDeniedError: (8, "does not permit"),
    }
    code, words = documented.get(kind, (1, "any other failure"))
    assert output.code_of(kind("")) == code
    (line,) = (line for line in output.HELP.splitlines() if line.split()[:1] == [str(code)])
    assert words in line


def test_a_fault_of_the_program_itself_is_not_dressed_up() -> None:
    assert output.code_of(KeyError("x")) is None


def test_a_message_of_several_lines_becomes_one(capsys: pytest.CaptureFixture[str]) -> None:
    output.report(errors.ServerError("one\n  two"))
    assert capsys.readouterr().err == "gradwire: error: one two\n"


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--help",),
        ("-h",),
        *((name, "-h") for name in sorted(commands.commands)),
        ("demo", "--help"),
    ],
    ids=" ".join,
)
def test_help_goes_to_stdout(arguments: tuple[str, ...]) -> None:
    done = run_here(*arguments)
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: gradwire")
    assert "\\b" not in done.stdout


def test_help_documents_the_exit_codes() -> None:
    assert all(line in run_here("--help").stdout for line in output.HELP.splitlines()[2:])


@pytest.mark.parametrize(
    ("module", "name"), [("gradwire", "gradwire"), ("gradwire_server", "gradwire-server")]
)
def test_every_command_tells_its_version_alike(module: str, name: str) -> None:
    done = run_command("--version", program=("-m", module))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{name} {version('gradwire')}\n", "")


def test_a_difference_has_a_code_of_its_own() -> None:
    assert output.DIFFERENT not in {output.OTHER, output.INVALID, *output.CODES.values()}


@pytest.mark.parametrize(
    ("name", "meant"),
    [("GRADWIRE_TRAGET", "GRADWIRE_TARGET"), ("GRADWIRE_BACKENDS", "GRADWIRE_BACKEND")],
)
def test_a_variable_that_is_no_setting_is_warned_of(
    name: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "127.0.0.1:1")
    for known in ("GRADWIRE_TOKENS", "GRADWIRE_PUBLISH", "GRADWIRE_TOKEN_FILE"):
        monkeypatch.setenv(known, "")
    done = run_here("explain", "--op", "nothing", "--input-shape", "1")
    first, *_ = done.stderr.splitlines()
    words = f"gradwire: warning: {name} is not a setting of gradwire; did you mean {meant}?"
    assert first == words
    assert done.stderr.count("warning") == 1


def test_a_variable_that_is_like_no_setting_is_warned_of_without_a_guess(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRADWIRE_FOO", "1")
    done = run_here("explain", "--op", "nothing", "--input-shape", "1")
    first, *_ = done.stderr.splitlines()
    assert first == "gradwire: warning: GRADWIRE_FOO is not a setting of gradwire"


def test_the_settings_of_a_server_are_those_it_has() -> None:
    assert tuple(f"GRADWIRE_{each.name.upper()}" for each in fields(Settings)) == SERVER_VARIABLES


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errors.AuthenticationError("a token is needed"), "--token-file or GRADWIRE_TOKEN"),
        (errors.PermissionDeniedError("it lacks a scope"), "--token-file or GRADWIRE_TOKEN"),
        (errors.InvalidRequestError.of("token_file", "x cannot be read"), "error: --token-file: x"),
        (errors.InvalidRequestError.of("timeout_s", "is 0"), "error: --timeout: is 0"),
        (errors.InvalidRequestError.of("output.sizes[1]", "is 0"), "error: --output-shape[1]: is"),
        (errors.InvalidRequestError.of("operator.x.mode", "is 0"), "error: --attr mode: is 0"),
        (errors.LimitExceededError("output_shape is (9,)"), "error: --output-shape is (9,)"),
        (errors.DeadlineExceededError("no result within timeout_s, 2 s"), "no result within 2 s"),
        (
            errors.InvalidRequestError.of("output", "absent; give it"),
            "error: --output-shape: absent; give it\n",
        ),
    ],
)
def test_an_error_names_what_the_command_line_has(
    error: Exception, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output.report(error)
    assert words in capsys.readouterr().err


def test_the_shell_completes_commands_and_options() -> None:
    for words, expected in (("gradwire ben", "bench"), ("gradwire bench --out", "--output")):
        asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        done = subprocess.run(  # noqa: S603 - our own program
            GRADWIRE,
            env={**os.environ, **asked, "_GRADWIRE_COMPLETE": "bash_complete"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == f"plain,{expected}\n"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_long_transfer_shows_its_rate_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = _Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    with output.progress_bar(100) as moved:
        moved(50)
    assert not shown.getvalue()
    monkeypatch.setattr(output, "PATIENCE_S", 0.0)
    with output.progress_bar(10**9) as moved:
        for done_bytes in (0, 5 * 10**8):
            moved(done_bytes)
            time.sleep(0.01)
        moved(6 * 10**8)
    assert re.search(r"60%.* \d+:\d\d:\d\d left, \d+ MB/s", shown.getvalue())


def test_a_reader_who_leaves_is_met_with_silence() -> None:
    command = f"{sys.executable} -m gradwire --help | true"
    done = subprocess.run(  # noqa: S603 - our own program
        ["/bin/bash", "-c", command], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("command", ["info", "operators", "health"])
def test_where_nobody_listens_the_program_says_how_to_start_a_server(
    free_target: str, command: str
) -> None:
    done = run(command, "--target", free_target)
    assert done.code == 7
    assert done.stderr == f"gradwire: error: {no_server(free_target)}\n"


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_a_terminal_sees_that_the_program_goes_on_trying(free_target: str) -> None:
    near, far = os.openpty()
    command = [*GRADWIRE, "info", "--target", free_target]
    with subprocess.Popen(command, stderr=far, stdout=subprocess.DEVNULL) as program:  # noqa: S603
        os.close(far)
        shown = b""
        # Linux says that the other end is closed by an error.
        with contextlib.suppress(OSError):
            while came := os.read(near, 4096):
                shown += came
    os.close(near)
    assert program.returncode == 7
    waiting, end = shown.decode().splitlines()
    assert waiting.startswith("gradwire: trying again in 0.1 s: ")
    assert end.startswith("gradwire: error: no server listens at ")
