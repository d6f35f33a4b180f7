"""The picture of the server's layers: its import contract, and the first line of each docstring.

PYTHONPATH=tests python -m shape.layers      prints it for docs/architecture.md
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PACKAGE = ROOT / "server" / "gradwire_server"


def layers() -> list[list[str]]:
    """Return the names of each layer of "the server is layered", the highest first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (contract,) = (each for each in contracts if each["name"] == "the server is layered")
    return [re.split(r" [:|] ", names) for names in contract["layers"]]


def picture() -> str:
    """Return a line for each package and module, with a rule between layers."""
    return f"    {'-' * 20}\n".join("".join(_lines(names)) for names in layers())


def _lines(names: list[str]) -> Iterator[str]:
    for name in names:
        folder = _PACKAGE / name
        source = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
        told = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8")))
        assert told is not None
        yield f"    {name:20} {told.splitlines()[0]}\n"


if __name__ == "__main__":
    sys.stdout.write(picture())
