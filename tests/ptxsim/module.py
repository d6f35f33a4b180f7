"""Kernels as NVRTC compiled them, on the CPU: PTX through C++ onto the simulator's runtime."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cudasim.compiler import Mode, library
from cudasim.module import Module, batched
from ptxsim import translate
from ptxsim.operands import Scope
from ptxsim.parser import Entry, entries

_SECTOR_BYTES = 32

# Loads, stores, accesses to shared and to local memory.
_KINDS = 4


@dataclass(frozen=True, slots=True)
class Traffic:
    """Accesses of one kind.

    requests  of a warp's lanes at once
    sectors   of 32 bytes that each of these touches, summed
    """

    requests: int
    sectors: int


@dataclass(frozen=True, slots=True)
class Counts:
    """What launches did.

    instructions  of all threads
    loads         from global memory, stores likewise, shared of both kinds
    loaded        bytes of global memory that were loaded at least once, stored likewise
    """

    instructions: int
    loads: Traffic
    stores: Traffic
    shared: Traffic
    loaded: int
    stored: int


class PtxModule(Module):
    """Entries of PTX texts, launched by the names they were compiled under."""

    def __init__(
        self, path: Path, mode: Mode, names: Mapping[str, str], found: Mapping[str, Entry]
    ) -> None:
        super().__init__(
            path,
            mode,
            names,
            most_threads={name: entry.most_threads for name, entry in found.items()},
            static={name: Scope.of(entry).shared for name, entry in found.items()},
        )
        self.api.sim_counts.argtypes = (ctypes.c_void_p,)

    def reset_counts(self) -> None:
        """Begin to count anew."""
        self.api.sim_reset_counts()

    def counts(self) -> Counts:
        """Return what launches since then did; the module must have been compiled to count."""
        held = np.zeros(1 + 2 * _KINDS + 2, np.uint64)
        self.api.sim_counts(held.ctypes.data)
        instructions, *counted, loaded, stored = held.tolist()
        loads, stores, shared, _ = (Traffic(*counted[kind::_KINDS]) for kind in range(_KINDS))
        touched = loaded * _SECTOR_BYTES, stored * _SECTOR_BYTES
        return Counts(instructions, loads, stores, shared, *touched)


def translated(
    texts: Iterable[tuple[str, Mapping[str, str]]],
    mode: Mode = Mode.PLAIN,
    *,
    counting: bool = False,
) -> PtxModule:
    """Compile PTX texts with g++.

    texts  each with the mangled names of its kernels by their name expressions

    Raises PtxError where a text has an instruction that is not known.
    """
    found = dict[str, Entry]()
    for text, mangled in texts:
        number = sum(len(entry.body) for entry in found.values())
        there = entries(text, first_number=number)
        found.update({name: there[entry] for name, entry in mangled.items()})
    names = {name: f"k{number}" for number, name in enumerate(sorted(found))}
    units = [
        "".join(['#include "ptxsim.h"\n', *(translate.function(found[n], names[n]) for n in some)])
        for some in batched(list(names))
    ]
    headers = {"ptxsim.h": (Path(__file__).parent / "include" / "ptxsim.h").read_text()}
    defines = ["-DPTXSIM_COUNTS"] if counting else []
    path = library(units, mode, headers=headers, defines=defines)
    return PtxModule(path, mode, names, found)
