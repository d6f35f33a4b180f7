"""Files of numba's compiled code, each with a digest at its end, and read only if that is right.

numba reads a pickle from a file, which ends before that. A file that is not whole counts as
missing: what it held is compiled again, and it is written anew.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Generator
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from gradwire_server.backends.kept_files import DIGEST_BYTES, digest

_caching = import_module("numba.core.caching")
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def checked() -> Generator[None]:
    """Have the functions that are declared in the meantime keep their code in such files."""
    # The class has been numba's for ten years, and there is no other way to give a function one.
    before = vars(_caching)["IndexDataCacheFile"]
    vars(_caching)["IndexDataCacheFile"] = _CheckedFiles
    try:
        yield
    finally:
        vars(_caching)["IndexDataCacheFile"] = before


if TYPE_CHECKING:

    class _Files:
        """What is needed here of numba's class, which is not typed."""

        _index_path: str

        def save(self, key: object, data: object) -> None: ...
        def _open_for_write(self, filepath: str) -> AbstractContextManager[BinaryIO]: ...
        def _load_index(self) -> dict[object, str]: ...
        def _load_data(self, name: str) -> object: ...
        def _data_path(self, name: str) -> str: ...

else:
    _Files = _caching.IndexDataCacheFile


class _CheckedFiles(_Files):
    """The files of one function: an index, and code for each signature."""

    def save(self, key: object, data: object) -> None:
        """Keep code, unless there is no room for it: it is there for this process all the same."""
        try:
            super().save(key, data)
        except OSError as error:
            facts = {"file": self._index_path, "error": str(error)}
            _log.warning("what is compiled cannot be kept", extra={"facts": facts})

    @contextlib.contextmanager
    def _open_for_write(self, filepath: str) -> Generator[BinaryIO]:
        with super()._open_for_write(filepath) as file:
            content = io.BytesIO()
            yield content
            file.write(content.getvalue() + digest(content.getvalue()))

    def _load_index(self) -> dict[object, str]:
        return super()._load_index() if _is_whole(self._index_path) else {}

    def _load_data(self, name: str) -> object:
        path = self._data_path(name)
        if not _is_whole(path):
            raise FileNotFoundError(path)  # numba goes on without
        return super()._load_data(name)


def _is_whole(path: str) -> bool:
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        return False
    whole = content[-DIGEST_BYTES:] == digest(content[:-DIGEST_BYTES])
    if not whole:
        _log.warning("damaged: it is compiled anew", extra={"facts": {"file": path}})
    return whole
