"""Files of numba's compiled code, each with a digest at its end, and read only if that is right.

numba reads a pickle from a file, which ends before that. A file that is not whole counts as
missing: what it held is compiled again, and it is written anew.
"""

from __future__ import annotations

import contextlib
import io
import logging
import time
from collections.abc import Generator
from contextlib import AbstractContextManager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from gradwire_server.backends import cache_files

_caching = import_module("numba.core.caching")
_log = logging.getLogger(__name__)
# Between two lines about a compilation.
_EVERY_S = 5.0


class CompileProgress:
    """Log lines about a compilation that takes long.

    functions  how many there are to compile or load; some have several signatures
    """

    def __init__(self, functions: int) -> None:
        self._functions = functions
        self._done: set[str] = set()
        self._compiled: set[str] = set()
        self._next = 0.0

    def note(self, function: str, *, compiled: bool) -> None:
        """Note that a function is there, with one signature at least."""
        self._done.add(function)
        if compiled:
            self._compiled.add(function)

    def note_end(self) -> None:
        """Note that all are there."""
        done, compiled = len(self._done), len(self._compiled)
        facts = {"compiled": compiled, "done": done, "of": self._functions}
        _log.log(
            logging.INFO if compiled else logging.DEBUG,
            "kernels are ready",
            extra={"facts": facts},
        )

    def note_start(self) -> None:
        """Note that one is going to be compiled."""
        now = time.monotonic()
        if not self._compiled and not self._next:
            _log.info("compiling kernels, first start only, about 30 s")
        elif now >= self._next:
            facts = {"done": len(self._done), "of": self._functions}
            _log.info("compiling kernels", extra={"facts": facts})
        else:
            return
        self._next = now + _EVERY_S


@contextlib.contextmanager
def checked(progress: CompileProgress) -> Generator[None]:
    """Have the functions that are declared in the meantime keep their code in such files."""
    # The class has been numba's for ten years, and there is no other way to give a function one.
    before = vars(_caching)["IndexDataCacheFile"]
    vars(_caching)["IndexDataCacheFile"] = partial(_CheckedFiles, progress)
    try:
        yield
    finally:
        vars(_caching)["IndexDataCacheFile"] = before


if TYPE_CHECKING:

    class _Files:
        """What is needed here of numba's class, which is not typed."""

        _index_path: str

        def __init__(self, *given: object, **named: object) -> None: ...
        def save(self, key: object, data: object) -> None: ...
        def load(self, key: object) -> object: ...
        def _open_for_write(self, filepath: str) -> AbstractContextManager[BinaryIO]: ...
        def _load_index(self) -> dict[object, str]: ...
        def _load_data(self, name: str) -> object: ...
        def _data_path(self, name: str) -> str: ...

else:
    _Files = _caching.IndexDataCacheFile


class _CheckedFiles(_Files):
    """The files of one function: an index, and code for each signature."""

    def __init__(self, progress: CompileProgress, *given: object, **named: object) -> None:
        super().__init__(*given, **named)
        self._progress = progress

    def load(self, key: object) -> object:
        """Return the code that is kept; None where there is none, which is compiled then."""
        found = super().load(key)
        if found is None:
            self._progress.note_start()
        else:
            self._progress.note(self._index_path, compiled=False)
        return found

    def save(self, key: object, data: object) -> None:
        """Keep code, unless there is no room for it: it is there for this process all the same."""
        try:
            super().save(key, data)
        except OSError as error:
            facts = {"file": self._index_path, "error": str(error)}
            _log.warning("what is compiled cannot be kept", extra={"facts": facts})
        self._progress.note(self._index_path, compiled=True)

    @contextlib.contextmanager
    def _open_for_write(self, filepath: str) -> Generator[BinaryIO]:
        with super()._open_for_write(filepath) as file:
            content = io.BytesIO()
            yield content
            file.write(content.getvalue() + cache_files.digest(content.getvalue()))

    def _load_index(self) -> dict[object, str]:
        return super()._load_index() if _is_whole(self._index_path) else {}

    def _load_data(self, name: str) -> object:
        path = self._data_path(name)
        if not _is_whole(path):
            raise FileNotFoundError(path)  # numba goes on without
        return super()._load_data(name)


def _is_whole(path: str) -> bool:
    return cache_files.read(Path(path)) is not None
