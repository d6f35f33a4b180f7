"""The float environment that the numerics contract assumes, whatever other libraries set.

Flush-to-zero, denormals-are-zero and the rounding direction belong to the thread. Libraries change
them (code built with -ffast-math when it is loaded), and then the same sums have other bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

# Variables, because the compiler of Python would work out products and sums of literals itself.
_one = 1.0
_denormal = 5e-324
_little = 2.0**-60

# More than the fenv_t of any platform, which is 32 bytes on x86-64.
_ENVIRONMENT_BYTES = 512

_UNCHANGED = nullcontext()


def is_default() -> bool:
    """Whether this thread keeps denormals and rounds to nearest. Takes less than a microsecond."""
    keeps_denormals = _denormal * _one != 0
    return keeps_denormals and _one + _little == _one == _one - _little


def default_float_environment() -> AbstractContextManager[None]:
    """Run the block in the default environment and give the thread its own back afterwards.

    Does nothing where the environment is the default already, nor where the C library offers no
    way to change it.
    """
    library = None if is_default() else _library()
    return _UNCHANGED if library is None else _changed(library)


@contextmanager
def _changed(library: ctypes.CDLL) -> Generator[None]:
    saved = ctypes.create_string_buffer(_ENVIRONMENT_BYTES)
    library.fegetenv(saved)
    library.fesetenv(_default(library))
    try:
        yield
    finally:
        library.fesetenv(saved)


@cache
def _library() -> ctypes.CDLL | None:
    """Find <fenv.h> of the C library: part of the process itself, or of glibc's libm."""
    for name in (None, "libm.so.6"):
        try:
            library = ctypes.CDLL(name)
            if library.fegetenv and library.fesetenv:
                return library
        except (AttributeError, OSError):
            continue
    return None


def _default(library: ctypes.CDLL) -> ctypes.c_void_p:
    """FE_DFL_ENV: (const fenv_t *) -1 in glibc and musl, the address of a variable in macOS."""
    try:
        variable = ctypes.c_char.in_dll(library, "_FE_DFL_ENV")
    except ValueError:
        return ctypes.c_void_p(-1)
    return ctypes.c_void_p(ctypes.addressof(variable))
