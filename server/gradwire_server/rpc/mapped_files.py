"""Files of other processes, mapped into memory, and registered by name.

Which names are taken at all is the operator's choice: servers that took any name let callers read
and write memory of others.

The owner of such a file can make it shorter at any time, unless it is sealed. Reading or writing a
missing page raises SIGBUS, which would end this process. The handler puts private, zeroed pages in
the place of the file's, from the missing one on, so that the computation goes on, and notes that:
its call is refused in the end. The signal is raised in the thread, and at the instruction, that
accesses the page. No lock is held there, so Python code can handle it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import stat
import weakref
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Final

import numpy as np

from gradwire import v1
from gradwire_server.config.settings import Settings
from gradwire_server.errors import InvalidDataError, InvalidFieldError, UnsupportedCallError
from gradwire_server.rpc.codec import Bytes

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED: Final = ctypes.c_void_p(-1).value
_WRITABLE: Final = mmap.PROT_READ | mmap.PROT_WRITE
# Flags of mmap that Python's module lacks, as Linux has them.
_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = 0x4000

# Of addresses at which results may be computed.
ALIGNMENT: Final = 64
_FOLDER: Final = "/dev/shm"  # noqa: S108 - where POSIX shared memory is
_MOST_REGIONS: Final = 256


def mapped(field: str, file: int, length: int, flags: int = 0) -> ctypes.Array[ctypes.c_char]:
    """Map a file for reading and writing.

    Raises InvalidFieldError if it cannot be.

    The file is unmapped with the last view. Python's mmap would keep a file descriptor of each.
    """
    address = _LIBC.mmap(None, length, _WRITABLE, mmap.MAP_SHARED | flags, file, 0)
    if address == _FAILED:
        reason = os.strerror(ctypes.get_errno())
        raise InvalidFieldError(field, f"the file cannot be mapped: {reason}")
    mapping = (ctypes.c_char * length).from_address(address)
    weakref.finalize(mapping, _unmap, address, length).atexit = False
    return mapping


# Lengths of files that regions have mapped, and those with missing pages, by address.
_unsealed: Final[dict[int, int]] = {}
_cut: Final[set[int]] = set()


def _unmap(address: int, length: int) -> None:
    _unsealed.pop(address, None)
    _cut.discard(address)
    _LIBC.munmap(address, length)


class _Action(ctypes.Structure):
    """struct sigaction of Linux's C libraries."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * (1024 // 8 // ctypes.sizeof(ctypes.c_ulong))),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_SA_SIGINFO: Final = 4
# Offset of si_addr in siginfo_t, on 64-bit systems.
_SI_ADDR: Final = 16
_former: Final = _Action()


def _replace_missing(_number: int, info: int, _context: Any) -> None:
    """Handle SIGBUS."""
    at = (ctypes.c_size_t.from_address(info + _SI_ADDR).value) // mmap.PAGESIZE * mmap.PAGESIZE
    for address, length in tuple(_unsealed.items()):
        if address <= at < address + length:
            _cut.add(address)
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED | _MAP_NORESERVE
            if _LIBC.mmap(at, address + length - at, _WRITABLE, flags, -1, 0) != _FAILED:
                return
    # The instruction is repeated, and meets the former handler, which may end the process.
    _LIBC.sigaction(signal.SIGBUS, ctypes.byref(_former), None)


_handler: Final = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(
    _replace_missing
)


@cache
def _handle_missing_pages() -> None:
    address = ctypes.cast(_handler, ctypes.c_void_p).value
    action = _Action(handler=address, flags=_SA_SIGINFO)
    _LIBC.sigaction(signal.SIGBUS, ctypes.byref(action), ctypes.byref(_former))


