"""Draws mutants from the product's sources, by a seed.

Each is a small change within a function: an operator, a comparison, a constant, a bound that is off
by one, a check or a statement that is dropped, or branches that are swapped. Messages,
log lines, docstrings and annotations stay unchanged.
"""

from __future__ import annotations

import ast
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from mutants.table import Mutant, functions

SEED = 20261122
PER_AREA = 12

_SERVER = "server/gradwire_server"
_CLIENT = "client/gradwire"
# Files, and folders with all modules in them.
AREAS = {
    "plans": (f"{_SERVER}/plans",),
    "dialects": (f"{_SERVER}/dialects",),
    "numpy_cpu": (f"{_SERVER}/backends/numpy_cpu.py",),
    "engine": tuple(
        f"{_SERVER}/engine/{name}.py"
        for name in (
            "assembly",
            "batches",
            "evaluation",
            "in_memory",
            "layout",
            "limits",
            "running",
            "step_plans",
            "steps",
            "whole",
        )
    ),
    "framing and codec": (
        f"{_CLIENT}/_wire/framing.py",
        f"{_CLIENT}/tensors.py",
        f"{_SERVER}/encoding.py",
        f"{_SERVER}/headers.py",
        f"{_SERVER}/wire.py",
    ),
    "admission and queue": tuple(
        f"{_SERVER}/engine/{name}.py"
        for name in ("admission", "fair_queue", "holdings", "pace", "slots", "turns")
    ),
    "retries": (
        f"{_CLIENT}/_core/retries.py",
        f"{_CLIENT}/_wire/statuses.py",
        f"{_CLIENT}/_core/evaluation.py",
    ),
    "resumption": (
        f"{_CLIENT}/chunks.py",
        f"{_CLIENT}/_wire/requests.py",
        f"{_CLIENT}/_transport/streams.py",
        f"{_SERVER}/ranges.py",
        f"{_SERVER}/streams.py",
    ),
    "split": (f"{_CLIENT}/_core/evaluation.py", f"{_CLIENT}/_transport/streams.py"),
    "authorization": (
        f"{_CLIENT}/_core/options.py",
        f"{_CLIENT}/_wire/files.py",
        f"{_SERVER}/authorization.py",
        f"{_SERVER}/exposure.py",
        f"{_SERVER}/guard.py",
        f"{_SERVER}/tokens.py",
    ),
}

_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "+"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
_TEXT_METHODS = {"__repr__", "__str__"}


@dataclass(frozen=True, slots=True)
class Change:
    """A replacement of the source text between two offsets."""

    kind: str
    start: int
    stop: int
    text: str


def draw(root: Path, areas: Mapping[str, tuple[str, ...]] = AREAS) -> list[Mutant]:
    """Draw mutants of the sources below a folder: equal sources give equal mutants."""
    chance = random.Random(SEED)  # noqa: S311 - repeatable
    drawn: list[Mutant] = []
    for area, places in areas.items():
        for file, function, before, after in _of_area(root, places, chance):
            number = len(drawn) + 1
            drawn.append(Mutant(number, area, "", file, function, before, after))
    return drawn


def _of_area(
    root: Path, places: tuple[str, ...], chance: random.Random
) -> Iterator[tuple[str, str, str, str]]:
    """Yield an area's mutants: each kind of change in turn, in functions as different as can be."""
    kinds: dict[str, list[tuple[str, str, str, str]]] = defaultdict(list)
    for file in sorted(one for place in places for one in _files(root, place)):
        source = (root / file).read_text(encoding="utf-8")
        for function, change in changes(source):
            kinds[change.kind].append((file, function, *as_lines(source, function, change)))
    order = sorted(kinds)
    chance.shuffle(order)
    for kind in order:
        chance.shuffle(kinds[kind])
    taken: dict[tuple[str, str], int] = defaultdict(int)
    for _ in range(PER_AREA):
        least = {kind: min(taken[one[:2]] for one in kinds[kind]) for kind in order}
        kind = next(one for one in order if least[one] == min(least.values()))
        found = min(kinds[kind], key=lambda one: taken[one[:2]])
        kinds[kind].remove(found)
        taken[found[:2]] += 1
        order.remove(kind)
        if kinds[kind]:
            order.append(kind)
        yield found


def _files(root: Path, place: str) -> list[str]:
    if place.endswith(".py"):
        return [place]
    return [str(one.relative_to(root)) for one in (root / place).glob("*.py")]


def as_lines(source: str, function: str, change: Change) -> tuple[str, str]:
    """Return whole lines before and after a change, with as many above as make them unique."""
    mutated = source[: change.start] + change.text + source[change.stop :]
    lines, others = source.splitlines(), mutated.splitlines()
    first = source.count("\n", 0, change.start)
    behind = len(lines) - source.count("\n", 0, change.stop) - 1
    while True:
        before, after = _dedented(
            lines[first : len(lines) - behind], others[first : len(others) - behind]
        )
        try:
            Mutant(0, "", "", "", function, before, after).lines(source)
        except LookupError:
            first -= 1
        else:
            return before, after


def _dedented(*parts: list[str]) -> list[str]:
    """Take off all lines the indentation that they share; return a text for each part."""
    lines = [line for part in parts for line in part if line]
    indent = min(len(line) - len(line.lstrip()) for line in lines)
    return ["".join(f"{line[indent:]}\n" for line in part) for part in parts]


