"""The server that a command starts for itself."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from gradwire.cli import connection
from gradwire.errors import GradwireError, UnavailableError
from gradwire.health import health
from support.command_line import run_here

# Whoever runs the tests in the background may have SIGINT ignored, which programs inherit.
HOLDER = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from gradwire.cli.connection import local_server
with local_server() as server:
    print(server.target, flush=True)
    input()
"""


@contextmanager
def holder() -> Generator[tuple[subprocess.Popen[str], str]]:
    """Yield a process that holds a local server until it reads a line, and the target."""
    with subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-c", HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def is_gone(target: str, *, within_s: float) -> bool:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        try:
            health(target, timeout_s=1)
        except UnavailableError:
            return True
        except GradwireError:
            continue  # it is on its way out
        time.sleep(0.05)
    return False


def test_it_serves_and_is_gone_when_the_command_ends() -> None:
    with holder() as (process, target):
        assert health(target) == "SERVING"
        process.communicate("\n")
        assert process.returncode == 0
        assert is_gone(target, within_s=1)


def test_ctrl_c_stops_it() -> None:
    with holder() as (process, target):
        process.send_signal(signal.SIGINT)
        process.wait(timeout=10)
        assert is_gone(target, within_s=1)


def test_it_does_not_outlive_a_killed_command() -> None:
    with holder() as (process, target):
        process.kill()
        process.wait(timeout=10)
        assert is_gone(target, within_s=15)


def test_without_the_server_package_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "MODULE", "a_package_that_is_not_there")
    done = run_here("info")
    assert done.code == 1
    assert done.stderr.count("\n") == 1
    assert 'pip install "gradwire[server]"' in done.stderr


def test_a_server_that_does_not_start_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_MAX_STREAMS", "none")
    done = run_here("info")
    assert done.code == 1
    assert done.stderr.startswith("gradwire: error: the local server did not start: ")
    assert "'none' is not a valid integer" in done.stderr
