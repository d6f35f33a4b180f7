"""The list of deviations, deviations.toml, and the code that shows each."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).with_name("deviations.toml")
_PATH = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])


@dataclass(frozen=True, slots=True)
class Deviation:
    """What a framework does instead of its text or its own forward; fields as in the file."""

    framework: str
    title: str
    instead: str
    test: str
    code: str
    prints: str
    needs_avx512: bool = False

    def __str__(self) -> str:
        return f"{self.framework}: {self.title}"


def listed() -> list[Deviation]:
    """Read the list."""
    entries = tomllib.loads(LIST.read_text())["deviation"]
    return [Deviation(**entry) for entry in entries]


def printed(deviation: Deviation) -> str:
    """Run the framework's own code in a process of its own and return what it prints."""
    child = subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-c", deviation.code],
        # The tests' own modules, and no greetings of TensorFlow.
        env={**os.environ, "PYTHONPATH": _PATH, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        check=False,
        text=True,
    )
    return child.stdout if child.returncode == 0 else child.stderr
