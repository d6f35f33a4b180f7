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
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from mutants.table import Mutant, functions

SEED = 20261122
PER_AREA = 12

_SWAPS: dict[type[ast.AST], tuple[str, str]] = {
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
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}


class Change(NamedTuple):
    """A replacement of the source text between two offsets in bytes."""

    kind: str
    start: int
    stop: int
    text: str


Drawn = tuple[str, str, str, str]


def draw(root: Path, areas: Mapping[str, Collection[str]]) -> list[Mutant]:
    """Draw mutants of each area's files: equal sources give equal mutants."""
    chance = random.Random(SEED)  # noqa: S311 - repeatable
    drawn = [(area, one) for area, files in areas.items() for one in _of_area(root, files, chance)]
    return [
        Mutant(number, area, "", file, function, before, after)
        for number, (area, (file, function, before, after)) in enumerate(drawn, 1)
    ]


def _of_area(root: Path, files: Collection[str], chance: random.Random) -> Iterator[Drawn]:
    """Yield an area's mutants: each kind of change in turn, in functions as different as can be."""
    kinds: dict[str, list[Drawn]] = defaultdict(list)
    for file in sorted(files):
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
        kind = min(order, key=least.__getitem__)
        found = min(kinds[kind], key=lambda one: taken[one[:2]])
        kinds[kind].remove(found)
        taken[found[:2]] += 1
        order.remove(kind)
        if kinds[kind]:
            order.append(kind)
        yield found


def as_lines(source: str, function: str, change: Change) -> tuple[str, str]:
    """Return whole lines before and after a change, with as many above as make them unique."""
    data = source.encode()
    mutated = (data[: change.start] + change.text.encode() + data[change.stop :]).decode()
    lines, others = source.splitlines(), mutated.splitlines()
    first = data.count(b"\n", 0, change.start)
    behind = len(lines) - data.count(b"\n", 0, change.stop) - 1
    while True:
        parts = lines[first : len(lines) - behind], others[first : len(others) - behind]
        indent = min(len(line) - len(line.lstrip()) for part in parts for line in part if line)
        before, after = ("".join(f"{line[indent:]}\n" for line in part) for part in parts)
        try:
            Mutant(0, "", "", "", function, before, after).lines(source)
        except LookupError:
            first -= 1
        else:
            return before, after


def changes(source: str) -> Iterator[tuple[str, Change]]:
    """Yield every change of a source, with the function it is in."""
    finder = _Finder(source)
    for name, node in functions(ast.parse(source)):
        if node.name not in {"__repr__", "__str__"}:
            for change in finder.of_function(node):
                yield name, change


class _Finder:
    """Finds the changes within one function."""

    def __init__(self, source: str) -> None:
        self._data = source.encode()
        self._starts = [0]
        for line in self._data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def of_function(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Change]:
        for statement in function.body[ast.get_docstring(function) is not None :]:
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
        match node:
            case ast.Raise(exc=error):
                if error is None or not ast.unparse(error).startswith("AssertionError"):
                    yield self._whole("dropped raise", node, "pass")
            case ast.AnnAssign(value=value):
                if value is not None:
                    yield from self._of_node(value)
            case _ if not _is_left_alone(node):
                yield from self._of_operator(node)
                yield from self._of_value(node)
                for child in ast.iter_child_nodes(node):
                    yield from self._of_node(child)
            case _:
                pass

    def _of_operator(self, node: ast.AST) -> Iterator[Change]:
        match node:
            case ast.Compare():
                operands = [node.left, *node.comparators]
                for left, sign, right in zip(operands, node.ops, operands[1:], strict=False):
                    yield from self._between("comparison", left, sign, right)
            case ast.BinOp(left=left, op=sign, right=right) if not _of_text(node):
                yield from self._between("operator", left, sign, right)
            case ast.BoolOp(op=sign, values=[left, right, *_]):
                yield from self._between("operator", left, sign, right)
            case ast.UnaryOp(op=ast.Not()):
                yield self._whole("comparison", node, self._text(node.operand))
            case ast.If() | ast.IfExp():
                yield self._whole("swapped branches", node.test, f"not ({self._text(node.test)})")
            case ast.AugAssign() | ast.Expr(value=ast.Call() | ast.Await()) | ast.Delete():
                yield self._whole("dropped statement", node, "pass")
            case _:
                pass

    def _of_value(self, node: ast.AST) -> Iterator[Change]:
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
                        yield self._whole("off by one", bound, f"({self._text(bound)}) + 1")
            case ast.Call(func=ast.Name(id="range"), args=[*_, last]):
                yield self._whole("off by one", last, f"({self._text(last)}) - 1")
            case _:
                pass

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        end = self._starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        return self._starts[node.lineno - 1] + node.col_offset, end

    def _text(self, node: ast.expr) -> str:
        start, stop = self._span(node)
        return self._data[start:stop].decode()

    def _whole(self, kind: str, node: ast.expr | ast.stmt, text: str) -> Change:
        return Change(kind, *self._span(node), text)

    def _between(
        self, kind: str, left: ast.expr, sign: ast.AST, right: ast.expr
    ) -> Iterator[Change]:
        """Change the operator between two operands, where it is there once."""
        before, after = _SWAPS.get(type(sign), ("no operator", ""))
        (_, start), (stop, _) = self._span(left), self._span(right)
        pattern = r"\s+".join(map(re.escape, before.split())).encode()
        found = list(re.finditer(pattern, self._data[start:stop]))
        if len(found) == 1:
            yield Change(kind, start + found[0].start(), start + found[0].end(), after)


def _is_left_alone(node: ast.AST) -> bool:
    """Whether a node is text, asserts, logs, makes an exception, or is looked at by itself."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return True
        case ast.JoinedStr() | ast.Assert():
            return True
        case ast.Expr(value=ast.Call(func=called)):
            return ast.unparse(called).startswith("_log.")
        case ast.Call(func=called):
            return ast.unparse(called).endswith("Error")
        case _:
            return False


def _of_text(node: ast.BinOp) -> bool:
    """Whether an operator joins or formats strings, or joins types."""
    name = node.right.id if isinstance(node.right, ast.Name) else ""
    sides = (node.left, node.right)
    return (name[:1].isupper() and not name.isupper()) or any(
        isinstance(side, ast.JoinedStr)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in sides
    )
