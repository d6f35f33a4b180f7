"""Shared libraries of kernels and the runtime, made by g++ and kept by the hash of what is in them.

The kernels alone are instrumented by a sanitizer; the runtime tells it of fibers and barriers.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import NamedTuple

_HERE = Path(__file__).parent
_CACHE = _HERE.parents[1] / ".cudasim_cache"

# No product is contracted with a sum, no operation reordered, and addresses may alias.
_COMMON = ("-std=c++17", "-O1", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing", "-w")
_INCLUDE = (f"-I{_HERE / 'include'}",)


class CompileError(Exception):
    """Raised when g++ refuses a source."""


@dataclass(frozen=True, slots=True)
class _Build:
    """How a mode compiles kernels and the runtime, and what a process needs to load them.

    kernels  flags of what is instrumented
    runtime  flags of what is not
    preload  library that must be loaded first, empty for none
    options  environment of the sanitizer
    """

    kernels: tuple[str, ...] = ()
    runtime: tuple[str, ...] = ()
    preload: str = ""
    options: tuple[tuple[str, str], ...] = ()


class Mode(Enum):
    """How closely a run is watched: by guard pages, or by sanitizers in a process of their own."""

    PLAIN = _Build()
    ADDRESS = _Build(
        kernels=(
            "-fsanitize=address,undefined",
            "-fno-sanitize=vptr",
            "-fno-sanitize-recover=undefined",
            "-g1",
        ),
        runtime=("-DCUDASIM_ASAN",),
        preload="libasan.so",
        options=(("ASAN_OPTIONS", "detect_leaks=0"),),
    )
    THREAD = _Build(
        kernels=("-fsanitize=thread", "-g1"),
        runtime=("-DCUDASIM_TSAN",),
        preload="libtsan.so",
        options=(("TSAN_OPTIONS", "halt_on_error=1:report_signal_unsafe=0"),),
    )

    def environment(self) -> dict[str, str]:
        """Return what the environment of a process must have to load libraries of this mode."""
        if not self.value.preload:
            return {}
        found = _gxx(f"-print-file-name={self.value.preload}").strip()
        return {"LD_PRELOAD": found, **dict(self.value.options)}


def why_not() -> str:
    if os.uname().machine != "x86_64":
        return f"the simulator switches stacks on x86-64 only, this is {os.uname().machine}"
    return "" if shutil.which("g++") else "g++ is not installed"


def library(
    units: Sequence[str],
    mode: Mode,
    *,
    headers: Mapping[str, str] | None = None,
) -> Path:
    """Compile programs together with the runtime; return the library.

    units    C++ texts, each compiled by itself, several at a time
    headers  files that they may include beside those of the runtime

    Raises CompileError with what g++ said.
    """
    flags = [*_COMMON, *_INCLUDE]
    runtime = {path.name: path.read_text() for path in sorted((_HERE / "runtime").iterdir())}
    jobs = [
        _Job("kernels.cpp", {**(headers or {}), "kernels.cpp": text}, [*flags, *mode.value.kernels])
        for text in units
    ]
    jobs += [
        _Job(name, runtime, [*flags, *mode.value.runtime])
        for name in runtime
        if name.endswith(".cpp")
    ]
    _CACHE.mkdir(exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(_object, jobs))
    made = _CACHE / f"{_hash(sorted(map(str, objects)))}.so"
    if not made.exists():
        with _scratch() as folder:
            built = folder / made.name
            _gxx("-shared", *mode.value.kernels, *map(str, objects), "-o", str(built))
            built.replace(made)
    return made


class _Job(NamedTuple):
    source: str
    files: Mapping[str, str]
    flags: Sequence[str]


def _object(job: _Job) -> Path:
    made = _CACHE / f"{_hash((job, _included(), _version()))}.o"
    if not made.exists():
        with _scratch() as folder:
            for name, text in job.files.items():
                (folder / name).write_text(text)
            built = folder / made.name
            _gxx(*job.flags, "-c", str(folder / job.source), "-o", str(built))
            built.replace(made)
    return made


def _hash(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:32]


@contextmanager
def _scratch() -> Generator[Path]:
    with tempfile.TemporaryDirectory(dir=_CACHE) as name:
        yield Path(name)


def _gxx(*arguments: str) -> str:
    found = shutil.which("g++")
    assert found, why_not()
    done = subprocess.run(  # noqa: S603 - our own arguments
        [found, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
    )
    if done.returncode:
        raise CompileError(done.stderr[:6000])
    return done.stdout


@cache
def _version() -> str:
    return _gxx("-dumpfullversion")


@cache
def _included() -> str:
    return "".join(path.read_text() for path in sorted((_HERE / "include").iterdir()))
