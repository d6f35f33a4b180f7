"""Counts of the source: tokens, modules, layers, names, callers, complexity.

All take folders or texts and return values; none knows where this project keeps what.
"""

from __future__ import annotations

import ast
import io
import json
import token
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

# From Python 3.12 on an f-string is several tokens.
_FSTRING_START = getattr(token, "FSTRING_START", None)
_FSTRING_END = getattr(token, "FSTRING_END", None)
_COUNTED = {token.NAME, token.NUMBER, token.OP, token.STRING, _FSTRING_START}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def modules(folder: Path, *, without: Iterable[Path] = ()) -> list[Path]:
    """Return the Python files of a folder and of the folders in it, sorted."""
    left_out = tuple(without)
    found = folder.rglob("*.py")
    return sorted(one for one in found if not any(one.is_relative_to(each) for each in left_out))


def folders(folder: Path, *, without: Iterable[Path] = ()) -> dict[str, list[Path]]:
    """Return the modules at a folder's root under "", and those of each folder in it."""
    groups: dict[str, list[Path]] = {}
    for one in modules(folder, without=without):
        parts = one.relative_to(folder).parts
        groups.setdefault(parts[0] if len(parts) > 1 else "", []).append(one)
    return groups


def tokens(source: str) -> int:
    """Count names, numbers, strings and operators; an f-string is one, a docstring none."""
    docstrings = [
        ((text.lineno, text.col_offset), (text.end_lineno or 0, text.end_col_offset or 0))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None
        for text in (cast("ast.Expr", node.body[0]).value,)
    ]
    count = depth = 0
    for one in tokenize.generate_tokens(io.StringIO(source).readline):
        depth -= one.type == _FSTRING_END
        if depth == 0 and one.type in _COUNTED:
            documents = one.type == token.STRING and any(
                start <= one.start < stop for start, stop in docstrings
            )
            count += not documents
        depth += one.type == _FSTRING_START
    return count


def repeated_classes(sources: Iterable[str]) -> dict[str, int]:
    """Return the class names that are defined more than once, the most frequent first."""
    found = Counter(
        node.name
        for source in sources
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
    )
    ranked = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return {name: count for name, count in ranked if count > 1}


def backend_callers(sources: Mapping[str, str]) -> list[str]:
    """Return NAME:LINE of every use of a backend's apply or accumulate.

    A backend is what is called so: `backend`, `self._backend`, `service.backend`, `cpu_backend`.
    """
    found = [
        (name, node.lineno)
        for name, source in sources.items()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and node.attr in {"apply", "accumulate"}
        and ast.unparse(node.value).lower().endswith("backend")
    ]
    return [f"{name}:{line}" for name, line in sorted(found)]


def layers(pyproject: str, contract: str) -> list[str]:
    """Return the layers of import-linter's contract of this name."""
    contracts = tomllib.loads(pyproject)["tool"]["importlinter"]["contracts"]
    (found,) = (one["layers"] for one in contracts if one["name"] == contract)
    return list(found)


def complex_functions(report: str, root: Path) -> list[str]:
    """Return PATH:LINE and ruff's words for every function in its report on C901, as JSON."""
    found = cast("list[dict[str, Any]]", json.loads(report))
    return sorted(
        f"{Path(one['filename']).relative_to(root)}:{one['location']['row']} {one['message']}"
        for one in found
    )
