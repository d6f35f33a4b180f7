"""CUDA sources as g++ reads them: declarations of shared memory become calls of the runtime."""

from __future__ import annotations

import re
from pathlib import Path

_ALIGNED = r"(?:__align__\s*\(\s*\d+\s*\)\s*)?"
_TYPE = r"((?:[\w:\s]|<[^<>;]*>)+?)"
_DYNAMIC = re.compile(rf"extern\s+__shared__\s+{_ALIGNED}{_TYPE}\s+(\w+)\s*\[\s*\]\s*;")
_STATIC = re.compile(rf"__shared__\s+{_ALIGNED}{_TYPE}\s+(\w+)\s*((?:\[[^\]]+\])*)\s*;")


def respelled(source: str) -> str:
    """Return the source with its declarations of shared memory as calls, on the same lines.

    Raises ValueError where a declaration has a form that is not known here.
    """
    source = _DYNAMIC.sub(r"CUDASIM_DYNAMIC_SHARED(\2, \1);", source)
    source = _STATIC.sub(r"CUDASIM_SHARED(\2, \3, \1);", source)
    for number, line in enumerate(source.splitlines(), 1):
        if "__shared__" in line.partition("//")[0] and not line.startswith("#"):
            raise ValueError(f"line {number} declares shared memory in another form: {line}")
    return source


def respelled_folder(folder: Path) -> dict[str, str]:
    paths = sorted([*folder.glob("*.cu"), *folder.glob("*.cuh")])
    return {path.name: f'#line 1 "{path.name}"\n{respelled(path.read_text())}' for path in paths}
