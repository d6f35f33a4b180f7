"""The list of deviations, deviations.toml, and the code that shows each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

LIST = Path(__file__).with_name("deviations.toml")
# To import PyTorch takes 3 s.
_FORKS = """
import json, os, sys, tempfile, traceback
import torch

def printed(code):
    with tempfile.TemporaryFile("w+") as out:
        if not (child := os.fork()):
            os.dup2(out.fileno(), 1)
            try:
                exec(code, {"__name__": "__main__"})
            except BaseException:
                print(traceback.format_exc())
            sys.stdout.flush()
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        out.seek(0)
        return out.read() + f"exit status {status}" * (status != 0)

print(json.dumps([printed(code) for code in json.load(sys.stdin)]))
"""
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
    return _all_printed(deviation.framework)[deviation.code]


@cache
def _all_printed(framework: str) -> dict[str, str]:
    """Run all code of one framework: of PyTorch in copies of one process, which has imported it."""
    codes = [each.code for each in listed() if each.framework == framework]
    if framework == "torch":
        return dict(zip(codes, json.loads(_output(_FORKS, json.dumps(codes))), strict=True))
    return {code: _output(code) for code in codes}


def _output(code: str, given: str = "") -> str:
    child = subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-c", code],
        # The tests' own modules, and no greetings of TensorFlow.
        env={**os.environ, "PYTHONPATH": _PATH, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        check=False,
        text=True,
        input=given,
    )
    return child.stdout if child.returncode == 0 else child.stderr
