"""The machine code of compiled functions, as assembly."""

from __future__ import annotations

import gc
import re
from functools import cache
from importlib import import_module
from typing import Any

_PACKAGE = "gradwire_server.backends.numba_cpu"

# Instructions that multiply and add with one rounding: of x86-64, AArch64, POWER and RISC-V; and
# the functions of C's library that do.
_FUSED = re.compile(
    r"^\s+(v?fn?m(?:add|sub|la|ls)\w*|xv?s?n?m(?:add|sub)\w*|fml[as]l?2?)\b|\b(fmaf?)\b",
    re.MULTILINE,
)


def fused(assembly: str) -> list[str]:
    return [one or other for one, other in _FUSED.findall(assembly)]


@cache
def of_kernels() -> dict[str, str]:
    import_module(f"{_PACKAGE}.compilation").load("")
    texts: dict[str, str] = {}
    for function in compiled_functions():
        name = f"{function.__wrapped__.__module__}.{function.__qualname__}"
        texts[name] = "\n".join([texts.get(name, ""), *of_function(function)])
    return texts


def compiled_functions() -> list[Any]:
    kinds = {"CFunc", "CPUDispatcher"}
    found = [one for one in gc.get_objects() if type(one).__name__ in kinds]
    return [one for one in found if one.__wrapped__.__module__.startswith(f"{_PACKAGE}.")]


def of_function(function: Any) -> list[str]:
    """Return the assembly of a function of numba's, of each type.

    It is made from LLVM's optimized code, which is kept with what is loaded from a cache, too;
    numba itself does not show that.
    """
    if type(function).__name__ == "CFunc":
        libraries = [function._library]  # noqa: SLF001 - numba has no other way
    else:
        libraries = [one.library for one in function.overloads.values()]
    return [
        str(one.codegen._tm.emit_assembly(one._get_module_for_linking()))  # noqa: SLF001 - likewise
        for one in libraries
    ]
