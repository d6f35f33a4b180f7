"""The recorded mutants: their places, behaviors and outcomes.

A place is a function and some of its lines as text, so that it is found again after the function
has moved within its file. A mutant whose text is gone has to be expressed again from its behavior.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent, indent


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault.

    number    counts from 1
    area      part of the product it belongs to
    behavior  the wrong behavior in words, which remain valid when the code changes
    file      of the product, from the root of the repository
    function  qualified name: "Class.method"
    before    whole lines that occur once in the function, at any indentation
    after     the lines that replace them
    outcome   "caught" if a test fails, "equivalent" if none can
    reason    why it is equivalent
    tests     tests that execute the lines, in the order in which they are tried
    """

    number: int
    area: str
    behavior: str
    file: str
    function: str
    before: str
    after: str
    outcome: str
    reason: str = ""
    tests: tuple[str, ...] = ()

    def applied(self, source: str) -> str:
        """Return a source with the fault. Raises LookupError if its lines are gone."""
        lines = source.splitlines(keepends=True)
        wanted = self.before.splitlines(keepends=True)
        count = len(wanted)
        places = [
            first
            for name, node in _functions(ast.parse(source))
            if name == self.function
            for first in range(node.lineno - 1, (node.end_lineno or 0) - count + 1)
            if dedent("".join(lines[first : first + count])) == dedent(self.before)
        ]
        if len(places) != 1:
            raise LookupError(
                f"mutant {self.number}: its lines are {len(places)} times in {self.function} of "
                f"{self.file}; express again: {self.behavior}"
            )
        (first,) = places
        further = " " * (len(lines[first]) - len(wanted[0]))
        lines[first : first + count] = [indent(self.after, further)]
        return "".join(lines)


def _functions(
    tree: ast.AST, prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield every function with its qualified name, outer ones first."""
    for node in ast.iter_child_nodes(tree):
        inside = prefix
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = f"{prefix}{node.name}."
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{node.name}", node
        yield from _functions(node, inside)


def read(path: Path) -> list[Mutant]:
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]