def changes(source: str) -> Iterator[tuple[str, Change]]:
    """Yield every change of a source, with the function it is in."""
    for name, node in functions(ast.parse(source)):
        if node.name not in _TEXT_METHODS:
            for change in _Finder(source).of_function(node):
                yield name, change


class _Finder:
    """Finds the changes within one function."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def of_function(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Change]:
        body = function.body
        if ast.get_docstring(function) is not None:
            body = body[1:]
        for statement in body:
            yield from self._of_node(statement)
        for node in ast.walk(function):
            if isinstance(node, ast.stmt):
                yield from self._of_block(getattr(node, "body", ()))

    def _of_block(self, statements: Sequence[ast.stmt]) -> Iterator[Change]:
        """Drop checks that leave a block early."""
        for check, _ in pairwise(statements):
            match check:
                case ast.If(body=[ast.Return() | ast.Continue() | ast.Break() as end], orelse=[]):
                    yield self._whole("dropped check", end, "pass")
                case _:
                    pass

    def _of_node(self, node: ast.AST) -> Iterator[Change]:
        """Yield changes of a node, and of those within."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.JoinedStr):
            return
        if isinstance(node, ast.Raise):
            if node.exc is None or not ast.unparse(node.exc).startswith("AssertionError"):
                yield self._whole("dropped raise", node, "pass")
            return
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                yield from self._of_node(node.value)
            return
        if isinstance(node, ast.Assert) or _is_message(node):
            return
        yield from self._of_operator(node)
        yield from self._of_constant(node)
        yield from self._of_flow(node)
        for child in ast.iter_child_nodes(node):
            yield from self._of_node(child)

    def _of_operator(self, node: ast.AST) -> Iterator[Change]:
        match node:
            case ast.Compare():
                operands = [node.left, *node.comparators]
                for left, sign, right in zip(operands, node.ops, operands[1:], strict=False):
                    yield from self._between("comparison", left, right, _COMPARISONS[type(sign)])
            case ast.BinOp(left=left, op=sign, right=right) if not _of_text(node):
                if type(sign) in _OPERATORS:
                    yield from self._between("operator", left, right, _OPERATORS[type(sign)])
            case ast.BoolOp():
                swap = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
                yield from self._between("operator", node.values[0], node.values[1], swap)
            case ast.UnaryOp(op=ast.Not()):
                yield self._whole("comparison", node, self._text(node.operand))
            case _:
                pass

    def _of_constant(self, node: ast.AST) -> Iterator[Change]:
        match node:
            case ast.Constant(value=bool() as flag):
                yield self._whole("constant", node, str(not flag))
            case ast.Constant(value=int() as number):
                yield self._whole("constant", node, repr(number + 1))
            case ast.Constant(value=float() as number):
                yield self._whole("constant", node, repr(number * 2 or 1.0))
            case ast.Subscript(slice=ast.Slice() as part):
                for bound in (part.lower, part.upper):
                    if bound is not None:
                        yield self._whole("off by one", bound, f"{self._operand(bound)} + 1")
            case ast.Call(func=ast.Name(id="range"), args=[*_, last]):
                yield self._whole("off by one", last, f"{self._operand(last)} - 1")
            case _:
                pass

    def _of_flow(self, node: ast.AST) -> Iterator[Change]:
        match node:
            case ast.If() | ast.IfExp():
                yield self._whole("swapped branches", node.test, f"not ({self._text(node.test)})")
            case ast.AugAssign() | ast.Expr(value=ast.Call() | ast.Await()) | ast.Delete():
                yield self._whole("dropped statement", node, "pass")
            case _:
                pass

    def _offset(self, line: int, column: int) -> int:
        # Columns count bytes.
        start = self._starts[line - 1]
        text = self._source[start : self._starts[line]]
        return start + len(text.encode()[:column].decode())

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        return (
            self._offset(node.lineno, node.col_offset),
            self._offset(node.end_lineno or 0, node.end_col_offset or 0),
        )

    def _text(self, node: ast.expr) -> str:
        start, stop = self._span(node)
        return self._source[start:stop]

    def _operand(self, node: ast.expr) -> str:
        text = self._text(node)
        return (
            text
            if isinstance(node, ast.Name | ast.Constant | ast.Call | ast.Attribute)
            else f"({text})"
        )

    def _whole(self, kind: str, node: ast.expr | ast.stmt, text: str) -> Change:
        return Change(kind, *self._span(node), text)

    def _between(
        self, kind: str, left: ast.expr, right: ast.expr, swap: tuple[str, str]
    ) -> Iterator[Change]:
        """Change the operator between two operands."""
        _, start = self._span(left)
        stop, _ = self._span(right)
        before, after = swap
        pattern = r"\s+".join(map(re.escape, before.split()))
        found = list(re.finditer(pattern, self._source[start:stop]))
        if len(found) == 1:
            yield Change(kind, start + found[0].start(), start + found[0].end(), after)


def _is_message(node: ast.AST) -> bool:
    """Whether a statement logs, or makes an exception."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        called = ast.unparse(node.value.func)
        return called.startswith("_log.")
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Error")


def _of_text(node: ast.BinOp) -> bool:
    """Whether an operator joins or formats strings, or joins types."""
    return (
        isinstance(node.right, ast.Name)
        and node.right.id[:1].isupper()
        and not node.right.id.isupper()
    ) or any(
        isinstance(side, ast.JoinedStr)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )
