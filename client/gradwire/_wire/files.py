"""Small files, read again when they change: tokens and certificates.

Contents are compared, not modification times: a file that is swapped by a symbolic link, restored,
or written twice within one tick of the clock counts as changed.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")

LOOK_EVERY_S = 1.0
# Far more than thousands of tokens or certificates.
_MOST_BYTES = 1 << 20


def read_small(path: Path) -> bytes:
    """Return the content of a regular file of at most 1 MiB.

    Raises OSError for any other file: reading a pipe may block, and a device may have no end.
    """
    # Without O_NONBLOCK opening a pipe waits for a writer.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise OSError(errno.EFBIG, "more than 1 MiB", str(path))
    return content


class Reloaded(Generic[T]):
    """A value made from the contents of files; safe for threads.

    paths     of the files
    make      turns their contents into the value; raises ValueError for unusable contents
    on_error  called with the error of changed files, once per change; the value stays

    Raises ValueError or OSError if the files are unusable at first.
    """

    def __init__(
        self,
        paths: Sequence[str],
        make: Callable[[tuple[bytes, ...]], T],
        *,
        on_error: Callable[[Exception], object],
    ) -> None:
        self._paths = tuple(Path(path) for path in paths)
        self._make = make
        self._on_error = on_error
        self._seen: object = None
        contents = self._contents()
        self._value = make(contents)
        self._seen = contents
        self._looked = time.monotonic()

    def get(self) -> T:
        """Return the value; reread files after a second."""
        if time.monotonic() - self._looked >= LOOK_EVERY_S:
            self.look()
        return self._value

    def look(self) -> bool:
        """Read the files now; return whether the value has changed.

        Other threads get the current value meanwhile. There is no lock, since a fork could leave it
        locked.
        """
        self._looked = time.monotonic()
        try:
            contents = self._contents()
        except OSError as error:
            if self._seen != str(error):
                self._seen = str(error)
                self._on_error(error)
            return False
        if contents == self._seen:
            return False
        self._seen = contents
        try:
            self._value = self._make(contents)
        except ValueError as error:
            self._on_error(error)
            return False
        return True

    def _contents(self) -> tuple[bytes, ...]:
        return tuple(read_small(path) for path in self._paths)
