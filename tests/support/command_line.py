"""Runs the command line in this process."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

import pytest

from gradwire import cli


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    code: int
    stdout: str
    stderr: str


def run_here(*arguments: object) -> Outcome:
    stdout, stderr = io.StringIO(), io.StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr), pytest.raises(SystemExit) as left:
        cli.main([str(argument) for argument in arguments])
    assert isinstance(left.value.code, int)
    return Outcome(left.value.code, stdout.getvalue(), stderr.getvalue())