class Region:
    """A part of a file that may become shorter.

    told    its name, key, offset and byte_size
    memory  its bytes
    inode   of the file
    """

    def __init__(self, file: int, told: dict[str, Any]) -> None:
        """Raise InvalidFieldError if it cannot be mapped."""
        _handle_missing_pages()
        length = told["offset"] + told["byte_size"]
        mapping = mapped("key", file, length)
        self._address = ctypes.addressof(mapping)
        _unsealed[self._address] = length
        self.told, self.inode = told, os.fstat(file).st_ino
        self.memory: Bytes = np.frombuffer(memoryview(mapping), np.uint8)[told["offset"] :]

    def check(self, field: str) -> None:
        """Raise InvalidDataError if pages were missing."""
        if self._address in _cut:
            raise InvalidDataError(
                field, "its shared memory has become shorter, or there is no memory for its pages"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Range:
    """A tensor's bytes in a region."""

    region: Region
    data: Bytes

    def takes_result(self, source: Range | None) -> bool:
        """Whether a result may be computed in place.

        It is aligned then, and in another file than its source.
        """
        is_apart = source is None or source.region.inode != self.region.inode
        return is_apart and self.data.ctypes.data % ALIGNMENT == 0

    def store(self, result: memoryview) -> None:
        """Copy a result, unless it was computed in place."""
        computed = np.frombuffer(result, np.uint8)
        if not np.may_share_memory(computed, self.data):
            self.data[:] = computed


class Regions:
    """All registered regions, by name. Used from one event loop only."""

    def __init__(self, settings: Settings) -> None:
        self._pattern = settings.open_inference_memory
        self._users = settings.users_sharing_memory
        self._all: dict[str, Region] = {}

    def register(self, request: Any) -> dict[str, Any]:
        """Map a file; raise InvalidFieldError or UnsupportedCallError."""
        if not self._pattern:
            raise UnsupportedCallError("the server needs --open-inference-memory to take names")
        told = {name: getattr(request, name) for name in ("name", "key", "offset", "byte_size")}
        if not request.name or request.name in self._all:
            raise InvalidFieldError("name", "empty or registered; give another one")
        if len(self._all) >= _MOST_REGIONS:
            raise InvalidFieldError("name", f"{_MOST_REGIONS} regions are registered, the most")
        file = self._open(request.key)
        try:
            size = os.fstat(file).st_size
            if not request.byte_size or request.offset + request.byte_size > size:
                came = f"{request.byte_size} from offset {request.offset} on"
                raise InvalidFieldError("byte_size", f"{came}; the file has {size}")
            self._all[request.name] = Region(file, told)
        finally:
            os.close(file)
        return {}

    def _open(self, key: str) -> int:
        name = key.removeprefix("/")
        if "/" in name or not fnmatchcase(name, self._pattern):
            raise InvalidFieldError("key", f"{key!r}; the server takes names like {self._pattern}")
        # One error for all reasons: it must not tell which files of others there are.
        refused = InvalidFieldError("key", f"{key!r} is not a file that callers may share")
        try:
            file = os.open(f"{_FOLDER}/{name}", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (OSError, ValueError):  # ValueError for a zero byte
            raise refused from None
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in self._users:
            os.close(file)
            raise refused
        return file

    def unregister(self, request: Any) -> dict[str, Any]:
        """Forget a region, or all of them for an empty name.

        Unknown names are no error.
        """
        for name in self._named(request):
            del self._all[name]
        return {}

    def statuses(self, request: Any) -> dict[str, Any]:
        """Return RegionStatus of a region, or of all for an empty name."""
        return {"regions": {name: self._all[name].told for name in self._named(request)}}

    def _named(self, request: Any) -> list[str]:
        return [name for name in self._all if request.name in {"", name}]

    def find(self, field: str, named: v1.SharedRange) -> Range:
        """Return a range.

        Raises InvalidFieldError if no region has it, or bytes are missing.
        """
        name, first, length = named.handle, named.offset, named.length
        region = self._all.get(name)
        if region is None:
            raise InvalidFieldError(field, f"shared memory region {name!r} is not registered")
        if first < 0 or length < 0 or first + length > len(region.memory):
            came = f"{length} bytes from offset {first} of shared memory region {name!r}"
            raise InvalidFieldError(field, f"{came}, which has {len(region.memory)}")
        region.check(field)
        return Range(region, region.memory[first : first + length])
