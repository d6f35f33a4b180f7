"""System shared memory that clients registered by name.

It is read and written, never mapped. The owner of such a file can shrink it at any time, and
reading a missing page of a mapping would kill the server (SIGBUS). pread and pwrite report it
instead. Which files may be named at all is the operator's choice: servers that took any name let
callers read and write memory of others.
"""

from __future__ import annotations

import os
import stat
import weakref
from fnmatch import fnmatchcase
from typing import Any

from gradwire_server.config.settings import Settings
from gradwire_server.errors import InvalidDataError, InvalidFieldError, UnsupportedCallError
from gradwire_server.rpc.call_context import Context
from gradwire_server.rpc.codec import Bytes
from gradwire_server.security.authorization import is_local

_FOLDER = "/dev/shm"  # noqa: S108 - where POSIX shared memory is
_MOST_REGIONS = 256
_MOST_NAME = 255


class Region:
    """A registered part of a file, open until nothing refers to it."""

    def __init__(self, file: int, key: str, offset: int, byte_size: int) -> None:
        self.file, self.key, self.offset, self.byte_size = file, key, offset, byte_size
        weakref.finalize(self, os.close, file)

    def read(self, at: int, data: Bytes) -> None:
        """Fill data; raise InvalidDataError if the file has become shorter."""
        if os.preadv(self.file, [data.data], self.offset + at) != len(data):
            raise InvalidDataError("inputs", f"the memory {self.key!r} has become shorter")

    def write(self, at: int, data: Bytes) -> None:
        """Write data; raise InvalidDataError if the file has become shorter."""
        at += self.offset
        try:
            short = os.fstat(self.file).st_size < at + len(data)
            written = 0 if short else os.pwritev(self.file, [data.data], at)
        except OSError:  # no memory is left for its pages
            written = 0
        if written != len(data):
            raise InvalidDataError("outputs", f"the memory {self.key!r} cannot be written")


class Regions:
    """All registered regions, by name. Used from one event loop only."""

    def __init__(self, settings: Settings) -> None:
        self._pattern = settings.open_inference_memory
        self._users = {os.geteuid(), *settings.users_sharing_memory}
        self._all: dict[str, Region] = {}

    def register(self, request: Any, context: Context) -> dict[str, Any]:
        """Open and check a file; raise InvalidFieldError or UnsupportedCallError."""
        if not self._pattern:
            raise UnsupportedCallError(
                "system shared memory is off; --open-inference-memory of the server turns it on"
            )
        check_local(context)
        if not request.name or len(request.name) > _MOST_NAME or request.name in self._all:
            raise InvalidFieldError("name", "empty, too long or registered; give another one")
        if len(self._all) >= _MOST_REGIONS:
            raise InvalidFieldError("name", f"{_MOST_REGIONS} regions are registered, the most")
        file = self._open(request.key)
        region = Region(file, request.key, request.offset, request.byte_size)
        size, end = os.fstat(file).st_size, request.offset + request.byte_size
        if not request.byte_size or end > size:
            raise InvalidFieldError(
                "byte_size",
                f"{request.byte_size} from offset {request.offset} on; the file has {size}",
            )
        self._all[request.name] = region
        return {}

    def _open(self, key: str) -> int:
        name = key.removeprefix("/")
        if "/" in name or "\0" in name or name in {"", ".", ".."} or len(name) > _MOST_NAME:
            raise InvalidFieldError("key", f"{key[:_MOST_NAME]!r}; a name such as /name is needed")
        if not fnmatchcase(name, self._pattern):
            raise InvalidFieldError("key", f"{key!r}; the server takes names like {self._pattern}")
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        # One error for all reasons: it must not tell which files of others there are.
        refused = InvalidFieldError("key", f"{key!r} is not a file that callers may share")
        try:
            file = os.open(f"{_FOLDER}/{name}", flags)
        except OSError:
            raise refused from None
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in self._users:
            os.close(file)
            raise refused
        return file

    def unregister(self, request: Any, context: Context) -> dict[str, Any]:
        """Forget a region, or all of them for an empty name.

        Unknown names are no error.
        """
        for name in self._named(request, context):
            del self._all[name]
        return {}

    def statuses(self, request: Any, context: Context) -> dict[str, Any]:
        """Return RegionStatus of a region, or of all for an empty name."""
        regions = {name: self._all[name] for name in self._named(request, context)}
        return {
            "regions": {
                name: {"name": name, "key": r.key, "offset": r.offset, "byte_size": r.byte_size}
                for name, r in regions.items()
            }
        }

    def _named(self, request: Any, context: Context) -> list[str]:
        """Return names of registered regions; callers of other machines have none."""
        if not is_local(context.peer()):
            return []
        return [name for name in self._all if request.name in {"", name}]

    def find(self, field: str, name: str, offset: int, byte_size: int) -> Region:
        """Return a region; raise InvalidFieldError if it has no such range."""
        region = self._all.get(name)
        if region is None:
            raise InvalidFieldError(field, f"shared memory region {name!r} is not registered")
        if offset < 0 or byte_size < 0 or offset + byte_size > region.byte_size:
            raise InvalidFieldError(
                field,
                f"{byte_size} bytes from offset {offset} of shared memory region {name!r}, which "
                f"has {region.byte_size}",
            )
        return region


def check_local(context: Context) -> None:
    """Raise UnsupportedCallError unless the caller is on this machine."""
    if not is_local(context.peer()):
        raise UnsupportedCallError("shared memory takes callers on the server's machine")
