"""The recorded mutants: their places, behaviors and outcomes.

A place is a function and some of its lines as text, so that it is found again after the function
has moved within its file. A mutant whose text is gone has to be expressed again from its behavior.
"""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import dedent, indent
from typing import Any, Literal

Outcome = Literal["caught", "equivalent", "escaped"]

_HEADER = """\
# Mutants of the product, run by `make mutants`; tests/mutants/table.py describes the fields.
# tests/mutants/drawing.py of commit 27aa72d drew them from the sources of the tag baseline-1.
"""


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
    outcome   "caught" if a test fails, "equivalent" if none can, "escaped" if none does
    reason    why it is equivalent
    tests     tests that execute the lines; the first one caught it last
    """

    number: int
    area: str
    behavior: str
    file: str
    function: str
    before: str
    after: str
    outcome: Outcome = "escaped"
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
    entries: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def text(mutants: Iterable[Mutant]) -> str:
    return _HEADER + "".join(_entry(each) for each in mutants)


def _entry(mutant: Mutant) -> str:
    lines = ["\n[[mutant]]\n"]
    for name, value in asdict(mutant).items():
        if name in {"before", "after"}:
            lines.append(f"{name} = '''\n{value}'''\n")
        elif name == "tests":
            tests = "".join(f"    {json.dumps(each)},\n" for each in value)
            lines.append(f"tests = [\n{tests}]\n" if value else "tests = []\n")
        elif value != "":
            lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}\n")
    return "".join(lines)
