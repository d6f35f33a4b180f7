"""C++ helpers of the compute benchmark, compiled when it starts."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

_HERE = Path(__file__).parent
_FLAGS = ["-std=c++17", "-O3", "-march=native", "-funroll-loops", "-fopenmp", "-shared", "-fPIC"]

# Without this option the copy loop becomes a call of memcpy, which stores around the cache.
_NO_MEMCPY = "-fno-tree-loop-distribute-patterns"


class UnavailableError(Exception):
    """A contestant cannot run here; the text says why."""


@dataclass(frozen=True, slots=True)
class Libraries:
    """Compiled helpers, and reasons for missing ones."""

    copy: ctypes.CDLL | None
    onednn: ctypes.CDLL | None
    missing: dict[str, str]


def load() -> Libraries:
    """Compile and load both helpers.

    A missing helper is recorded with its reason, without an error.
    """
    loaded: dict[str, ctypes.CDLL] = {}
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, build in (("copy", _copy), ("onednn", _onednn)):
            try:
                loaded[name] = build(Path(folder) / f"{name}.so")
            except UnavailableError as error:
                missing[name] = str(error)
    return Libraries(loaded.get("copy"), loaded.get("onednn"), missing)


def _copy(target: Path) -> ctypes.CDLL:
    library = _compile(_HERE / "copy_loop.cpp", target, _NO_MEMCPY)
    library.copy_loop.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
    ]
    library.copy_loop.restype = ctypes.c_uint64
    return library


def _onednn(target: Path) -> ctypes.CDLL:
    header = _file_of("onednn-devel-cpu-gomp", "dnnl.hpp")
    shared = _file_of("onednn-cpu-gomp", "libdnnl.so.3")
    options = [f"-I{header.parent}", str(shared), f"-Wl,-rpath,{shared.parent}"]
    library = _compile(_HERE / "onednn_peer.cpp", target, *options)
    library.onednn_new.argtypes = [
        *[ctypes.c_int] * 4,
        *[ctypes.POINTER(ctypes.c_long)] * 2,
        *[ctypes.c_void_p] * 2,
        ctypes.c_char_p,
        ctypes.c_size_t,
    ]
    library.onednn_new.restype = ctypes.c_void_p
    library.onednn_implementation.argtypes = [ctypes.c_void_p]
    library.onednn_implementation.restype = ctypes.c_char_p
    library.onednn_run.argtypes = [ctypes.c_void_p]
    library.onednn_free.argtypes = [ctypes.c_void_p]
    library.onednn_free.restype = None
    return library


def _file_of(package: str, name: str) -> Path:
    try:
        files = distribution(package).files or []
    except PackageNotFoundError:
        raise UnavailableError(
            f"{package} is not installed; pip install --group peers brings it"
        ) from None
    path = next((Path(str(one.locate())).resolve() for one in files if one.name == name), None)
    if path is None:
        raise UnavailableError(f"{package} holds no {name}")
    return path


def _compile(source: Path, target: Path, *options: str) -> ctypes.CDLL:
    compiler = shutil.which("g++")
    if compiler is None:
        raise UnavailableError("g++ is not installed; apt-get install g++ brings it")
    command = [compiler, *_FLAGS, str(source), "-o", str(target), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnavailableError(f"g++ failed on {source.name}: {done.stderr.strip()[:500]}")
    return ctypes.CDLL(str(target))
