"""Kernels on the CPU: a library of them, device memory beside guard pages, and launches.

Libraries are made by g++ and kept by the hash of what is in them. A sanitizer instruments the
kernels alone; the runtime tells it of fibers and barriers.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Extent = tuple[int, ...]

# Orders in which the threads of a block run; other numbers seed a new permutation at each barrier.
FORWARD, REVERSE = 0, 1
_ALIGNMENT = 16  # of device pointers
# Where an allocation lies.
_ENDS_AT_GUARD, _BEGINS_AT_GUARD, _ON_HEAP, _SPARSE = range(4)
_HERE = Path(__file__).parent
CACHE = _HERE.parents[1] / ".cudasim_cache"

# No product is contracted with a sum, no operation reordered, and addresses may alias.
_COMMON = ("-std=c++17", "-O1", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing", "-w")
_FLAGS = (*_COMMON, f"-I{_HERE / 'include'}")

# Findings in the words of each tool; the first match names the fault.
_FINDINGS = re.compile(
    r"data race|heap-buffer-overflow|use-after-poison|stack-buffer-overflow|unknown-crash"
    r"|misaligned address|signed integer overflow|out of bounds"
    r"|illegal address: [\w -]+|barrier divergence|different __syncthreads"
    r"|different warp operations|not in mask|invalid (?:block|grid)|Arrays are not equal"
)


class Mode(Enum):
    """How closely a run is watched: by guard pages, or by sanitizers in a process of their own."""

    PLAIN = "", ""
    ADDRESS = "asan", "detect_leaks=0"
    THREAD = "tsan", "halt_on_error=1:report_signal_unsafe=0"


_UNDEFINED = ("-fno-sanitize=vptr", "-fno-sanitize-recover=undefined", "-g1")
# How each has kernels compiled.
_INSTRUMENTED = {
    Mode.PLAIN: (),
    Mode.ADDRESS: ("-fsanitize=address,undefined", *_UNDEFINED),
    Mode.THREAD: ("-fsanitize=thread", "-g1"),
}


def watched(program: str, *arguments: str, mode: Mode) -> tuple[str, str]:
    """Run a Python program that may import what is in tests/, in a process of its own.

    Return what was found wrong, in a word or two, empty where nothing was; and all it printed.
    """
    sanitizer, options = mode.value
    preload = _gxx(f"-print-file-name=lib{sanitizer}.so").strip()
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,  # with the compiler, which takes minutes on a busy machine
        env={
            **os.environ,
            # Threads of BLAS would only cost time.
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "LD_PRELOAD": preload,
            "PYTHONPATH": os.pathsep.join([str(_HERE.parent), *filter(None, sys.path)]),
            f"{sanitizer.upper()}_OPTIONS": options,
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

    Raises RuntimeError with what g++ said.
    """
    runtime = {path.name: path.read_text() for path in sorted((_HERE / "runtime").iterdir())}
    instrumented = (*_FLAGS, *_INSTRUMENTED[mode])
    plain = _FLAGS if mode is Mode.PLAIN else (*_FLAGS, f"-DCUDASIM_{mode.value[0].upper()}")
    jobs = [("kernels.cpp", {**(headers or {}), "kernels.cpp": one}, instrumented) for one in units]
    jobs += [(name, runtime, plain) for name in runtime if name.endswith(".cpp")]
    CACHE.mkdir(exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = [str(one) for one in pool.map(_object, *zip(*jobs, strict=True))]
    return _built("-shared", *_INSTRUMENTED[mode], *objects, name=f"{_hash(sorted(objects))}.so")


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
        raise RuntimeError(done.stderr[:6000])
    return done.stdout


@cache
def _version() -> str:
    return _gxx("-dumpfullversion")


@cache
def _included() -> str:
    return "".join(path.read_text() for path in sorted((_HERE / "include").iterdir()))


class SimError(Exception):
    """Raised when a launch went wrong: illegal addresses, divergent barriers, wrong arguments."""


class Buffer:
    """Device memory, full of NaN unless sparse; given back when nothing refers to it."""

    def __init__(self, module: Module, nbytes: int, placing: int) -> None:
        self._module, self.nbytes = module, nbytes
        self.address = int(module.api.sim_malloc(nbytes, placing, _ALIGNMENT) or 0)
        if not self.address:
            raise MemoryError(f"{nbytes} bytes of simulated device memory")

    def view(self, dtype: npt.DTypeLike, count: int, *, first: int = 0) -> Array:
        size = np.dtype(dtype).itemsize
        assert first >= 0
        assert (first + count) * size <= self.nbytes
        memory = (ctypes.c_char * (count * size)).from_address(self.address + first * size)
        return np.frombuffer(memoryview(memory).cast("B"), np.uint8).view(dtype)

    def protect(self, *, writable: bool = False) -> None:
        self._module.api.sim_protect(self.address, writable)

    def __del__(self) -> None:
        if getattr(self, "address", 0):
            self._module.api.sim_free(self.address)


class Module:
    """A library of kernels, launched by the names they were compiled under.

    names   library's alias of each kernel
    limits  of a kernel whose source does not declare them: most threads of a block, or 0, and bytes
            of shared memory
    """

    def __init__(
        self,
        path: Path,
        mode: Mode,
        names: Mapping[str, str],
        limits: Mapping[str, tuple[int, int]] = MappingProxyType({}),
    ) -> None:
        self.mode, self._names, self._limits = mode, names, limits
        self.api = ctypes.CDLL(str(path))
        self.api.sim_malloc.restype = ctypes.c_void_p
        self.api.sim_malloc.argtypes = (ctypes.c_size_t, ctypes.c_int, ctypes.c_size_t)
        self.api.sim_free.argtypes = (ctypes.c_void_p,)
        self.api.sim_protect.argtypes = (ctypes.c_void_p, ctypes.c_int)
        self.api.sim_error.restype = ctypes.c_char_p

    def buffer(self, nbytes: int, *, order: int = FORWARD) -> Buffer:
        """Return fresh memory; its end is guarded, or its beginning where threads run backwards."""
        if self.mode is not Mode.PLAIN:
            return Buffer(self, nbytes, _ON_HEAP)  # the sanitizer guards every byte
        return Buffer(self, nbytes, _BEGINS_AT_GUARD if order == REVERSE else _ENDS_AT_GUARD)

    def sparse(self, nbytes: int) -> Buffer:
        """Return zeros that take no memory until they are written to."""
        return Buffer(self, nbytes, _SPARSE)

    def holding(self, array: Array, *, order: int = FORWARD) -> Buffer:
        """Return memory that holds an array's elements and can only be read."""
        made = self.buffer(array.nbytes, order=order)
        made.view(array.dtype, array.size).reshape(array.shape)[...] = array
        made.protect()
        return made

    def launch(
        self,
        name: str,
        grid: Extent,
        block: Extent,
        arguments: Sequence[Buffer | np.generic],
        *,
        order: int = FORWARD,
        blocks: tuple[int, int] = (0, 2**63),
    ) -> None:
        """Run a kernel.

        arguments  pointers as buffers, scalars of exactly the types the kernel declares
        blocks     the first and the one after the last, in linear order, that run

        Raises SimError that names what went wrong and the thread it went wrong in.
        """
        alias = self._names[name]
        values = [
            np.asarray(np.uint64(one.address) if isinstance(one, Buffer) else one)
            for one in arguments
        ]
        sizes = [value.itemsize for value in values]
        sizes_of = getattr(self.api, f"sim_sizes_{alias}")
        sizes_of(found := (ctypes.c_int * sizes_of(None))())
        wanted = list(found)
        if sizes != wanted:
            raise SimError(f"{name} takes arguments of {wanted} bytes; {sizes} came")
        pointers = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
        grids = [(ctypes.c_uint * 3)(*(*sides, 1, 1)[:3]) for sides in (grid, block)]
        most_threads, shared_bytes = self._limits.get(name, (0, 0))
        shared, numbers = ctypes.c_size_t(shared_bytes), map(ctypes.c_uint, (order, most_threads))
        kernel, part = getattr(self.api, f"sim_kernel_{alias}"), map(ctypes.c_size_t, blocks)
        wrong = self.api.sim_launch(kernel, pointers, *grids, shared, *numbers, *part)
        if wrong:
            raise SimError(f"{name}: {self.api.sim_error().decode()}")


def compiled(folder: Path, kernels: Collection[tuple[str, str]], mode: Mode = Mode.PLAIN) -> Module:
    """Compile kernels of a folder's sources with g++.

    kernels  (source, name expression) of each, such as ("march.cu", "march<float, 4>"); launched
             by the expression
    """
    aliases = {one: f"k{number}" for number, one in enumerate(sorted(kernels))}
    units = [
        _unit(source, {one: aliases[source, one] for one in some})
        for source in sorted({source for source, _ in kernels})
        for some in batched(sorted(one for file, one in kernels if file == source))
    ]
    files = sorted([*folder.glob("*.cu"), *folder.glob("*.cuh")])
    headers = {one.name: f'#line 1 "{one.name}"\n{one.read_text()}' for one in files}
    path = library(units, mode, headers=headers)
    return Module(path, mode, {expression: alias for (_, expression), alias in aliases.items()})


def batched(names: Sequence[str], size: int = 8) -> list[Sequence[str]]:
    return [names[first : first + size] for first in range(0, len(names), size)]


def _unit(source: str, aliases: Mapping[str, str]) -> str:
    # Unnamed: kernels and helpers of other files may have the same names.
    lines = ['#include "cudasim_half.h"', "namespace {", f'#include "{source}"', "}"]
    lines += [f"CUDASIM_EXPORT({alias}, {name})" for name, alias in aliases.items()]
    return "\n".join(lines) + "\n"
