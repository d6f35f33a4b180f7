"""Runs the command line in this process."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from types import SimpleNamespace

import pytest

from gradwire import cli


def run_here(*arguments: object) -> SimpleNamespace:
    """Return its exit code and what it printed, as `code`, `stdout` and `stderr`."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr), pytest.raises(SystemExit) as left:
        cli.main([str(argument) for argument in arguments])
    assert isinstance(left.value.code, int)
    return SimpleNamespace(code=left.value.code, stdout=stdout.getvalue(), stderr=stderr.getvalue())
