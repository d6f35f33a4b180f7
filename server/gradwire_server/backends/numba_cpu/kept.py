"""Files of compiled code: whether they are whole, and how long those of other versions are kept.

A flipped bit in machine code ends the process or gives other results, so that every file ends with
a digest of what is before it. numba reads a pickle from a file, which ends before that. A file
that is not whole counts as missing: what it held is compiled again, and it is written anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import re
import shutil
import time
from collections.abc import Generator
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

_caching = import_module("numba.core.caching")
_log = logging.getLogger(__name__)

_DIGEST_BYTES = 16
# Named by compilation.py; half removed where the process that did so ended.
_OF_A_VERSION = re.compile(r"([0-9a-f]{16})(\.going\.\d+)?")
_KEPT_S = 30 * 24 * 3600.0


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

        def _open_for_write(self, filepath: str) -> AbstractContextManager[BinaryIO]: ...
        def _load_index(self) -> dict[object, str]: ...
        def _load_data(self, name: str) -> object: ...
        def _data_path(self, name: str) -> str: ...

else:
    _Files = _caching.IndexDataCacheFile


class _CheckedFiles(_Files):
    """The files of one function: an index, and code for each signature."""

    @contextlib.contextmanager
    def _open_for_write(self, filepath: str) -> Generator[BinaryIO]:
        with super()._open_for_write(filepath) as file:
            content = io.BytesIO()
            yield content
            file.write(content.getvalue() + _digest(content.getvalue()))

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
    whole = content[-_DIGEST_BYTES:] == _digest(content[:-_DIGEST_BYTES])
    if not whole:
        _log.warning("damaged: it is compiled anew", extra={"facts": {"file": path}})
    return whole


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


def forget_others(part: Path) -> None:
    """Note that this version's part of a folder is in use, and remove those long out of use.

    A process that is about to read one of them finds nothing, and compiles.
    """
    with contextlib.suppress(OSError):
        os.utime(part)
        until = time.time() - _KEPT_S
        for other in part.parent.iterdir():
            if _OF_A_VERSION.fullmatch(other.name) and not other.is_symlink() and other != part:
                _remove_unused(other, until)


def _remove_unused(part: Path, until: float) -> None:
    """Remove a part if it was last used before a time; others may be about to do the same."""
    with contextlib.suppress(OSError):
        if part.is_dir() and part.stat().st_mtime < until:
            going = part.with_name(f"{part.name[:16]}.going.{os.getpid()}")
            part.rename(going)
            shutil.rmtree(going, ignore_errors=True)
            _log.info("removed: long unused", extra={"facts": {"folder": str(part)}})
