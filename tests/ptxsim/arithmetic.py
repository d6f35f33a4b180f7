"""Instructions that compute: C++ statements, one for one."""

from __future__ import annotations

from ptxsim.operands import TYPES, Scope, register
from ptxsim.parser import Instruction, PtxError
from ptxsim.shared import Translator, assigned, is_float

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
_COMPARISONS = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "lo": "<",
    "ls": "<=",
    "hi": ">",
    "hs": ">=",
}
# True where a number is NaN.
_UNORDERED = {"equ": "==", "neu": "!=", "ltu": "<", "leu": "<=", "gtu": ">", "geu": ">="}
_ROUNDED = {"rzi": "std::trunc", "rni": "std::nearbyint", "rmi": "std::floor", "rpi": "std::ceil"}
_DOUBLED = {"16": "32", "32": "64"}


def _unsigned(kind: str) -> str:
    return kind.replace("s", "u")


def _arithmetic(one: Instruction, scope: Scope) -> str:
    """Add, subtract, multiply, of floating-point numbers or the low half of integers."""
    target, *given = one.operands
    if one.has("wide"):
        return _wide(one, scope)
    if one.has("hi"):
        return _high(one, scope)
    kind = one.type if is_float(one.type) else _unsigned(one.type)
    a, b = (_flushed(one, scope.value(kind, operand)) for operand in given)
    return assigned(target, _flushed(one, f"({TYPES[kind]})({a} {_SIGNS[one.opcode]} {b})"))


def _flushed(one: Instruction, value: str) -> str:
    return f"ptx::flushed({value})" if one.has("ftz") else value


def _fused(one: Instruction, scope: Scope) -> str:
    if not is_float(one.type):
        return _multiply_add(one, scope)
    a, b, c = (_flushed(one, scope.value(one.type, operand)) for operand in one.operands[1:])
    return assigned(one.operands[0], _flushed(one, f"std::fma({a}, {b}, {c})"))


def _multiply_add(one: Instruction, scope: Scope) -> str:
    if one.has("wide"):
        return _wide(one, scope)
    if not one.has("lo"):
        raise PtxError(f"unknown form of mad: {one}")
    kind = _unsigned(one.type)
    a, b, c = (scope.value(kind, operand) for operand in one.operands[1:])
    return assigned(one.operands[0], f"({TYPES[kind]})({a} * {b} + {c})")


def _wide(one: Instruction, scope: Scope) -> str:
    """Multiply to a product of twice the width; add, where a third number is given."""
    bits = _DOUBLED[one.type[1:]]
    wide, plain = TYPES[one.type[0] + bits], TYPES["u" + bits]
    target, *given = one.operands
    a, b = (f"({wide}){scope.value(one.type, operand)}" for operand in given[:2])
    more = "".join(f" + {scope.value('u' + bits, operand)}" for operand in given[2:])
    return assigned(target, f"({plain})(({plain})({a} * {b}){more})")


def _high(one: Instruction, scope: Scope) -> str:
    bits = int(one.type[1:])
    wide = TYPES[one.type[0] + "64"] if bits == 32 else "__int128"
    wide = "unsigned __int128" if one.type == "u64" else wide
    a, b = (f"({wide}){scope.value(one.type, operand)}" for operand in one.operands[1:])
    return assigned(one.operands[0], f"({TYPES[one.type]})({a} * {b} >> {bits})")


def _divide(one: Instruction, scope: Scope) -> str:
    if is_float(one.type):
        raise PtxError(f"floating-point division is not known here: {one}")
    sign = "/" if one.opcode == "div" else "%"
    a, b = (scope.value(one.type, operand) for operand in one.operands[1:])
    return assigned(one.operands[0], f"({TYPES[one.type]})({a} {sign} {b})")


def _extreme(one: Instruction, scope: Scope) -> str:
    if is_float(one.type):
        raise PtxError(f"minima of floating-point numbers are not known here: {one}")
    a, b = (scope.value(one.type, operand) for operand in one.operands[1:])
    return assigned(one.operands[0], f"std::{one.opcode}<{TYPES[one.type]}>({a}, {b})")


def _negate(one: Instruction, scope: Scope) -> str:
    kind = one.type if is_float(one.type) else _unsigned(one.type)
    return assigned(one.operands[0], f"({TYPES[kind]})(-{scope.value(kind, one.operands[1])})")


