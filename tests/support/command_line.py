"""Runs the command line: as a process of its own, or, where many runs are compared, in this one."""

from __future__ import annotations

import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

import pytest

from gradwire import cli

GRADWIRE = (sys.executable, "-m", "gradwire")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    code: int
    stdout: str
    stderr: str


def run(*arguments: object) -> Outcome:
    done = subprocess.run(  # noqa: S603 - our own program
        [*GRADWIRE, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def run_here(*arguments: object) -> Outcome:
    stdout, stderr = io.StringIO(), io.StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr), pytest.raises(SystemExit) as left:
        cli.main([str(argument) for argument in arguments])
    assert isinstance(left.value.code, int)
    return Outcome(left.value.code, stdout.getvalue(), stderr.getvalue())
