"""Instructions that load, store and move: C++ statements, one for one."""

from __future__ import annotations

from ptxsim.operands import TYPES, Scope
from ptxsim.parser import Instruction, PtxError, elements
from ptxsim.shared import Translator, assigned

_SPACES = ("global", "shared", "local", "param")


def _space(one: Instruction) -> str:
    return next((space for space in _SPACES if one.has(space)), "generic")


def _load(one: Instruction, scope: Scope) -> str:
    space, targets = _space(one), elements(one.operands[0])
    kind = f"Vector<{TYPES[one.type]}, {len(targets)}>"
    if space == "param":
        address = scope.parameter(one.operands[1])
    else:
        address = scope.address(one.operands[1], space)
    # Registers are wider than what is loaded: signs are extended.
    widened = "(int32_t)" if one.type in {"s8", "s16"} else ""
    sets = "; ".join(assigned(to, f"{widened}held.v[{i}]") for i, to in enumerate(targets))
    return (
        f"typedef {kind} Held; const void* address = {address}; "
        f"const Held held = ptx::load<Held>(address); {sets}"
    )


def _store(one: Instruction, scope: Scope) -> str:
    space, values = _space(one), elements(one.operands[1])
    kind = f"Vector<{TYPES[one.type]}, {len(values)}>"
    held = ", ".join(scope.value(one.type, value) for value in values)
    return (
        f"typedef {kind} Held; void* address = {scope.address(one.operands[0], space)}; "
        f"ptx::store<Held>(address, Held{{{{{held}}}}})"
    )


def _move(one: Instruction, scope: Scope) -> str:
    target, source = one.operands
    bits = int(one.type[1:]) if one.type != "pred" else 1
    if target.startswith("{"):
        targets = elements(target)
        part = bits // len(targets)
        sets = "; ".join(
            assigned(to, f"(uint{part}_t)(whole >> {part * i})")
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
        return assigned(target, f"(uint{bits}_t)({whole})")
    return assigned(target, scope.value(one.type, source))


def _to_generic(one: Instruction, scope: Scope) -> str:
    if not one.has("global"):
        raise PtxError(f"only global addresses are made generic: {one}")
    return assigned(one.operands[0], scope.value("u64", one.operands[1]))


MEMORY: dict[str, Translator] = {
    "cvta": _to_generic,
    "ld": _load,
    "mov": _move,
    "st": _store,
}
