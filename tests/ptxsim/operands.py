"""Operands of PTX instructions as C++ expressions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ptxsim.parser import Entry, PtxError

TYPES = {
    "b8": "uint8_t",
    "u8": "uint8_t",
    "s8": "int8_t",
    "b16": "uint16_t",
    "u16": "uint16_t",
    "s16": "int16_t",
    "b32": "uint32_t",
    "u32": "uint32_t",
    "s32": "int32_t",
    "b64": "uint64_t",
    "u64": "uint64_t",
    "s64": "int64_t",
    "f32": "float",
    "f64": "double",
    "pred": "bool",
    "f16": "f16_bits",
    "bf16": "bf16_bits",
}

_SPECIAL = {
    "%tid": "::sim::place.thread",
    "%ctaid": "::sim::place.block",
    "%ntid": "::sim::place.block_size",
    "%nctaid": "::sim::place.grid_size",
}
_INTEGER = re.compile(r"(-?)(0[xX][0-9a-fA-F]+|\d+)U?")
_ADDRESS = re.compile(r"\[\s*([^\]+]+?)\s*(?:\+\s*(-?\d+))?\s*\]")


@dataclass(slots=True)
class Scope:
    """What names in an entry's instructions stand for.

    parameters  places of the parameters
    offsets     places in bytes of shared arrays in the block's memory, and of local ones
    shared      bytes of static shared memory
    local       bytes of local memory
    """

    parameters: dict[str, int]
    offsets: dict[str, int] = field(default_factory=dict[str, int])
    shared: int = 0
    local: int = 0

    @classmethod
    def of(cls, entry: Entry) -> Scope:
        """Lay an entry's arrays out, its dynamic shared memory behind the static."""
        made = cls({name: place for place, (name, _) in enumerate(entry.parameters)})
        for one in entry.shared:
            made.offsets[one.name] = _aligned(made.shared, one.alignment)
            made.shared = made.offsets[one.name] + one.size
        for one in entry.local:
            made.offsets[one.name] = _aligned(made.local, one.alignment)
            made.local = made.offsets[one.name] + one.size
        made.shared = _aligned(made.shared, 16)
        made.offsets.update(dict.fromkeys(entry.dynamic, made.shared))
        return made

    def value(self, kind: str, operand: str) -> str:
        """Return a register, a number or an array's place as a value of a type."""
        plain = self._plain(operand)
        is_integer = plain.startswith("((int64_t)")
        if is_integer and kind not in {"f32", "f64"}:
            return f"({TYPES[kind]}){plain}"
        return f"ptx::as<{TYPES[kind]}>({plain})"

    def address(self, operand: str, space: str) -> str:
        """Return what an operand in brackets points to."""
        found = _ADDRESS.fullmatch(operand)
        if not found:
            raise PtxError(f"address {operand!r}")
        base, offset = self._plain(found.group(1)), found.group(2) or "0"
        if space == "shared":
            return f"(::sim::dynamic_shared + (uint32_t)(ptx::as<uint32_t>({base}) + ({offset})))"
        if space == "local":
            return f"(local_ + (ptx::as<uint64_t>({base}) + ({offset})))"
        return f"((unsigned char*)ptx::as<uint64_t>({base}) + ({offset}))"

    def parameter(self, operand: str) -> str:
        """Return where a parameter in brackets is held."""
        found = _ADDRESS.fullmatch(operand)
        if not found or found.group(1) not in self.parameters:
            raise PtxError(f"parameter {operand!r}")
        place = self.parameters[found.group(1)]
        return f"((unsigned char*)arguments[{place}] + {found.group(2) or 0})"

    def _plain(self, operand: str) -> str:
        if operand.startswith("%"):
            return _register(operand)
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


def register(operand: str) -> str:
    """Return the C++ name of a register that is written."""
    if not operand.startswith("%"):
        raise PtxError(f"register {operand!r}")
    return "_" + operand[1:]


def _register(operand: str) -> str:
    name, _, axis = operand.partition(".")
    if name in _SPECIAL:
        return f"(uint32_t){_SPECIAL[name]}.{axis}"
    return "(uint32_t)::sim::lane()" if name == "%laneid" else register(operand)


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
