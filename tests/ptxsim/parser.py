"""PTX text as entries, declarations and instructions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class PtxError(Exception):
    """Raised when a text holds what is not known here."""


class Instruction(NamedTuple):
    """One instruction.

    opcode    its first word, such as "ld"
    suffixes  what follows that after dots, such as ("global", "v4", "f32")
    operands  as they are written; vectors in braces and addresses in brackets are one each
    guard     C++ condition on a predicate's register, empty for none
    number    of the instruction within its kernel
    """

    opcode: str
    suffixes: tuple[str, ...]
    operands: tuple[str, ...]
    guard: str
    number: int

    @property
    def type(self) -> str:
        return self.suffixes[-1]

    def has(self, suffix: str) -> bool:
        return suffix in self.suffixes


class Label(NamedTuple):
    """A place to branch to."""

    name: str


class Array(NamedTuple):
    """A declared piece of shared memory, of a kernel or of the module."""

    name: str
    alignment: int
    size: int


class Entry(NamedTuple):
    """A kernel.

    name          mangled
    parameters    name and bytes of each
    most_threads  of a block, 0 where the text does not say
    registers     type, prefix and count; count 0 is one register of that very name
    shared        its static arrays, and those of the module that it names
    body          instructions and labels in order
    """

    name: str
    parameters: tuple[tuple[str, int], ...]
    most_threads: int
    registers: tuple[tuple[str, str, int], ...]
    shared: tuple[Array, ...]
    body: tuple[Instruction | Label, ...]


_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\((.*?)\)(.*?)\n\{(.*?)\n\}", re.DOTALL)
_SHARED = re.compile(r"\.shared\s+\.align\s+(\d+)\s+\.b8\s+([\w$]+)\[(\d+)\]")
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+\d+\s+)?\.\w?(\d+)\s+(?:\.ptr\s+(?:\.\w+\s+)*(?:\d+\s+)?)?"
    r"([\w$]+)(?:\[(\d+)\])?"
)
_REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+%(\w+)(?:<(\d+)>)?\s*;")
_STATEMENT = re.compile(r"(?:@(!?)%(\w+)\s+)?([\w.]+)\s*(.*)", re.DOTALL)
_NOT_CODE = re.compile(r"^\s*\.(?:reg|shared|pragma|loc|file)\b[^;\n]*(?:;|$)", re.MULTILINE)


def entries(text: str) -> dict[str, Entry]:
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"//[^\n]*", "", text)
    if re.search(r"\.func\b", text):
        raise PtxError("functions that are called, not inlined, are not known here")
    outside = _ENTRY.sub("", text)
    shared = _arrays(outside)
    found = dict[str, Entry]()
    for name, parameters, directives, body in _ENTRY.findall(text):
        threads = re.search(r"\.maxntid\s+(\d+)", directives)
        found[name] = Entry(
            name,
            tuple(_parameters(parameters)),
            int(threads.group(1)) if threads else 0,
            tuple((kind, reg, int(count or 0)) for kind, reg, count in _REGISTERS.findall(body)),
            (*(one for one in shared if one.name in body), *_arrays(body)),
            tuple(_code(body)),
        )
    return found


def _arrays(text: str) -> tuple[Array, ...]:
    found = _SHARED.findall(text)
    return tuple(Array(name, int(alignment), int(size)) for alignment, name, size in found)


def _parameters(text: str) -> Iterator[tuple[str, int]]:
    for part in filter(None, map(str.strip, text.split(","))):
        found = _PARAMETER.fullmatch(part)
        if not found:
            raise PtxError(f"parameter {part!r}")
        bits, name, count = found.groups()
        yield name, int(bits) // 8 * int(count or 1)


def _code(body: str) -> Iterator[Instruction | Label]:
    number = 0
    body = re.sub(r"(\$[\w$]+):", r"; LABEL \1;", _NOT_CODE.sub("", body))
    for part in body.split(";"):
        # Inline assembly opens scopes around its instructions.
        text = " ".join(part.split()).lstrip("{} ")
        if text.startswith("LABEL "):
            yield Label(text.removeprefix("LABEL $"))
        elif text:
            yield _instruction(text, number)
            number += 1


def _instruction(text: str, number: int) -> Instruction:
    found = _STATEMENT.fullmatch(text)
    if not found:
        raise PtxError(f"instruction {text!r}")
    negated, guard, opcode, operands = found.groups()
    condition = f"{negated}_{guard}" if guard else ""
    first, *suffixes = opcode.split(".")
    return Instruction(first, tuple(suffixes), tuple(_split(operands)), condition, number)


def _split(text: str) -> Iterator[str]:
    depth, current = 0, ""
    for letter in text:
        depth += (letter in "{[(") - (letter in "}])")
        if letter == "," and not depth:
            yield current.strip()
            current = ""
        else:
            current += letter
    if current.strip():
        yield current.strip()


def elements(vector: str) -> list[str]:
    """Return the registers of a vector operand; of another one, itself."""
    return list(_split(vector[1:-1])) if vector.startswith("{") else [vector]
