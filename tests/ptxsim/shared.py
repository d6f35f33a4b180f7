"""What the translators of instructions share."""

from __future__ import annotations

from collections.abc import Callable

from ptxsim.operands import Scope, register
from ptxsim.parser import Instruction

Translator = Callable[[Instruction, Scope], str]


def assigned(target: str, value: str) -> str:
    """Return the assignment of a value to a register, whose bits it becomes."""
    return f"ptx::set({register(target)}, {value})"


def site(one: Instruction) -> str:
    """Return where an instruction is, for messages of the runtime."""
    return f'::sim::Site{{"ptx", {one.number}}}'


def is_float(kind: str) -> bool:
    """Whether a type is of floating-point numbers that are computed with."""
    return kind in {"f32", "f64"}