def _absolute(one: Instruction, scope: Scope) -> str:
    return assigned(one.operands[0], f"std::abs({scope.value(one.type, one.operands[1])})")


def _bitwise(one: Instruction, scope: Scope) -> str:
    a, b = (scope.value(one.type, operand) for operand in one.operands[1:])
    return assigned(one.operands[0], f"({TYPES[one.type]})({a} {_SIGNS[one.opcode]} {b})")


def _complement(one: Instruction, scope: Scope) -> str:
    sign = "!" if one.type == "pred" else "~"
    value = scope.value(one.type, one.operands[1])
    return assigned(one.operands[0], f"({TYPES[one.type]})({sign}{value})")


def _shift(one: Instruction, scope: Scope) -> str:
    value, by = scope.value(one.type, one.operands[1]), scope.value("u32", one.operands[2])
    return assigned(one.operands[0], f"ptx::{one.opcode}<{TYPES[one.type]}>({value}, {by})")


def _insert(one: Instruction, scope: Scope) -> str:
    kinds = (one.type, one.type, "u32", "u32")
    pairs = zip(kinds, one.operands[1:], strict=True)
    values = ", ".join(scope.value(kind, operand) for kind, operand in pairs)
    return assigned(one.operands[0], f"ptx::bfi<{TYPES[one.type]}>({values})")


def _permute(one: Instruction, scope: Scope) -> str:
    if one.suffixes != ("b32",):
        raise PtxError(f"unknown form of prmt: {one}")
    values = ", ".join(scope.value("u32", operand) for operand in one.operands[1:])
    return assigned(one.operands[0], f"ptx::prmt({values})")


def _population(one: Instruction, scope: Scope) -> str:
    return assigned(one.operands[0], f"(uint32_t)__popc({scope.value(one.type, one.operands[1])})")


def _compare(one: Instruction, scope: Scope) -> str:
    target, left, right, *combined = one.operands
    a, b = scope.value(one.type, left), scope.value(one.type, right)
    name = one.suffixes[0]
    if name in _UNORDERED and is_float(one.type):
        result = f"({a} {_UNORDERED[name]} {b} || {a} != {a} || {b} != {b})"
    elif name == "ne" and is_float(one.type):
        result = f"({a} < {b} || {a} > {b})"  # not where one of them is NaN, as C++ has it
    elif name in _COMPARISONS:
        result = f"({a} {_COMPARISONS[name]} {b})"
    else:
        raise PtxError(f"unknown comparison: {one}")
    for predicate in combined:
        negation = "!" if predicate.startswith("!") else ""
        other = scope.value("pred", predicate.lstrip("!"))
        result = f"({result} {_SIGNS[one.suffixes[1]]} {negation}{other})"
    return f"{register(target)} = {result}"


def _select(one: Instruction, scope: Scope) -> str:
    a, b = (scope.value(one.type, operand) for operand in one.operands[1:3])
    return assigned(one.operands[0], f"({scope.value('pred', one.operands[3])} ? {a} : {b})")


def _convert(one: Instruction, scope: Scope) -> str:
    to, source = one.suffixes[-2:]
    value = _flushed(one, scope.value(source, one.operands[1]))
    if source in {"f16", "bf16"} and to != source:
        value = f"({TYPES[to]})ptx::widened({value})"
    elif to in {"f16", "bf16"} and to != source:
        if not one.has("rn"):
            raise PtxError(f"only to nearest even: {one}")
        value = f"ptx::to_{to}({value})"
    elif is_float(source) and not is_float(to):
        rounding = next(name for suffix, name in _ROUNDED.items() if one.has(suffix))
        value = f"({TYPES[to]}){rounding}({value})"
    else:
        value = f"({TYPES[to]})({value})"
    return assigned(one.operands[0], value)


ARITHMETIC: dict[str, Translator] = {
    "abs": _absolute,
    "add": _arithmetic,
    "and": _bitwise,
    "bfi": _insert,
    "cvt": _convert,
    "div": _divide,
    "fma": _fused,
    "mad": _fused,
    "max": _extreme,
    "min": _extreme,
    "mul": _arithmetic,
    "neg": _negate,
    "not": _complement,
    "or": _bitwise,
    "popc": _population,
    "prmt": _permute,
    "rem": _divide,
    "selp": _select,
    "setp": _compare,
    "shl": _shift,
    "shr": _shift,
    "sub": _arithmetic,
    "xor": _bitwise,
}
