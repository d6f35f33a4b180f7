"""System shared memory that clients registered by name.

Which files may be named at all is the operator's choice: servers that took any name let callers
read and write memory of others.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from gradwire import v1
from gradwire_server.config.settings import Settings
from gradwire_server.errors import InvalidFieldError, UnsupportedCallError
from gradwire_server.rpc.call_context import Context
from gradwire_server.rpc.codec import Bytes
from gradwire_server.rpc.mapped_files import UnsealedFile
from gradwire_server.rpc.segments import ALIGNMENT
from gradwire_server.security.authorization import is_local

_FOLDER = "/dev/shm"  # noqa: S108 - where POSIX shared memory is
_MOST_REGIONS = 256
_MOST_NAME = 255


class Region(UnsealedFile):
    """A registered part of a file.

    told  name, key, offset and byte_size
    """

    def __init__(self, file: int, told: dict[str, Any]) -> None:
        super().__init__(file, told["offset"] + told["byte_size"])
        self.told = told


@dataclass(frozen=True, slots=True, eq=False)
class Range:
    """A tensor's bytes in a region."""

    region: Region
    data: Bytes

    def takes_result(self, source: Range | None) -> bool:
        """Whether a result may be computed in place.

        It is aligned then, and known to be apart from its source.
        """
        if self.data.ctypes.data % ALIGNMENT:
            return False
        if source is None or source.region.told["key"] != self.region.told["key"]:
            return True
        return source.region is self.region and not np.may_share_memory(self.data, source.data)

    def store(self, result: memoryview) -> None:
        """Copy a result, unless it was computed in place."""
        computed = np.frombuffer(result, np.uint8)
        if not np.may_share_memory(computed, self.data):
            self.data[...] = computed


class Regions:
    """All registered regions, by name. Used from one event loop only."""

    def __init__(self, settings: Settings) -> None:
        self._pattern = settings.open_inference_memory
        self._users = {os.geteuid(), *settings.users_sharing_memory}
        self._all: dict[str, Region] = {}

    def register(self, request: Any, context: Context) -> dict[str, Any]:
        """Map a file; raise InvalidFieldError or UnsupportedCallError."""
        if not self._pattern:
            raise UnsupportedCallError(
                "system shared memory is off; --open-inference-memory of the server turns it on"
            )
        check_local(context)
        told = {name: getattr(request, name) for name in ("name", "key", "offset", "byte_size")}
        if not request.name or len(request.name) > _MOST_NAME or request.name in self._all:
            raise InvalidFieldError("name", "empty, too long or registered; give another one")
        if len(self._all) >= _MOST_REGIONS:
            raise InvalidFieldError("name", f"{_MOST_REGIONS} regions are registered, the most")
        file = self._open(request.key)
        try:
            size, end = os.fstat(file).st_size, request.offset + request.byte_size
            if not request.byte_size or end > size:
                raise InvalidFieldError(
                    "byte_size",
                    f"{request.byte_size} from offset {request.offset} on; the file has {size}",
                )
            self._all[request.name] = Region(file, told)
        finally:
            os.close(file)
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
        return {"regions": {name: self._all[name].told for name in self._named(request, context)}}

    def _named(self, request: Any, context: Context) -> list[str]:
        """Return names of registered regions; callers of other machines have none."""
        if not is_local(context.peer()):
            return []
        return [name for name in self._all if request.name in {"", name}]

    def find(self, field: str, named: v1.SharedRange) -> Range:
        """Return a range.

        Raises InvalidFieldError if no region has it, or bytes are missing.
        """
        name, offset, length = named.handle, named.offset, named.length
        region = self._all.get(name)
        if region is None:
            raise InvalidFieldError(field, f"shared memory region {name!r} is not registered")
        size = region.told["byte_size"]
        if offset < 0 or length < 0 or offset + length > size:
            raise InvalidFieldError(
                field,
                f"{length} bytes from offset {offset} of shared memory region {name!r}, which has "
                f"{size}",
            )
        offset += region.told["offset"]
        region.check(field)
        return Range(region, region.memory[offset : offset + length])


def check_local(context: Context) -> None:
    """Raise UnsupportedCallError unless the caller is on this machine."""
    if not is_local(context.peer()):
        raise UnsupportedCallError("shared memory takes callers on the server's machine")
