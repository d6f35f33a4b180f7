"""Clients and servers that share memory are killed: nothing is left, and no bit is wrong."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import environment

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory files are Linux's")

_MORE = {"PYTHONPATH": str(Path(__file__).parents[1])}


@pytest.mark.parametrize(
    ("clients", "servers"),
    [(30, 2), pytest.param(1000, 50, marks=[pytest.mark.slow, pytest.mark.heavy])],
)
def test_the_killed_leave_nothing(clients: int, servers: int) -> None:
    # A process of its own: clients are forked.
    command = [sys.executable, "-m", "chaos.shared_memory"]
    counts = [f"--clients={clients}", f"--servers={servers}"]
    done = subprocess.run(  # noqa: S603 - our own program
        [*command, *counts], capture_output=True, text=True, check=False, env=environment(_MORE)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = ast.literal_eval(done.stdout)
    assert outcome["clients"] == outcome["killed"] == clients
    assert outcome["servers_killed"] == servers
