"""Compiles the kernels, or loads what an earlier process compiled."""

from __future__ import annotations

import atexit
import hashlib
import logging
import re
import shutil
import sys
import tempfile
import threading
from importlib import import_module, resources
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import llvmlite
import numba

from gradwire_server.backends.cache_files import forget_others, user_folder
from gradwire_server.backends.numba_cpu import kept

_PACKAGE = "gradwire_server.backends.numba_cpu"
# Passes of the compiler that find nothing to do in kernels written in vectors, and take their time.
_PLAIN = ("LOOP_VECTORIZE", "SLP_VECTORIZE")
# The decorator of a function that is compiled by itself, and kept.
_COMPILED = re.compile(r"^@(?:cfunc|njit)\(.*\bcache=True\)", re.MULTILINE)
_log = logging.getLogger(__name__)
_lock = threading.Lock()
_loaded: list[Kernels] = []


class Kernels(NamedTuple):
    """The modules that compile when they are imported."""

    blocks: ModuleType
    jobs: ModuleType
    team: ModuleType


def check() -> None:
    """Raise ImportError where numba is told to compile nothing, or not for Linux."""
    if sys.platform != "linux":
        raise ImportError(f"it is for Linux, and this is {sys.platform}")
    if vars(import_module("numba.core.config"))["DISABLE_JIT"]:
        raise ImportError("NUMBA_DISABLE_JIT is set")


def load(folder: str) -> Kernels:
    """Return the kernels of this process, which are compiled on the first call.

    folder  where compiled code is kept; empty for gradwire/kernels in the user's cache folder.
            What lies in a folder that cannot be written to is used as it is; what is not there
            then is compiled anew in every process.
    """
    with _lock:
        if not _loaded:
            whole = Path(folder) if folder else user_folder("kernels")
            part = _writable(whole)
            config = vars(import_module("numba.core.config"))
            before = {name: config[name] for name in (*_PLAIN, "CACHE_DIR")}
            config |= dict.fromkeys(_PLAIN, 0) | {"CACHE_DIR": str(part)}
            try:
                progress = kept.CompileProgress(_functions())
                with kept.checked(progress):
                    _loaded.append(_import_or_clean(part))
                progress.note_end()
            finally:
                config |= before
            if part.parent == whole:
                forget_others(part)
        return _loaded[0]


def _import_or_clean(part: Path) -> Kernels:
    """Import what compiles, if need be without what was kept: that may be damaged."""
    try:
        return _import()
    except Exception:  # noqa: BLE001 - whatever reading a damaged file raises
        _log.warning("kernels are compiled anew", exc_info=True, extra={"facts": {"in": str(part)}})
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True, exist_ok=True)
        return _import()


def _import() -> Kernels:
    return Kernels(*(import_module(f"{_PACKAGE}.{name}") for name in Kernels._fields))


def _writable(folder: Path | None) -> Path:
    """Return the part of a folder for this very code, or a private copy of what there is."""
    if folder is None:
        _log.warning("what is compiled cannot be kept: there is no home folder")
        return _private(None)
    part = folder / _version()
    try:
        part.mkdir(parents=True, exist_ok=True)
        # numba itself looks in no folder that it cannot write to.
        tempfile.TemporaryFile(dir=part).close()
    except OSError as error:
        if not part.is_dir():
            _log.warning("what is compiled cannot be kept: %s", error)
        return _private(part)
    return part


def _private(part: Path | None) -> Path:
    """Return a folder for this process, with what there is in one that cannot be written to."""
    private = Path(tempfile.mkdtemp(prefix="gradwire-kernels-"))
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    if part is not None and part.is_dir():
        shutil.copytree(part, private, dirs_exist_ok=True)
        for one in (private, *private.rglob("*")):
            one.chmod(0o700)  # copied with the rest
    return private


def _functions() -> int:
    """Return how many functions there are to compile, by their decorators."""
    sources = (one for one in resources.files(_PACKAGE).iterdir() if one.name.endswith(".py"))
    return sum(len(_COMPILED.findall(source.read_text())) for source in sources)


def _version() -> str:
    """Name the code: numba itself looks at the file of a function, not at those it is made of."""
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for source in sorted(resources.files(_PACKAGE).iterdir(), key=lambda one: one.name):
        if source.name.endswith(".py"):
            digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
