"""Kernels as NVRTC compiled them, on the CPU: PTX through C++ onto the simulator's runtime.

Each PTX instruction becomes a C++ statement; branches are gotos. What NVRTC makes of the kernels
and of the simulator's samples is known here. Any other opcode, or form of one, is an error: nothing
is left out silently. So are fused products and flushed denormals.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cudasim.module import Mode, Module, batched, library


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


class Entry(NamedTuple):
    """A kernel.

    name          mangled
    parameters    name and bytes of each
    most_threads  of a block, 0 where the text does not say
    registers     type, prefix and count; count 0 is one register of that very name
    shared        name, alignment and size of its static arrays, and of the module's that it names
    body          instructions and labels in order
    """

    name: str
    parameters: tuple[tuple[str, int], ...]
    most_threads: int
    registers: tuple[tuple[str, str, int], ...]
    shared: tuple[tuple[str, int, int], ...]
    body: tuple[Instruction | str, ...]


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
            (*(one for one in shared if one[0] in body), *_arrays(body)),
            tuple(_code(body)),
        )
    return found


def _arrays(text: str) -> tuple[tuple[str, int, int], ...]:
    found = _SHARED.findall(text)
    return tuple((name, int(alignment), int(size)) for alignment, name, size in found)


def _parameters(text: str) -> Iterator[tuple[str, int]]:
    for part in filter(None, map(str.strip, text.split(","))):
        found = _PARAMETER.fullmatch(part)
        if not found:
            raise PtxError(f"parameter {part!r}")
        bits, name, count = found.groups()
        yield name, int(bits) // 8 * int(count or 1)


def _code(body: str) -> Iterator[Instruction | str]:
    number = 0
    body = re.sub(r"(\$[\w$]+):", r"; LABEL \1;", _NOT_CODE.sub("", body))
    for part in body.split(";"):
        # Inline assembly opens scopes around its instructions.
        text = " ".join(part.split()).lstrip("{} ")
        if text.startswith("LABEL "):
            yield text.removeprefix("LABEL $")
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


_SIZES = (8, 16, 32, 64)
_TYPES = {
    **{f"{kind}{size}": f"uint{size}_t" for kind in "bu" for size in _SIZES},
    **{f"s{size}": f"int{size}_t" for size in _SIZES},
    "f16": "f16_bits",
    "bf16": "bf16_bits",
    "f32": "float",
    "f64": "double",
    "pred": "bool",
}
_FLOATS = {"f32", "f64"}
_SPECIAL = {
    "%tid": "::sim::place.thread",
    "%ctaid": "::sim::place.block",
    "%ntid": "::sim::place.block_size",
    "%nctaid": "::sim::place.grid_size",
}
_INTEGER = re.compile(r"(-?)(0[xX][0-9a-fA-F]+|\d+)U?")
_ADDRESS = re.compile(r"\[\s*([^\]]+?)\s*(?:\+\s*(-?\d+))?\s*\]")
_SIGNS = zip(("add", "sub", "mul", "div", "and", "or", "xor"), "+-*/&|^", strict=True)
# Expressions of the operands, in the type of the instruction.
_FORMS = {
    **{name: f"{{0}} {sign} {{1}}" for name, sign in _SIGNS},
    **{name: f"std::{name}<{{type}}>({{0}}, {{1}})" for name in ("max", "min")},
    **{name: f"ptx::{name}<{{type}}>({{0}}, {{1}})" for name in ("shl", "shr")},
    "bfi": "ptx::bfi<{type}>({0}, {1}, {2}, {3})",
    "mad": "{0} * {1} + {2}",
    "neg": "-{0}",
    "not": "~{0}",
}
_OF_FLOATS = {"add", "sub", "mul", "neg"}
# Operands of these that have 32 bits whatever the type is.
_COUNTS = {"shl": (1,), "shr": (1,), "bfi": (2, 3)}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_SHUFFLES = {"up": "kUp", "down": "kDown"}
# Bits that a multiplication's result has twice as many of.
_DOUBLED = {"16": "32", "32": "64"}
# Suffixes that change a result and are in no kernel.
_UNKNOWN = {"ftz", "hi", "local", "rm", "rp", "rz", "sat"}


@dataclass(slots=True)
class Scope:
    """The names that an entry's instructions use, and their places.

    parameters  places of the parameters
    offsets     places in bytes of shared arrays in the block's memory
    shared      bytes of static shared memory
    """

    parameters: dict[str, int]
    offsets: dict[str, int] = field(default_factory=dict[str, int])
    shared: int = 0

    @classmethod
    def of(cls, entry: Entry) -> Scope:
        """Lay an entry's arrays out."""
        made = cls({name: place for place, (name, _) in enumerate(entry.parameters)})
        for name, alignment, size in entry.shared:
            made.offsets[name] = -(-made.shared // alignment) * alignment
            made.shared = made.offsets[name] + size
        return made

    def value(self, kind: str, operand: str) -> str:
        """Return a register, a number or an array's place as a value of a type."""
        plain = self._plain(operand)
        if plain.startswith("((int64_t)") and kind not in _FLOATS:
            return f"({_TYPES[kind]}){plain}"
        return f"ptx::as<{_TYPES[kind]}>({plain})"

    def values(self, kind: str, operands: Sequence[str]) -> list[str]:
        return [self.value(kind, operand) for operand in operands]

    def address(self, operand: str, space: str) -> str:
        """Return what an operand in brackets points to."""
        if not (found := _ADDRESS.fullmatch(operand)):
            raise PtxError(f"address {operand!r}")
        base, offset = found.group(1), found.group(2) or "0"
        if space == "param":
            if base not in self.parameters:
                raise PtxError(f"parameter {operand!r}")
            return f"((unsigned char*)arguments[{self.parameters[base]}] + {offset})"
        plain = self._plain(base)
        if space == "shared":
            return f"(::sim::whole_shared + (uint32_t)(ptx::as<uint32_t>({plain}) + ({offset})))"
        return f"((unsigned char*)ptx::as<uint64_t>({plain}) + ({offset}))"

    def _plain(self, operand: str) -> str:
        if operand.startswith("%"):
            name, _, axis = operand.partition(".")
            if name in _SPECIAL:
                return f"(uint32_t){_SPECIAL[name]}.{axis}"
            return "(uint32_t)::sim::lane()" if name == "%laneid" else _register(operand)
        if operand in self.offsets:
            return f"((int64_t){self.offsets[operand]})"
        if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", operand):
            return f"cudasim_bits<float>(0x{operand[2:]}u)"
        if re.fullmatch(r"0[dD][0-9a-fA-F]{16}", operand):
            return f"cudasim_bits<double>((uint64_t)0x{operand[2:]}ull)"
        integer = _INTEGER.fullmatch(operand)
        if not integer:
            raise PtxError(f"operand {operand!r}")
        return f"((int64_t){integer.group(1)}{integer.group(2)}ull)"


def _register(operand: str) -> str:
    if not operand.startswith("%"):
        raise PtxError(f"register {operand!r}")
    return "_" + operand[1:]


def function(entry: Entry, alias: str) -> str:
    """Return a kernel as the two C functions that the runtime launches it by."""
    scope = Scope.of(entry)
    lines = [f'extern "C" void sim_kernel_{alias}(void** arguments) {{']
    for kind, name, count in entry.registers:
        names = [f"_{name}{i}" for i in range(count)] if count else [f"_{name}"]
        # Full of bits that no kernel expects.
        bits = f"({_TYPES[kind]})0xCDCDCDCDCDCDCDCDull"
        initial = {"p": "false", "f": "NAN"}.get(kind[0], bits)
        lines += [f"{_TYPES[kind]} {one} = {initial};" for one in names]
    lines += [_statement(one, scope) for one in entry.body]
    sizes = ", ".join(str(size) for _, size in entry.parameters)
    return (
        "\n".join(lines)
        + f"""
}}
extern "C" int sim_sizes_{alias}(int* out) {{
static const int sizes[] = {{{sizes}}};
if (out) memcpy(out, sizes, sizeof sizes);
return {len(entry.parameters)};
}}
"""
    )


def _statement(one: Instruction | str, scope: Scope) -> str:
    if isinstance(one, str):
        return f"{_label(one)}: ;"
    translator = _TRANSLATORS.get(one.opcode)
    if not translator or not _UNKNOWN.isdisjoint(one.suffixes):
        raise PtxError(f"unknown instruction {'.'.join((one.opcode, *one.suffixes))}")
    condition = f"if ({one.guard}) " if one.guard else ""
    return f"{condition}{{ {translator(one, scope)}; }}"


def _label(name: str) -> str:
    return "L_" + name.replace("$", "_")


def _assigned(target: str, value: str) -> str:
    return f"ptx::set({_register(target)}, {value})"


def _site(one: Instruction) -> str:
    return f'::sim::Site{{"ptx", {one.number}}}'


def _compute(one: Instruction, scope: Scope) -> str:
    if one.type in _FLOATS and one.opcode not in _OF_FLOATS:
        raise PtxError(f"not of floating-point numbers: {one}")
    if one.opcode == "mad" and not one.has("lo"):
        raise PtxError(f"unknown form of mad: {one}")
    # Sums and products of integers wrap around.
    wraps = one.opcode in {*_OF_FLOATS, "mad"} and not one.has("wide")
    kind = one.type.replace("s", "u") if wraps else one.type
    counts = _COUNTS.get(one.opcode, ())
    values = [
        scope.value("u32" if place in counts else kind, operand)
        for place, operand in enumerate(one.operands[1:])
    ]
    if one.has("wide"):
        wide = _DOUBLED[one.type[1:]]
        values = [f"({_TYPES[one.type[0] + wide]}){value}" for value in values]
        kind = "u" + wide
    form = "!{0}" if (one.opcode, kind) == ("not", "pred") else _FORMS[one.opcode]
    computed = form.format(*values, type=_TYPES[kind])
    return _assigned(one.operands[0], f"({_TYPES[kind]})({computed})")


def _compare(one: Instruction, scope: Scope) -> str:
    target, *others = one.operands
    comparison = _COMPARISONS.get(one.suffixes[0])
    if not comparison or len(one.suffixes) != 2 or len(others) != 2 or one.type in _FLOATS:
        raise PtxError(f"unknown comparison: {one}")
    a, b = scope.values(one.type, others)
    return f"{_register(target)} = ({a} {comparison} {b})"


def _select(one: Instruction, scope: Scope) -> str:
    a, b = scope.values(one.type, one.operands[1:3])
    return _assigned(one.operands[0], f"({scope.value('pred', one.operands[3])} ? {a} : {b})")


def _convert(one: Instruction, scope: Scope) -> str:
    to, source = one.suffixes[-2:]
    value = scope.value(source, one.operands[1])
    narrow = {"f16", "bf16"}
    if source in narrow and to == "f32":
        value = f"ptx::widened({value})"
    elif to in narrow and source == "f32" and one.has("rn"):
        value = f"ptx::to_{to}({value})"
    elif {to, source} & narrow or source in _FLOATS:
        raise PtxError(f"unknown form of cvt: {one}")
    else:
        value = f"({_TYPES[to]})({value})"
    return _assigned(one.operands[0], value)


def _space(one: Instruction) -> str:
    return next((space for space in ("global", "shared", "param") if one.has(space)), "generic")


def _load(one: Instruction, scope: Scope) -> str:
    targets = elements(one.operands[0])
    kind = f"Vector<{_TYPES[one.type]}, {len(targets)}>"
    address = scope.address(one.operands[1], _space(one))
    # Registers are wider than what is loaded: signs are extended.
    widened = "(int32_t)" if one.type in {"s8", "s16"} else ""
    sets = "; ".join(_assigned(to, f"{widened}held.v[{i}]") for i, to in enumerate(targets))
    return (
        f"typedef {kind} Held; const void* address = {address}; "
        f"const Held held = ptx::load<Held>(address); {sets}"
    )


def _store(one: Instruction, scope: Scope) -> str:
    values = scope.values(one.type, elements(one.operands[1]))
    kind = f"Vector<{_TYPES[one.type]}, {len(values)}>"
    return (
        f"typedef {kind} Held; void* address = {scope.address(one.operands[0], _space(one))}; "
        f"ptx::store<Held>(address, Held{{{{{', '.join(values)}}}}})"
    )


def _move(one: Instruction, scope: Scope) -> str:
    target, source = one.operands
    bits = int(one.type[1:]) if one.type != "pred" else 1
    if target.startswith("{"):
        targets = elements(target)
        part = bits // len(targets)
        sets = "; ".join(
            _assigned(to, f"(uint{part}_t)(whole >> {part * i})")
            for i, to in enumerate(targets)
            if to != "_"
        )
        return f"const uint64_t whole = ptx::as<uint64_t>({scope.value(one.type, source)}); {sets}"
    if source.startswith("{"):
        sources = elements(source)
        part = bits // len(sources)
        whole = " | ".join(
            f"(uint64_t){scope.value(f'b{part}', one)} << {part * i}"
            for i, one in enumerate(sources)
        )
        return _assigned(target, f"(uint{bits}_t)({whole})")
    return _assigned(target, scope.value(one.type, source))


def _to_generic(one: Instruction, scope: Scope) -> str:
    if not one.has("global"):
        raise PtxError(f"only global addresses are made generic: {one}")
    return _assigned(one.operands[0], scope.value("u64", one.operands[1]))


def _barrier(one: Instruction, scope: Scope) -> str:
    if one.suffixes == ("warp", "sync"):
        return f"::sim::warp_barrier({scope.value('u32', one.operands[0])}, {_site(one)})"
    if one.suffixes != ("sync",) or one.operands != ("0",):
        raise PtxError(f"unknown form of a barrier: {one}")
    return f"::sim::block_barrier({_site(one)})"


def _shuffle(one: Instruction, scope: Scope) -> str:
    target, _, predicate = one.operands[0].partition("|")
    given = ", ".join(scope.values("u32", one.operands[1:]))
    mode = _SHUFFLES.get(one.suffixes[1])
    if not mode:
        raise PtxError(f"unknown form of shfl: {one}")
    text = f"const auto shuffled = ptx::shuffle(ptx::{mode}, {given}, {_site(one)}); "
    text += _assigned(target, "shuffled.value")
    return text + (f"; {_register(predicate)} = shuffled.is_valid" if predicate else "")


_TRANSLATORS: dict[str, Callable[[Instruction, Scope], str]] = {
    **dict.fromkeys(_FORMS, _compute),
    "bar": _barrier,
    "bra": lambda one, _: f"goto {_label(one.operands[0].removeprefix('$'))}",
    "cvt": _convert,
    "cvta": _to_generic,
    "ld": _load,
    "mov": _move,
    "ret": lambda *_: "return",
    "selp": _select,
    "setp": _compare,
    "shfl": _shuffle,
    "st": _store,
}


def translated(texts: Iterable[tuple[str, Mapping[str, str]]]) -> Module:
    """Compile PTX texts with g++; their entries are launched by the names they were compiled under.

    texts  each with the mangled names of its kernels by their name expressions

    Raises PtxError where a text has an instruction that is not known.
    """
    found = dict[str, Entry]()
    for text, mangled in texts:
        there = entries(text)
        found.update({name: there[entry] for name, entry in mangled.items()})
    names = {name: f"k{number}" for number, name in enumerate(sorted(found))}
    units = [
        "".join(['#include "ptxsim.h"\n', *(function(found[n], names[n]) for n in some)])
        for some in batched(list(names))
    ]
    headers = {"ptxsim.h": (Path(__file__).parent / "include" / "ptxsim.h").read_text()}
    return Module(
        library(units, Mode.PLAIN, headers=headers),
        Mode.PLAIN,
        names,
        {name: (one.most_threads, Scope.of(one).shared) for name, one in found.items()},
    )
