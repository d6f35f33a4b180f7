"""What files hold, read anew when they change: tokens and certificates are replaced in use.

The content itself is compared, not the time of its last change: files that are swapped by symbolic
links, restored, or written twice within one tick of the clock are all seen. They are small.
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
    """Return what a file holds; OSError where it is no regular file, or one of more than 1 MiB.

    A pipe would be waited for, and a device may have no end.
    """
    # Opening a pipe waits for who writes to it, but for this flag.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise OSError(errno.EFBIG, "more than 1 MiB", str(path))
    return content


class Reloaded(Generic[T]):
    """A value made of the contents of files. Any number of threads may use it.

    paths     of the files
    make      turns their contents into the value; raises ValueError where that cannot be
    on_error  called with what is wrong with changed files, once for each change; the value stays

    Raises ValueError or OSError where the files cannot be used at first.
    """

    def __init__(
        self,
        paths: Sequence[str],
        make: Callable[[tuple[bytes, ...]], T],
        *,
        on_error: Callable[[Exception], object],
        every_s: float = LOOK_EVERY_S,
    ) -> None:
        self._paths = tuple(Path(path) for path in paths)
        self._make = make
        self._on_error = on_error
        self._every_s = every_s
        self._seen: object = None
        contents = self._contents()
        self._value = make(contents)
        self._seen = contents
        self._looked = time.monotonic()

    def get(self) -> T:
        """Return the value; look at the files where that was a second ago or more."""
        if time.monotonic() - self._looked >= self._every_s:
            self.look()
        return self._value

    def look(self) -> bool:
        """Look at the files now; return whether the value is a new one.

        Threads that come meanwhile have the value as it is: no lock, which a fork could leave shut.
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
