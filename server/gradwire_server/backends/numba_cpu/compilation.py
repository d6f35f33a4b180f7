"""Compiles the kernels, or loads them from numba's cache.

numba's index covers the processor and the source file of a function, but not the functions inlined
into it. So a digest of the package's sources and of numba's and llvmlite's versions names the
cache's folder.

numba loads machine code unchecked, and a flipped bit in it crashes the process or changes results.
So each file ends with a digest; a damaged file counts as missing. The code in it is stored with its
key, because processes that write one index concurrently may refer to each other's code.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import io
import logging
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from functools import partial
from importlib import import_module, resources
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, NamedTuple

import llvmlite
import numba

from gradwire_server.backends import cache_files

_PACKAGE = "gradwire_server.backends.numba_cpu"
# Compiler passes that find nothing to do in kernels written with vectors, and are slow.
_PASSES_OFF = ("LOOP_VECTORIZE", "SLP_VECTORIZE")
# The decorator of a function with its own entry in the cache.
_COMPILED = re.compile(r"^ *@(?:cfunc|njit)\(.*\bcache=True\)", re.MULTILINE)
# Seconds between log lines about a compilation.
_EVERY_S = 5.0

_caching: Any = import_module("numba.core.caching")
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
    """Return the kernels of this process, which the first call compiles or loads.

    folder  the cache; empty for gradwire/kernels in the user's cache folder. A cache that cannot be
            written to is read; code that it lacks is compiled in every process.
    """
    with _lock:
        if not _loaded:
            whole = Path(folder) if folder else cache_files.user_folder("kernels")
            part = _writable(whole)
            progress = _Progress()
            with _numba_caching_in(part, progress):
                _loaded.append(_import_or_recompile(part))
            progress.note_end()
            if part.parent == whole:
                cache_files.forget_others(part)
        return _loaded[0]


@contextlib.contextmanager
def _numba_caching_in(part: Path, progress: _Progress) -> Generator[None]:
    """Set up numba for the functions declared in the block; restore its settings afterwards."""
    settings = dict.fromkeys(_PASSES_OFF, 0) | {"CACHE_DIR": str(part)}
    before = {name: _config[name] for name in settings}
    # numba has no other way to change how a function is cached.
    files = _caching.IndexDataCacheFile
    _config.update(settings)
    _caching.IndexDataCacheFile = partial(_CheckedFiles, progress)
    try:
        yield
    finally:
        _config.update(before)
        _caching.IndexDataCacheFile = files


def _import_or_recompile(part: Path) -> Kernels:
    """Import the kernels; if that fails, empty the cache and try again."""
    try:
        return _import()
    except Exception:  # noqa: BLE001 - whatever loading a file raises
        _log.warning(
            "kernels are compiled again", exc_info=True, extra={"facts": {"in": str(part)}}
        )
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True, exist_ok=True)
        return _import()


def _import() -> Kernels:
    return Kernels(*(import_module(f"{_PACKAGE}.{name}") for name in Kernels._fields))


def _writable(folder: Path | None) -> Path:
    """Return the folder of this version of the code, or a private copy if it is read-only."""
    if folder is None:
        _log.warning("kernels cannot be cached: there is no home folder")
        return _private(None)
    part = folder / _version()
    try:
        part.mkdir(parents=True, exist_ok=True)
        # numba does not read folders that it cannot write to.
        tempfile.TemporaryFile(dir=part).close()
    except OSError as error:
        if not part.is_dir():
            _log.warning("kernels cannot be cached: %s", error)
        return _private(part)
    return part


def _private(part: Path | None) -> Path:
    """Return a folder of this process, with the files of a read-only one."""
    private = Path(tempfile.mkdtemp(prefix="gradwire-kernels-"))
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    if part is not None and part.is_dir():
        shutil.copytree(part, private, dirs_exist_ok=True)
        for one in (private, *private.rglob("*")):
            one.chmod(0o700)  # the copies are read-only too
    return private


def _sources() -> list[bytes]:
    files = sorted(resources.files(_PACKAGE).iterdir(), key=lambda one: one.name)
    return [one.read_bytes() for one in files if one.name.endswith(".py")]


def _version() -> str:
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for source in _sources():
        digest.update(source)
    return digest.hexdigest()[:16]


class _Progress:
    """Log lines about a long compilation, which count functions."""

    def __init__(self) -> None:
        self._of = sum(len(_COMPILED.findall(source.decode())) for source in _sources())
        self._done: set[str] = set()
        self._compiled: set[str] = set()
        self._next = 0.0

    def note(self, function: str, *, compiled: bool) -> None:
        """Note that a function is ready, for one signature at least."""
        self._done.add(function)
        if compiled:
            self._compiled.add(function)

    def note_start(self) -> None:
        """Note that a function is going to be compiled."""
        now = time.monotonic()
        if not self._compiled and not self._next:
            _log.info("compiling kernels, first start only, about 30 s")
        elif now >= self._next:
            facts = {"done": len(self._done), "of": self._of}
            _log.info("compiling kernels", extra={"facts": facts})
        else:
            return
        self._next = now + _EVERY_S

    def note_end(self) -> None:
        """Note that all functions are ready."""
        compiled = len(self._compiled)
        facts = {"compiled": compiled, "done": len(self._done), "of": self._of}
        level = logging.INFO if compiled else logging.DEBUG
        _log.log(level, "kernels are ready", extra={"facts": facts})


class _CheckedFiles(_caching.IndexDataCacheFile):  # type: ignore[misc]  # numba is untyped
    """The cache files of one function: an index, and code for each signature and closure."""

    def __init__(self, progress: _Progress, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)  # pyright: ignore[reportUnknownMemberType]
        self._files: Any = super()
        self._progress = progress

    def load(self, key: object) -> object:
        """Return the code of a key; None if it is missing, so numba compiles it."""
        stored, code = self._files.load(key) or (None, None)
        if stored == key:
            self._progress.note(self._index_path, compiled=False)
            return code
        self._progress.note_start()
        return None

    def save(self, key: object, code: object) -> None:
        """Store code if the disk has space; this process has it either way."""
        try:
            self._files.save(key, (key, code))
        except OSError as error:
            facts = {"file": self._index_path, "error": str(error)}
            _log.warning("kernels cannot be cached", extra={"facts": facts})
        self._progress.note(self._index_path, compiled=True)

    @contextlib.contextmanager
    def _open_for_write(self, filepath: str) -> Generator[BinaryIO]:
        with self._files._open_for_write(filepath) as file:  # noqa: SLF001 - of this class
            content = io.BytesIO()
            yield content
            file.write(content.getvalue() + cache_files.digest(content.getvalue()))

    def _load_index(self) -> Any:
        return self._files._load_index() if _is_whole(self._index_path) else {}  # noqa: SLF001

    def _load_data(self, name: str) -> Any:
        # A pickle ends before the digest, so numba does not read that.
        path = self._data_path(name)
        return self._files._load_data(name) if _is_whole(path) else None  # noqa: SLF001


def _is_whole(path: str) -> bool:
    return cache_files.read(Path(path)) is not None
