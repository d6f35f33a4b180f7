"""Kernels as NVRTC compiled them, on the CPU: PTX through C++ onto the simulator's runtime."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from cudasim.compiler import Mode, library
from cudasim.module import Module, batched
from ptxsim import translate
from ptxsim.parser import Entry, entries


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
            shared={name: translate.Scope.of(entry).shared for name, entry in found.items()},
        )


def translated(
    texts: Iterable[tuple[str, Mapping[str, str]]], mode: Mode = Mode.PLAIN
) -> PtxModule:
    """Compile PTX texts with g++.

    texts  each with the mangled names of its kernels by their name expressions

    Raises PtxError where a text has an instruction that is not known.
    """
    found = dict[str, Entry]()
    for text, mangled in texts:
        there = entries(text)
        found.update({name: there[entry] for name, entry in mangled.items()})
    names = {name: f"k{number}" for number, name in enumerate(sorted(found))}
    units = [
        "".join(['#include "ptxsim.h"\n', *(translate.function(found[n], names[n]) for n in some)])
        for some in batched(list(names))
    ]
    headers = {"ptxsim.h": (Path(__file__).parent / "include" / "ptxsim.h").read_text()}
    path = library(units, mode, headers=headers)
    return PtxModule(path, mode, names, found)
