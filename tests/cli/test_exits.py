"""How the program ends, and what its help says."""

from __future__ import annotations

import subprocess
import sys

import pytest

from command_line import run, run_here
from gradwire import errors
from gradwire.cli import exits


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
        errors.AuthenticationError: (8, "without a token"),
        errors.PermissionDeniedError: (8, "does not open"),
    }
    code, words = documented.get(kind, (1, "any other failure"))
    assert exits.code_of(kind("")) == code
    (line,) = (line for line in exits.HELP.splitlines() if line.split()[:1] == [str(code)])
    assert words in line


def test_a_fault_of_the_program_itself_is_not_dressed_up() -> None:
    assert exits.code_of(KeyError("x")) is None


def test_a_message_of_several_lines_becomes_one(capsys: pytest.CaptureFixture[str]) -> None:
    exits.report(errors.ServerError("one\n  two"))
    assert capsys.readouterr().err == "gradwire: error: one two\n"


@pytest.mark.parametrize("arguments", [(), ("--help",), ("evaluate", "--help"), ("demo", "--help")])
def test_help_goes_to_stdout(arguments: tuple[str, ...]) -> None:
    done = run_here(*arguments)
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: gradwire")
    assert "\\b" not in done.stdout


def test_help_documents_the_exit_codes() -> None:
    assert all(line in run_here("--help").stdout for line in exits.HELP.splitlines()[2:])


def test_version_is_that_of_the_distribution() -> None:
    done = run("--version")
    assert done.code == 0
    assert done.stdout.startswith("gradwire 0.")


def test_an_unknown_command_is_a_usage_error() -> None:
    done = run_here("evaluat")
    assert done.code == 2
    assert done.stderr.startswith("gradwire: error: No such command 'evaluat'")


def test_a_reader_who_leaves_is_met_with_silence() -> None:
    command = f"{sys.executable} -m gradwire.cli --help | true"
    done = subprocess.run(  # noqa: S603 - our own program
        ["/bin/bash", "-c", command], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")
