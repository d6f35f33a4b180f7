"""A server for the length of one command, where no --target is given.

The server is a child process and is never imported: the command line needs no server package, and a
fault of one does not touch the other.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import IO

from gradwire.cli.exits import CommandError

MODULE = "gradwire_server"
# The server's first line on standard output, once it listens.
GREETING = b"gradwire-server listening on "
INSTALL = 'pip install "gradwire[server]"'
STOP_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A server that runs: where it listens, and its process, which may have started others."""

    target: str
    pid: int


@contextmanager
def local_server(*, backend: str = "auto") -> Generator[str]:
    """Yield the target of a server that ends with the block, at the latest with this process.

    backend  the server's setting, where that is not told by the environment
    """
    with local_process(backend=backend) as server:
        yield server.target


@contextmanager
def local_process(*, backend: str = "auto") -> Generator[LocalServer]:
    """Yield such a server with its process."""
    if find_spec(MODULE) is None:
        raise CommandError(f"no --target is given, and a server of its own needs: {INSTALL}")
    with tempfile.TemporaryFile() as log, _running(log, backend) as child:
        yield LocalServer(_address(child, log), child.pid)


@contextmanager
def _running(log: IO[bytes], backend: str) -> Generator[subprocess.Popen[bytes]]:
    # A session of its own: Ctrl-C reaches this process only, which then stops the child in order.
    # The pipe at its standard input ends it should this process be killed.
    # It is for this command alone, and asks it for nothing.
    inherited = {name: text for name, text in os.environ.items() if name != "GRADWIRE_TOKENS"}
    with subprocess.Popen(  # noqa: S603 (our own server)
        [sys.executable, "-m", "gradwire.cli.tethered", MODULE, "--address", "127.0.0.1:0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env={"GRADWIRE_BACKEND": backend, **inherited},
        start_new_session=True,
    ) as child:
        try:
            yield child
        finally:
            _stop(child)


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()


def _address(child: subprocess.Popen[bytes], log: IO[bytes]) -> str:
    assert child.stdout is not None  # noqa: S101 (Popen was asked for a pipe)
    for line in child.stdout:
        if line.startswith(GREETING):
            return line.removeprefix(GREETING).decode().strip()
    child.wait()
    log.seek(0)
    words = log.read().decode(errors="replace").strip().splitlines()
    reason = words[-1] if words else f"it ended with code {child.returncode}"
    raise CommandError(f"the local server did not start: {reason}")
