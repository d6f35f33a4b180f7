"""Facts about the machine, and benchmarks' command lines and JSON files."""

from __future__ import annotations

import argparse
import datetime as dt
import json as json_format
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = (
    "gradwire",
    "grpcio",
    "numpy",
    "ml_dtypes",
    "numba",
    "llvmlite",
    "torch",
    "onednn-cpu-gomp",
    "cupy-cuda12x",
    "cupy-cuda13x",
)


def facts() -> dict[str, Any]:
    """Return versions, machine, commit, time and command line."""
    return {
        "command": " ".join([Path(sys.executable).name, *sys.orig_argv[1:]]),
        "when": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD"),
        "changed_files": len(_git("status", "--porcelain").splitlines()),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
    }


def parser(name: str, description: str | None, *, json: bool = True) -> argparse.ArgumentParser:
    """Return a parser of a benchmark's arguments.

    It has --json if the benchmark writes a file.
    """
    made = argparse.ArgumentParser(
        prog=f"python -m benchmarks {name}",
        description=description,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    if json:
        made.add_argument("--json", type=Path, metavar="FILE", help="file for the figures")
    return made


def write(path: Path | None, record: Mapping[str, object]) -> None:
    """Write a record, with the machine's facts, to a JSON file.

    Without a path nothing is written.
    """
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json_format.dumps({"machine": facts(), **record}, indent=1)
        path.write_text(text + "\n", encoding="utf-8")


def _cpu() -> str:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    found = {
        key: match[1] if (match := re.search(rf"^{key}\s*: (.*)$", text, re.MULTILINE)) else "?"
        for key in ("model name", "cpu family", "model", "cpu MHz")
    }
    return (
        f"{found['model name']} (family {found['cpu family']}, model {found['model']}, "
        f"{found['cpu MHz']} MHz)"
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # no git
        return ""
    return done.stdout.strip()
