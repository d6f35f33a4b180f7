"""Files of other processes, mapped into memory.

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
import weakref
from functools import cache
from typing import Any, Final

import numpy as np

from gradwire_server.errors import InvalidDataError, InvalidFieldError
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


class UnsealedFile:
    """Memory of a file that may become shorter.

    memory  its bytes
    """

    def __init__(self, file: int, length: int) -> None:
        """Raise InvalidFieldError if it cannot be mapped."""
        _handle_missing_pages()
        mapping = mapped("key", file, length)
        self._address = ctypes.addressof(mapping)
        _unsealed[self._address] = length
        self.memory: Bytes = np.frombuffer(memoryview(mapping), np.uint8)

    def check(self, field: str) -> None:
        """Raise InvalidDataError if pages were missing."""
        if self._address in _cut:
            raise InvalidDataError(
                field, "its shared memory has become shorter, or there is no memory for its pages"
            )


# Lengths of mapped unsealed files, and those with missing pages, by address.
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
