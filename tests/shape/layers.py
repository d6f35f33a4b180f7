"""The picture of the server's layers: its import contract, and the first line of each docstring.

PYTHONPATH=tests python -m shape.layers      prints it for docs/architecture.md
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONTRACT = "the server is layered"
_PACKAGE = ROOT / "server" / "gradwire_server"


def picture() -> str:
    """Return a line for each package and module, with a rule between layers."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (layers,) = (one["layers"] for one in contracts if one["name"] == CONTRACT)
    names = (re.split(r" [:|] ", layer) for layer in layers)
    return f"    {'-' * 20}\n".join("".join(_line(one) for one in layer) for layer in names)


def _line(name: str) -> str:
    folder = _PACKAGE / name
    file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    told = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    assert told is not None
    return f"    {name:20} {told.splitlines()[0]}\n"


if __name__ == "__main__":
    sys.stdout.write(picture())
