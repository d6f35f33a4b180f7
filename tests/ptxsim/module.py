"""Kernels as NVRTC compiled them, on the CPU: PTX through C++ onto the simulator's runtime."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from cudasim.compiler import Mode, library
from cudasim.module import Module, batched
from ptxsim import translate
from ptxsim.parser import Entry, entries


def translated(texts: Iterable[tuple[str, Mapping[str, str]]]) -> Module:
    """Compile PTX texts with g++; their entries are launched by the names they were compiled under.

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
    return Module(
        library(units, Mode.PLAIN, headers=headers),
        Mode.PLAIN,
        names,
        {name: (one.most_threads, translate.Scope.of(one).shared) for name, one in found.items()},
    )
