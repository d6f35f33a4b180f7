"""Compiles the kernels, or loads them from a file of machine code.

A digest of the package's sources, of numba's and llvmlite's versions and of the processor names the
file's folder. numba loads machine code unchecked, and a flipped bit in it crashes the process or
changes results: so the file ends with a digest, and a damaged file counts as missing. Processes
replace the file as a whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import sys
import tempfile
import threading
from collections.abc import Generator
from functools import partial
from importlib import import_module, resources
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import llvmlite
import numba

from gradwire_server.backends import cache_files

_PACKAGE = "gradwire_server.backends.numba_cpu"
_FILE = "machine_code"
# Compiler passes that find nothing to do in kernels written with vectors, and are slow.
_PASSES_OFF = ("LOOP_VECTORIZE", "SLP_VECTORIZE")

_caching: Any = import_module("numba.core.caching")
_serialize: Any = import_module("numba.core.serialize")
_registry: Any = import_module("numba.core.registry")
_config = vars(import_module("numba.core.config"))
_log = logging.getLogger(__name__)
_lock = threading.Lock()
_loaded: list[Kernels] = []


class Kernels(NamedTuple):
    """The modules that compile when they are imported."""

    blocks: ModuleType
    jobs: ModuleType
    threads: ModuleType


def check() -> None:
    """Raise ImportError if numba does not compile, or not for Linux."""
    if sys.platform != "linux":
        raise ImportError(f"it is for Linux, and this is {sys.platform}")
    if _config["DISABLE_JIT"]:
        raise ImportError("NUMBA_DISABLE_JIT is set")


def load(folder: str) -> Kernels:
    """Return the kernels of this process.

    The first call compiles or loads them.

    folder  the cache; empty for gradwire/kernels in the user's cache folder. A cache that cannot be
            written to is read; code that it lacks is compiled in every process.
    """
    with _lock:
        if not _loaded:
            _loaded.append(_load(_file(folder)))
        return _loaded[0]


def is_stored(folder: str) -> bool:
    """Return whether a cache holds the kernels."""
    return cache_files.read(_file(folder)) is not None


def _file(folder: str) -> Path:
    whole = Path(folder) if folder else cache_files.user_folder("kernels")
    return whole / _version() / _FILE


def _load(file: Path) -> Kernels:
    stored = cache_files.read(file)
    code = _MachineCode(_serialize.loads(stored) if stored is not None else {})
    with _numba_caching_in(code):
        kernels = _import_or_recompile(code)
    if code.compiled:
        _log.info("kernels are ready", extra={"facts": {"compiled": code.compiled}})
        _store(file, code)
    cache_files.forget_others(file.parent)
    return kernels


@contextlib.contextmanager
def _numba_caching_in(code: _MachineCode) -> Generator[None]:
    """Set up numba for the functions declared in the block.

    Its settings are restored afterwards.
    """
    # numba caches nothing without a folder that it can write to.
    with tempfile.TemporaryDirectory(prefix="gradwire-kernels-") as folder:
        settings = dict.fromkeys(_PASSES_OFF, 0) | {"CACHE_DIR": folder}
        before = {name: _config[name] for name in settings}
        # numba has no other way to change how a function is cached.
        files = _caching.IndexDataCacheFile
        _config.update(settings)
        _caching.IndexDataCacheFile = code.of_function
        try:
            yield
        finally:
            _config.update(before)
            _caching.IndexDataCacheFile = files


def _import_or_recompile(code: _MachineCode) -> Kernels:
    """Import the kernels; after a failure, recompile them.

    The stored code is forgotten before the second attempt.
    """
    try:
        return _import()
    except Exception:  # any error of loading code
        if not code.entries:
            raise
        _log.warning("kernels are compiled again", exc_info=True)
        code.entries.clear()
        return _import()


def _import() -> Kernels:
    return Kernels(*(import_module(f"{_PACKAGE}.{name}") for name in Kernels._fields))


def _store(file: Path, code: _MachineCode) -> None:
    try:
        cache_files.write(file, _serialize.dumps(code.entries))
    except OSError as error:
        _log.warning("kernels cannot be cached: %s", error)


def _version() -> str:
    processor = _registry.cpu_target.target_context.codegen().magic_tuple()
    # numba's keys depend on Python's bytecode.
    versions = sys.implementation.cache_tag, numba.__version__, llvmlite.__version__
    digest = hashlib.sha256(repr((*versions, processor)).encode())
    for one in sorted(resources.files(_PACKAGE).iterdir(), key=lambda one: one.name):
        if one.name.endswith(".py"):
            digest.update(one.read_bytes())
    return digest.hexdigest()[:16]


class _MachineCode:
    """Code of all functions.

    entries   by name of the function and text of numba's key: signature, processor and closure
    compiled  number of functions that were compiled
    """

    def __init__(self, entries: dict[tuple[str, str], bytes]) -> None:
        self.entries = entries
        self.compiled = 0

    def of_function(self, *, filename_base: str, **_: object) -> SimpleNamespace:
        """Return the two methods of numba's IndexDataCacheFile that it calls."""
        return SimpleNamespace(
            load=partial(self._load, filename_base), save=partial(self._save, filename_base)
        )

    def _load(self, function: str, key: object) -> object:
        """Return code; None if there is none, so that numba compiles it."""
        code = self.entries.get((function, repr(key)))
        if code is not None:
            return _serialize.loads(code)
        if not self.compiled:
            _log.info("compiling kernels, first start only, about 30 s")
        return None

    def _save(self, function: str, key: object, code: object) -> None:
        """Take code that was compiled."""
        self.entries[function, repr(key)] = _serialize.dumps(code)
        self.compiled += 1
