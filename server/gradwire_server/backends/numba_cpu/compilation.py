"""Compiles the kernels, or loads them from a file of machine code.

A digest of the package's sources and of numba's and llvmlite's versions names the file's folder,
and numba's keys in it name the processor. numba loads machine code unchecked, and a flipped bit in
it crashes the process or changes results: so the file ends with a digest, and a damaged file counts
as missing. Processes replace the file as a whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from importlib import import_module, resources
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import llvmlite
import numba

from gradwire_server.backends import cache_files

_PACKAGE = "gradwire_server.backends.numba_cpu"
_FILE = "machine_code"
_SIZE = struct.Struct("<Q")
# Compiler passes that find nothing to do in kernels written with vectors, and are slow.
_PASSES_OFF = ("LOOP_VECTORIZE", "SLP_VECTORIZE")
# The decorator of a function with its own entry in the cache.
_COMPILED = re.compile(r"^ *@(?:cfunc|njit)\(.*\bcache=True\)", re.MULTILINE)
# Seconds between log lines about a compilation.
_EVERY_S = 5.0

_caching: Any = import_module("numba.core.caching")
_serialize: Any = import_module("numba.core.serialize")
_config = vars(import_module("numba.core.config"))
_log = logging.getLogger(__name__)
_lock = threading.Lock()
_loaded: list[Kernels] = []


Entries = dict[tuple[str, str], bytes]


class Kernels(NamedTuple):
    """The modules that compile when they are imported."""

    blocks: ModuleType
    jobs: ModuleType
    threads: ModuleType


class NotStoredError(Exception):
    """The cache lacks code that must not be compiled now."""


def check() -> None:
    """Raise ImportError if numba does not compile, or not for Linux."""
    if sys.platform != "linux":
        raise ImportError(f"it is for Linux, and this is {sys.platform}")
    if _config["DISABLE_JIT"]:
        raise ImportError("NUMBA_DISABLE_JIT is set")


def load(folder: str, *, compiles: bool = True) -> Kernels:
    """Return the kernels of this process.

    The first call compiles or loads them.

    folder    the cache; empty for gradwire/kernels in the user's cache folder. A cache that cannot
              be written to is read; code that it lacks is compiled in every process.
    compiles  whether missing code is compiled; otherwise NotStoredError is raised
    """
    with _lock:
        if not _loaded:
            file = _file(folder)
            code = _MachineCode(_stored(file), compiles=compiles)
            with _numba_caching_in(code):
                _loaded.append(_import_or_recompile(code))
            code.note_end()
            if code.compiled:
                _store(file, code)
            if file is not None:
                cache_files.forget_others(file.parent)
        return _loaded[0]


def compile_into(folder: str) -> None:
    """Compile missing kernels into a cache.

    Raises OSError if it cannot be written to.
    """
    file = Path(folder) / _version() / _FILE
    code = _MachineCode(_stored(file))
    with _numba_caching_in(code):
        _import()
    _add(file, code)


def _file(folder: str) -> Path | None:
    whole = Path(folder) if folder else cache_files.user_folder("kernels")
    return whole / _version() / _FILE if whole else None


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
    except NotStoredError:
        raise
    except Exception:  # any error of loading code
        if not code.entries:
            raise
        _log.warning("kernels are compiled again", exc_info=True)
        code.entries.clear()
        return _import()


def _import() -> Kernels:
    return Kernels(*(import_module(f"{_PACKAGE}.{name}") for name in Kernels._fields))


def packed(entries: Entries) -> bytes:
    """Return the content of a file: three counted parts for each entry."""
    parts = [part for key, code in entries.items() for part in (*map(str.encode, key), code)]
    return b"".join(_SIZE.pack(len(part)) + part for part in parts)


def unpacked(content: bytes) -> Entries:
    """Return the entries of a file."""
    parts: list[bytes] = []
    at = 0
    while at < len(content):
        (size,) = _SIZE.unpack_from(content, at)
        at += _SIZE.size
        parts.append(content[at : at + size])
        at += size
    groups = zip(parts[0::3], parts[1::3], parts[2::3], strict=True)
    return {(function.decode(), key.decode()): code for function, key, code in groups}


def _stored(file: Path | None) -> Entries:
    return unpacked(cache_files.read(file) or b"") if file is not None else {}


def _store(file: Path | None, code: _MachineCode) -> None:
    if file is None:
        _log.warning("kernels cannot be cached: there is no home folder")
        return
    try:
        _add(file, code)
    except OSError as error:
        _log.warning("kernels cannot be cached: %s", error)


def _add(file: Path, code: _MachineCode) -> None:
    """Add code to the file.

    It may hold code of other processors and processes.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(folder, fcntl.LOCK_EX)
        cache_files.write(file, packed(_stored(file) | code.entries))
    finally:
        os.close(folder)


def _sources() -> list[bytes]:
    files = sorted(resources.files(_PACKAGE).iterdir(), key=lambda one: one.name)
    return [one.read_bytes() for one in files if one.name.endswith(".py")]


def _version() -> str:
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for source in _sources():
        digest.update(source)
    return digest.hexdigest()[:16]


class _MachineCode:
    """Code of all functions, and log lines about its compilation.

    Log lines count functions.

    entries   by name of the function and text of numba's key: signature, processor and closure
    compiled  names of the functions that were compiled
    """

    def __init__(self, entries: Entries, *, compiles: bool = True) -> None:
        self.entries = entries
        self._compiles = compiles
        self.compiled: set[str] = set()
        self._done: set[str] = set()
        self._of = sum(len(_COMPILED.findall(source.decode())) for source in _sources())
        self._next = 0.0

    def of_function(self, *, filename_base: str, **_: object) -> _FunctionCode:
        """Return the code of one function, in place of numba's files."""
        return _FunctionCode(self, filename_base)

    def load(self, function: str, key: object) -> object:
        """Return code; None if there is none, so that numba compiles it."""
        code = self.entries.get((function, repr(key)))
        if code is None:
            if not self._compiles:
                raise NotStoredError(function)
            self._note_start()
            return None
        self._done.add(function)
        return _serialize.loads(code)

    def save(self, function: str, key: object, code: object) -> None:
        """Take code that was compiled."""
        self.entries[function, repr(key)] = _serialize.dumps(code)
        self._done.add(function)
        self.compiled.add(function)

    def _note_start(self) -> None:
        """Note that a function is going to be compiled."""
        now = time.monotonic()
        if not self._next:
            _log.info("compiling kernels, first start only, about 30 s")
        elif now >= self._next:
            facts = {"done": len(self._done), "of": self._of}
            _log.info("compiling kernels", extra={"facts": facts})
        else:
            return
        self._next = now + _EVERY_S

    def note_end(self) -> None:
        """Note that all functions are ready."""
        compiled = len(self.compiled)
        facts = {"compiled": compiled, "done": len(self._done), "of": self._of}
        level = logging.INFO if compiled else logging.DEBUG
        _log.log(level, "kernels are ready", extra={"facts": facts})


class _FunctionCode(NamedTuple):
    """The code of one function, with the methods of numba's IndexDataCacheFile."""

    code: _MachineCode
    function: str

    def load(self, key: object) -> object:
        """Return the code of a key; None if it is missing."""
        return self.code.load(self.function, key)

    def save(self, key: object, code: object) -> None:
        """Take the code of a key."""
        self.code.save(self.function, key, code)
