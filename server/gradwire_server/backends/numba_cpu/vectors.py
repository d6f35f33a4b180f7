"""Vector registers and formats of numbers as types that numba compiles with.

A vector holds the lanes of one 512-bit register; LLVM splits it where registers are narrower. Sums
and products carry no fast-math flag: nothing may fuse, reorder or flush.

Formats are the types of numbers in memory: COMPUTE is the compute type itself, FLOAT16 and BFLOAT16
are storage that float32 computes for. They exist while compiling only.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core.imputils import lower_builtin, lower_constant
from numba.core.registry import cpu_target
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import models, register_model, typeof_impl

INT16, INT32, INT64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
VECTOR_BITS = 512
# What code is compiled for: triple, processor and features, as numba found them or was told.
TARGET = cpu_target.target_context.codegen().magic_tuple()
FEATURES = frozenset(TARGET[2].split(","))


class Format:
    """A type of numbers in memory, as a constant that kernels are compiled for."""

    def __init__(self, name: str) -> None:
        self.name = name


COMPUTE, FLOAT16, BFLOAT16 = Format("compute"), Format("float16"), Format("bfloat16")


class FormatType(types.Dummy):  # type: ignore[misc]  # numba is untyped
    """Numba's type of one format."""

    def __init__(self, name: str) -> None:
        self.format = name
        super().__init__(f"Format({name})")


class VectorType(types.Type):  # type: ignore[misc]
    """Numba's type of one register."""

    def __init__(self, element: Any) -> None:
        self.element = element
        self.lanes = VECTOR_BITS // element.bitwidth
        super().__init__(f"Vector({element})")

    @property
    def ir(self) -> ir.VectorType:
        """LLVM's type of it."""
        element = ir.FloatType() if self.element == types.float32 else ir.DoubleType()
        return ir.VectorType(element, self.lanes)

    @property
    def words(self) -> ir.VectorType:
        """LLVM's type of as many integers of the same width."""
        return ir.VectorType(INT32 if self.element == types.float32 else INT64, self.lanes)


register_model(FormatType)(models.OpaqueModel)


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, fe_type: VectorType) -> None:
        super().__init__(manager, fe_type, fe_type.ir)


@typeof_impl.register(Format)
def _type_of_format(value: Format, _context: Any) -> FormatType:
    return FormatType(value.name)


@lower_constant(FormatType)
def _format_constant(context: Any, builder: Any, ty: Any, value: Any) -> Any:
    return context.get_dummy_value()


@infer_global(operator.add)
@infer_global(operator.mul)
class _Arithmetic(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: Any, kws: Any) -> Any:
        same = len(args) == 2 and args[0] == args[1]
        return signature(args[0], *args) if same and isinstance(args[0], VectorType) else None


@lower_builtin(operator.add, VectorType, VectorType)
def _add(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.fadd(*args)


@lower_builtin(operator.mul, VectorType, VectorType)
def _multiply(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.fmul(*args)


def splat(builder: Any, number: Any, count: int) -> Any:
    """Build a vector of one number in all lanes."""
    single = ir.Constant(ir.VectorType(number.type, count), ir.Undefined)
    return shuffle(builder, builder.insert_element(single, number, INT32(0)), single, [0] * count)


def shuffle(builder: Any, one: Any, other: Any, places: list[int]) -> Any:
    """Build a vector of the lanes at these places of two vectors side by side."""
    mask = ir.Constant(ir.VectorType(INT32, len(places)), places)
    return builder.shuffle_vector(one, other, mask)


def declared(builder: Any, name: str, result: Any, kinds: list[Any]) -> Any:
    """Return a function of LLVM by its name."""
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(result, kinds), name)


def pointer(builder: Any, address: Any, kind: Any) -> Any:
    """Build a pointer from an integer."""
    return builder.inttoptr(address, kind.as_pointer())


# Decorates what is compiled as a part of compiled functions only: Python never calls it.
part = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True)
