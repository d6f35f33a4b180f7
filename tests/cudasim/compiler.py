"""Shared libraries of kernels and the runtime, made by g++ and kept by the hash of what is in them.

The kernels alone are instrumented by a sanitizer; the runtime tells it of fibers and barriers.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

_HERE = Path(__file__).parent
CACHE = _HERE.parents[1] / ".cudasim_cache"

# No product is contracted with a sum, no operation reordered, and addresses may alias.
_COMMON = ("-std=c++17", "-O1", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing", "-w")
_FLAGS = (*_COMMON, f"-I{_HERE / 'include'}")
_UNDEFINED = ("-fno-sanitize=vptr", "-fno-sanitize-recover=undefined", "-g1")

# Findings in the words of each tool; the first match names the fault.
_FINDINGS = re.compile(
    r"data race|heap-buffer-overflow|use-after-poison|stack-buffer-overflow|unknown-crash"
    r"|misaligned address|signed integer overflow|out of bounds"
    r"|illegal address: [\w -]+|barrier divergence|different __syncthreads"
    r"|different warp operations|not in mask|invalid (?:block|grid)|Arrays are not equal"
)


class CompileError(Exception):
    """Raised when g++ refuses a source."""


class _Build(NamedTuple):
    """How a mode compiles kernels and the runtime; what a process must load first, and options."""

    kernels: tuple[str, ...] = ()
    runtime: tuple[str, ...] = ()
    preload: str = ""
    options: Mapping[str, str] = MappingProxyType({})


class Mode(Enum):
    """How closely a run is watched: by guard pages, or by sanitizers in a process of their own."""

    PLAIN = _Build()
    ADDRESS = _Build(
        ("-fsanitize=address,undefined", *_UNDEFINED),
        ("-DCUDASIM_ASAN",),
        "libasan.so",
        {"ASAN_OPTIONS": "detect_leaks=0"},
    )
    THREAD = _Build(
        ("-fsanitize=thread", "-g1"),
        ("-DCUDASIM_TSAN",),
        "libtsan.so",
        {"TSAN_OPTIONS": "halt_on_error=1:report_signal_unsafe=0"},
    )


def watched(program: str, *arguments: str, mode: Mode) -> tuple[str, str]:
    """Run a Python program that may import what is in tests/, in a process of its own.

    Return what was found wrong, in a word or two, empty where nothing was; and all it printed.
    """
    preload = _gxx(f"-print-file-name={mode.value.preload}").strip()
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={
            **os.environ,
            # Threads of BLAS would only cost time.
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "LD_PRELOAD": preload,
            "PYTHONPATH": os.pathsep.join([str(_HERE.parent), *filter(None, sys.path)]),
            **mode.value.options,
        },
    )
    text = done.stdout + done.stderr
    return (finding(text) if done.returncode else ""), text


def finding(text: str) -> str:
    found = _FINDINGS.search(text)
    return found.group() if found else "unknown"


def why_not() -> str:
    if os.uname().machine != "x86_64":
        return f"the simulator switches stacks on x86-64 only, this is {os.uname().machine}"
    return "" if shutil.which("g++") else "g++ is not installed"


def library(units: Sequence[str], mode: Mode, *, headers: Mapping[str, str] | None = None) -> Path:
    """Compile programs together with the runtime; return the library.

    units    C++ texts, each compiled by itself, several at a time
    headers  files that they may include beside those of the runtime

    Raises CompileError with what g++ said.
    """
    runtime = {path.name: path.read_text() for path in sorted((_HERE / "runtime").iterdir())}
    instrumented, plain = (*_FLAGS, *mode.value.kernels), (*_FLAGS, *mode.value.runtime)
    jobs = [("kernels.cpp", {**(headers or {}), "kernels.cpp": one}, instrumented) for one in units]
    jobs += [(name, runtime, plain) for name in runtime if name.endswith(".cpp")]
    CACHE.mkdir(exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = [str(one) for one in pool.map(_object, *zip(*jobs, strict=True))]
    return _built("-shared", *mode.value.kernels, *objects, name=f"{_hash(sorted(objects))}.so")


def _object(source: str, files: Mapping[str, str], flags: Sequence[str]) -> Path:
    name = f"{_hash((source, files, flags, _included(), _version()))}.o"
    return _built(*flags, "-c", source, name=name, files=files)


def _built(*arguments: str, name: str, files: Mapping[str, str] | None = None) -> Path:
    """Return what g++ makes beside some files, from the cache where it is kept there."""
    made = CACHE / name
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            for one, text in (files or {}).items():
                Path(folder, one).write_text(text)
            _gxx(*arguments, "-o", name, folder=folder)
            Path(folder, name).replace(made)
    return made


def _hash(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:32]


def _gxx(*arguments: str, folder: str | None = None) -> str:
    found = shutil.which("g++")
    assert found, why_not()
    done = subprocess.run(  # noqa: S603 - our own arguments
        [found, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
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
