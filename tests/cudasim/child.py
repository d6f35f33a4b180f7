"""Simulations in a process of their own, as the sanitizers need them: they end what goes wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from cudasim.compiler import Mode

_TESTS = Path(__file__).parents[1]

# One thread is the simulator's idea of many; what else NumPy starts would only cost time.
_QUIET = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

# What each tool says, the most telling first.
_FINDINGS = re.compile(
    r"data race|heap-buffer-overflow|use-after-poison|stack-buffer-overflow|unknown-crash"
    r"|misaligned address|signed integer overflow|out of bounds"
    r"|illegal address: [\w -]+|barrier divergence|different __syncthreads"
    r"|different warp operations|not in mask|invalid (?:block|grid)|Arrays are not equal"
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a process ended.

    finding  what was found wrong, in a word or two; empty where nothing was
    text     all that it printed
    """

    finding: str
    text: str


def run(program: str, *arguments: str, mode: Mode) -> Outcome:
    """Run a Python program that may import what is in tests/, watched as a mode says."""
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=_environment(mode),
    )
    text = done.stdout + done.stderr
    if not done.returncode:
        return Outcome("", text)
    found = _FINDINGS.search(text)
    return Outcome(found.group() if found else "unknown", text)


def _environment(mode: Mode) -> dict[str, str]:
    path = os.pathsep.join([str(_TESTS), *filter(None, sys.path)])
    return {**os.environ, **_QUIET, **mode.environment(), "PYTHONPATH": path}
