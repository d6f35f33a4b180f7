"""Counts of the source: tokens, modules, layers, names, callers, complexity, length.

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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

# Layout and remarks. What is left is NAME, NUMBER, STRING and OP; an f-string is one STRING.
_NOT_COUNTED = {
    token.COMMENT,
    token.DEDENT,
    token.ENCODING,
    token.ENDMARKER,
    token.INDENT,
    token.NEWLINE,
    token.NL,
}
# From Python 3.12 on an f-string is several tokens.
_FSTRING_START = getattr(token, "FSTRING_START", None)
_FSTRING_END = getattr(token, "FSTRING_END", None)


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
    """Count a module's tokens without comments, docstrings, line ends and indentation."""
    docstrings = {(one.lineno, one.col_offset) for one in _docstrings(ast.parse(source))}
    count = depth = 0
    inside = False
    for one in tokenize.generate_tokens(io.StringIO(source).readline):
        inside = _in_docstring(one, docstrings, inside=inside)
        if one.type == _FSTRING_START:
            depth += 1
            count += depth == 1
        elif one.type == _FSTRING_END:
            depth -= 1
        elif one.type not in _NOT_COUNTED and not inside:
            count += depth == 0
    return count


def _in_docstring(
    one: tokenize.TokenInfo, docstrings: set[tuple[int, int]], *, inside: bool
) -> bool:
    """Tell whether a token is part of a docstring, which may be several strings in a row."""
    if one.type != token.STRING:
        return inside and one.type == token.NL
    return inside or one.start in docstrings


def _docstrings(tree: ast.Module) -> Iterator[ast.expr]:
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, owners) and ast.get_docstring(node, clean=False) is not None:
            yield cast("ast.Expr", node.body[0]).value


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
        and _last_name(node.value).lower().endswith("backend")
    ]
    return [f"{name}:{line}" for name, line in sorted(found)]


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def layers(pyproject: str, contract: str) -> int:
    """Count the layers of import-linter's contract of this name."""
    contracts = tomllib.loads(pyproject)["tool"]["importlinter"]["contracts"]
    (found,) = (one for one in contracts if one["name"] == contract)
    return len(found["layers"])


def complex_functions(report: str, root: Path) -> list[str]:
    """Return PATH:LINE and ruff's words for every function in its report on C901, as JSON."""
    found = cast("list[dict[str, Any]]", json.loads(report))
    return sorted(
        f"{Path(one['filename']).relative_to(root)}:{one['location']['row']} {one['message']}"
        for one in found
    )


def longer_than(most: int, sources: Mapping[str, str]) -> dict[str, int]:
    """Return the lines of each module that has more than so many."""
    lines = {name: len(source.splitlines()) for name, source in sources.items()}
    return {name: count for name, count in lines.items() if count > most}
