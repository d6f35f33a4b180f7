"""PTX instructions as C++ statements, one for one; branches are gotos.

An opcode, or a form of it, that no function here knows is an error: nothing is left out silently.
"""

from __future__ import annotations

from ptxsim.arithmetic import ARITHMETIC
from ptxsim.memory import MEMORY
from ptxsim.operands import TYPES, Scope, register
from ptxsim.parser import Entry, Instruction, Label, PtxError
from ptxsim.shared import Translator, assigned, site

_SHUFFLES = {"up": "kUp", "down": "kDown", "bfly": "kButterfly", "idx": "kIndex"}


def function(entry: Entry, alias: str) -> str:
    """Return a kernel as the two C functions that the runtime launches it by."""
    scope = Scope.of(entry)
    lines = [f'extern "C" void sim_kernel_{alias}(void** arguments) {{']
    if scope.local:
        lines.append(f"alignas(16) unsigned char local_[{scope.local}];")
    for kind, name, count in entry.registers:
        names = [f"_{name}{i}" for i in range(count)] if count else [f"_{name}"]
        lines += [f"{TYPES[kind]} {one}{_initial(kind)};" for one in names]
    lines += [_statement(one, scope) for one in entry.body]
    sizes = ", ".join(str(size) for _, size in entry.parameters)
    return "\n".join(
        [
            *lines,
            "}",
            f'extern "C" int sim_sizes_{alias}(int* out) {{',
            f"static const int sizes[] = {{{sizes}}};",
            "if (out) memcpy(out, sizes, sizeof sizes);",
            f"return {len(entry.parameters)};",
            "}",
            "",
        ]
    )


def _initial(kind: str) -> str:
    """Fill a register with bits that no kernel expects."""
    if kind == "pred":
        return " = false"
    if kind[0] == "f":
        return " = NAN"
    return f" = ({TYPES[kind]})0xCDCDCDCDCDCDCDCDull"


def _statement(one: Instruction | Label, scope: Scope) -> str:
    if isinstance(one, Label):
        return f"{_label(one.name)}: ;"
    translator = _TRANSLATORS.get(one.opcode)
    if not translator:
        raise PtxError(f"unknown instruction {'.'.join((one.opcode, *one.suffixes))}")
    condition = f"if ({one.guard}) " if one.guard else ""
    return f"{condition}{{ {translator(one, scope)}; }}"


def _label(name: str) -> str:
    return "L_" + name.replace("$", "_")


def _branch(one: Instruction, _: Scope) -> str:
    return f"goto {_label(one.operands[0].removeprefix('$'))}"


def _return(_: Instruction, __: Scope) -> str:
    return "return"


def _barrier(one: Instruction, scope: Scope) -> str:
    if one.has("warp"):
        return f"::sim::warp_barrier({scope.value('u32', one.operands[0])}, {site(one)})"
    if not one.has("sync") or one.operands != ("0",):
        raise PtxError(f"unknown form of a barrier: {one}")
    return f"::sim::block_barrier({site(one)})"


def _shuffle(one: Instruction, scope: Scope) -> str:
    target, _, predicate = one.operands[0].partition("|")
    given = ", ".join(scope.value("u32", operand) for operand in one.operands[1:])
    mode = _SHUFFLES[one.suffixes[1]]
    text = f"const auto shuffled = ptx::shuffle(ptx::{mode}, {given}, {site(one)}); "
    text += assigned(target, "shuffled.value")
    return text + (f"; {register(predicate)} = shuffled.is_valid" if predicate else "")


def _vote(one: Instruction, scope: Scope) -> str:
    if not one.has("ballot"):
        raise PtxError(f"unknown form of vote: {one}")
    predicate, mask = scope.value("pred", one.operands[1]), scope.value("u32", one.operands[2])
    return assigned(one.operands[0], f"::sim::ballot({predicate}, {mask}, {site(one)})")


def _nothing(_: Instruction, __: Scope) -> str:
    return "(void)0"


_TRANSLATORS: dict[str, Translator] = {
    **ARITHMETIC,
    **MEMORY,
    "bar": _barrier,
    "barrier": _barrier,
    "bra": _branch,
    "exit": _return,
    "membar": _nothing,
    "ret": _return,
    "shfl": _shuffle,
    "vote": _vote,
}
