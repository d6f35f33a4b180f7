"""The default float environment, which the numerics contract assumes.

Flush-to-zero, denormals-are-zero and the rounding direction are per thread. Other libraries change
them (code built with -ffast-math does when it is loaded), which changes the bits of results.
"""

from __future__ import annotations

import ctypes
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

# Variables, because Python's compiler folds products and sums of literals.
_one = 1.0
_denormal = 5e-324
_little = 2.0**-60

# More than the fenv_t of any platform, which is 32 bytes on x86-64.
_ENVIRONMENT_BYTES = 512

_UNCHANGED = nullcontext()


def is_default() -> bool:
    """Return whether this thread keeps denormals and rounds to nearest.

    Takes less than a microsecond.
    """
    keeps_denormals = _denormal * _one != 0
    return keeps_denormals and _one + _little == _one == _one - _little


def default_float_environment() -> AbstractContextManager[None]:
    """Run the block in the default environment; restore the thread's own afterwards.

    Do nothing if the environment is already the default, or if the C library offers no way to
    change it.
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
    """Find the functions of <fenv.h>.

    They are in the process itself or in glibc's libm.
    """
    for name in (None, "libm.so.6"):
        try:
            library = ctypes.CDLL(name)
            if library.fegetenv and library.fesetenv:
                return library
        except (AttributeError, OSError):
            continue
    return None


def _default(library: ctypes.CDLL) -> ctypes.c_void_p:
    """Return FE_DFL_ENV.

    It is (const fenv_t *) -1 in glibc and musl, a variable's address in macOS.
    """
    try:
        variable = ctypes.c_char.in_dll(library, "_FE_DFL_ENV")
    except ValueError:
        return ctypes.c_void_p(-1)
    return ctypes.c_void_p(ctypes.addressof(variable))
