"""Modules of a folder, their tokens and the names of their classes."""

from __future__ import annotations

import ast
import io
import token
import tokenize
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import cast

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


def repeated_classes(sources: Iterable[str]) -> set[str]:
    """Return the class names that are defined more than once."""
    found = Counter(
        node.name
        for source in sources
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
    )
    return {name for name, count in found.items() if count > 1}
