"""The recorded mutants: their places, behaviors and outcomes.

A place is a function and some of its lines as text, so that it is found again after the function
has moved within its file. A mutant whose text is gone has to be expressed again from its behavior.
"""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
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
        first, indent = _found(self, source)
        lines = source.splitlines(keepends=True)
        count = len(self.before.splitlines())
        lines[first - 1 : first - 1 + count] = [_indented(self.after, indent)]
        return "".join(lines)


def _found(mutant: Mutant, source: str) -> tuple[int, str]:
    """Return the number of the first line, and by how much it is indented."""
    texts = source.splitlines()
    wanted = mutant.before.splitlines()
    places: list[tuple[int, str]] = []
    for name, node in functions(ast.parse(source)):
        if name != mutant.function:
            continue
        for first in range(node.lineno, (node.end_lineno or 0) - len(wanted) + 2):
            here = texts[first - 1 : first - 1 + len(wanted)]
            indent = " " * (_indentation(here[0]) - _indentation(wanted[0]))
            if here == _indented(mutant.before, indent).splitlines():
                places.append((first, indent))
    if len(places) != 1:
        raise LookupError(
            f"mutant {mutant.number}: its lines are {len(places)} times in {mutant.function} of "
            f"{mutant.file}; express again: {mutant.behavior}"
        )
    return places[0]


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())


def _indented(text: str, indent: str) -> str:
    return "".join(f"{indent}{line}".rstrip() + "\n" for line in text.splitlines())


def functions(
    tree: ast.AST, prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield every function with its qualified name, outer ones first."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{node.name}", node
            yield from functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")
        else:
            yield from functions(node, prefix)


def read(path: Path) -> list[Mutant]:
    with path.open("rb") as file:
        entries: list[dict[str, Any]] = tomllib.load(file)["mutant"]
    for entry in entries:
        entry["tests"] = tuple(entry.get("tests", ()))
    return [Mutant(**entry) for entry in entries]


def text(mutants: Iterable[Mutant]) -> str:
    return _HEADER + "".join(_entry(each) for each in mutants)


def _entry(mutant: Mutant) -> str:
    values = asdict(mutant)
    lines = ["\n[[mutant]]\n"]
    for name in (each.name for each in fields(Mutant)):
        value = values[name]
        if name in {"before", "after"}:
            lines.append(f"{name} = '''\n{value}'''\n")
        elif name == "tests":
            tests = "".join(f"    {json.dumps(each)},\n" for each in value)
            lines.append(f"tests = [\n{tests}]\n" if value else "tests = []\n")
        elif value != "":
            lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}\n")
    return "".join(lines)
