"""Kernels on the CPU: a library of them, device memory beside guard pages, and launches."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from cudasim.compiler import Mode, library

Array = npt.NDArray[Any]
Extent = tuple[int, ...]

# Orders in which the threads of a block run; other numbers seed a new permutation at each barrier.
FORWARD, REVERSE = 0, 1


_ALIGNMENT = 16  # of device pointers
# Where an allocation lies.
_ENDS_AT_GUARD, _BEGINS_AT_GUARD, _ON_HEAP, _SPARSE = range(4)


class SimError(Exception):
    """Raised when a launch went wrong: illegal addresses, divergent barriers, wrong arguments."""


class Buffer:
    """Device memory, full of NaN unless sparse; given back when nothing refers to it."""

    def __init__(self, module: Module, nbytes: int, placing: int) -> None:
        self._module, self.nbytes = module, nbytes
        self.address = int(module.api.sim_malloc(nbytes, placing, _ALIGNMENT) or 0)
        if not self.address:
            raise MemoryError(f"{nbytes} bytes of simulated device memory")

    def view(self, dtype: npt.DTypeLike, count: int, *, first: int = 0) -> Array:
        size = np.dtype(dtype).itemsize
        assert first >= 0
        assert (first + count) * size <= self.nbytes
        memory = (ctypes.c_char * (count * size)).from_address(self.address + first * size)
        return np.frombuffer(memoryview(memory).cast("B"), np.uint8).view(dtype)

    def protect(self, *, writable: bool = False) -> None:
        self._module.api.sim_protect(self.address, writable)

    def __del__(self) -> None:
        if getattr(self, "address", 0):
            self._module.api.sim_free(self.address)


class Module:
    """A library of kernels, launched by the names they were compiled under.

    names   library's alias of each kernel
    limits  of a kernel whose source does not declare them: most threads of a block, or 0, and bytes
            of shared memory
    """

    def __init__(
        self,
        path: Path,
        mode: Mode,
        names: Mapping[str, str],
        limits: Mapping[str, tuple[int, int]] = MappingProxyType({}),
    ) -> None:
        self.mode, self._names, self._limits = mode, names, limits
        self.api = ctypes.CDLL(str(path))
        self.api.sim_malloc.restype = ctypes.c_void_p
        self.api.sim_malloc.argtypes = (ctypes.c_size_t, ctypes.c_int, ctypes.c_size_t)
        self.api.sim_free.argtypes = (ctypes.c_void_p,)
        self.api.sim_protect.argtypes = (ctypes.c_void_p, ctypes.c_int)
        self.api.sim_error.restype = ctypes.c_char_p

    def buffer(self, nbytes: int, *, order: int = FORWARD) -> Buffer:
        """Return fresh memory; its end is guarded, or its beginning where threads run backwards."""
        if self.mode is not Mode.PLAIN:
            return Buffer(self, nbytes, _ON_HEAP)  # the sanitizer guards every byte
        return Buffer(self, nbytes, _BEGINS_AT_GUARD if order == REVERSE else _ENDS_AT_GUARD)

    def sparse(self, nbytes: int) -> Buffer:
        """Return zeros that take no memory until they are written to."""
        return Buffer(self, nbytes, _SPARSE)

    def holding(self, array: Array, *, order: int = FORWARD) -> Buffer:
        """Return memory that holds an array's elements and can only be read."""
        made = self.buffer(array.nbytes, order=order)
        made.view(array.dtype, array.size).reshape(array.shape)[...] = array
        made.protect()
        return made

    def launch(
        self,
        name: str,
        grid: Extent,
        block: Extent,
        arguments: Sequence[Buffer | np.generic],
        *,
        order: int = FORWARD,
        blocks: tuple[int, int] = (0, 2**63),
    ) -> None:
        """Run a kernel.

        arguments  pointers as buffers, scalars of exactly the types the kernel declares
        blocks     the first and the one after the last, in linear order, that run

        Raises SimError that names what went wrong and the thread it went wrong in.
        """
        alias = self._names[name]
        values = [
            np.asarray(np.uint64(one.address) if isinstance(one, Buffer) else one)
            for one in arguments
        ]
        sizes = [value.itemsize for value in values]
        sizes_of = getattr(self.api, f"sim_sizes_{alias}")
        sizes_of(found := (ctypes.c_int * sizes_of(None))())
        wanted = list(found)
        if sizes != wanted:
            raise SimError(f"{name} takes arguments of {wanted} bytes; {sizes} came")
        pointers = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
        grids = [(ctypes.c_uint * 3)(*(*sides, 1, 1)[:3]) for sides in (grid, block)]
        most_threads, shared_bytes = self._limits.get(name, (0, 0))
        shared, numbers = ctypes.c_size_t(shared_bytes), map(ctypes.c_uint, (order, most_threads))
        kernel, part = getattr(self.api, f"sim_kernel_{alias}"), map(ctypes.c_size_t, blocks)
        wrong = self.api.sim_launch(kernel, pointers, *grids, shared, *numbers, *part)
        if wrong:
            raise SimError(f"{name}: {self.api.sim_error().decode()}")


def compiled(folder: Path, kernels: Collection[tuple[str, str]], mode: Mode = Mode.PLAIN) -> Module:
    """Compile kernels of a folder's sources with g++.

    kernels  (source, name expression) of each, such as ("march.cu", "march<float, 4>"); launched
             by the expression
    """
    aliases = {one: f"k{number}" for number, one in enumerate(sorted(kernels))}
    units = [
        _unit(source, {one: aliases[source, one] for one in some})
        for source in sorted({source for source, _ in kernels})
        for some in batched(sorted(one for file, one in kernels if file == source))
    ]
    files = sorted([*folder.glob("*.cu"), *folder.glob("*.cuh")])
    headers = {one.name: f'#line 1 "{one.name}"\n{one.read_text()}' for one in files}
    path = library(units, mode, headers=headers)
    return Module(path, mode, {expression: alias for (_, expression), alias in aliases.items()})


def batched(names: Sequence[str], size: int = 8) -> list[Sequence[str]]:
    return [names[first : first + size] for first in range(0, len(names), size)]


def _unit(source: str, aliases: Mapping[str, str]) -> str:
    # Unnamed: kernels and helpers of other files may have the same names.
    lines = ['#include "cudasim_half.h"', "namespace {", f'#include "{source}"', "}"]
    lines += [f"CUDASIM_EXPORT({alias}, {name})" for name, alias in aliases.items()]
    return "\n".join(lines) + "\n"
