"""The list of deviations, deviations.toml, and the code that shows each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
import traceback
from dataclasses import dataclass
from functools import cache
from importlib import import_module
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
    return _printed(deviation.framework)[deviation.title]


@cache
def _printed(framework: str) -> dict[str, str]:
    """Return what each code of a framework prints, by title; one process imports it for all."""
    child = subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-m", "conformance.deviations", framework],
        # The tests' own modules, and no greetings of TensorFlow.
        env={**os.environ, "PYTHONPATH": _PATH, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        check=True,
        text=True,
    )
    found: dict[str, str] = json.loads(child.stdout)
    return found


def _forked(code: str) -> str:
    """Run code in a child; return what it prints, or its traceback."""
    with tempfile.TemporaryFile() as file:
        child = os.fork()
        if not child:
            os.dup2(file.fileno(), sys.stdout.fileno())
            try:
                exec(code, {"__name__": "__main__"})  # noqa: S102 - of our list
            except BaseException:  # noqa: BLE001 - whatever it is, it is told
                traceback.print_exc(file=sys.stdout)
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)
        file.seek(0)
        return file.read().decode()


if __name__ == "__main__":
    # Others have threads as soon as they are imported.
    if sys.argv[1] in {"jax", "onnx", "onnxruntime", "torch"}:
        import_module(sys.argv[1])
    FOUND = {each.title: _forked(each.code) for each in listed() if each.framework == sys.argv[1]}
    sys.stdout.write(json.dumps(FOUND))
