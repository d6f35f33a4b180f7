"""Vector types, number formats and conversions between them, for compiled kernels.

A vector fills one 512-bit register or several; LLVM splits it where registers are narrower.
Additions and multiplications carry no fast-math flags, so LLVM neither fuses, reorders nor flushes.

The processor converts float16; on one that cannot, NumPy computes it. Integer instructions convert
bfloat16, because the processors' own conversions to it flush denormals.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core.imputils import lower_builtin, lower_constant
from numba.core.registry import cpu_target
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, models, register_model, typeof_impl

INT16, INT32, INT64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
# Bytes of a vector that fills one register.
VECTOR_BYTES = 64
# Triple, processor name and features that numba compiles for.
TARGET = cpu_target.target_context.codegen().magic_tuple()
FEATURES = frozenset(TARGET[2].split(","))


@dataclass(frozen=True, slots=True)
class Format:
    """Elements in memory that become one vector value, a compile-time constant.

    name       type of the elements
    registers  number of 512-bit registers that the values fill
    """

    name: str
    registers: int = 1

    @property
    def computed(self) -> Format:
        """The compute type's format of as many lanes."""
        return Format("float64" if self.name == "float64" else "float32", self.registers)

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return {"float64": 8, "float32": 4}.get(self.name, 2)

    @property
    def lanes(self) -> int:
        """Number of elements."""
        return self.registers * VECTOR_BYTES // self.computed.size


# Without F16C, LLVM would call conversion functions of a library that is not linked.
_HAS_HALF = not TARGET[0].startswith("x86_64") or "+f16c" in FEATURES
STORAGE_FORMATS = (
    *map(Format, ("float32", "bfloat16", "float64")),
    *[Format("float16")] * _HAS_HALF,
)
COMPUTE_FORMATS = tuple(map(Format, ("float32", "float64")))


class FormatType(types.Dummy):  # type: ignore[misc]  # numba is untyped
    """The numba type of a format."""

    def __init__(self, value: Format) -> None:
        self.format = value
        super().__init__(f"Format({value.name} x {value.registers})")


class VectorType(types.Type):  # type: ignore[misc]
    """The numba type of the values of a compute type's format."""

    def __init__(self, value: Format) -> None:
        self.format = value
        self.lanes = value.lanes
        super().__init__(f"Vector({value.name} x {value.lanes})")

    @property
    def ir(self) -> ir.VectorType:
        """The LLVM type."""
        element = ir.FloatType() if self.format.size == 4 else ir.DoubleType()
        return ir.VectorType(element, self.lanes)


register_model(FormatType)(models.OpaqueModel)


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, fe_type: VectorType) -> None:
        super().__init__(manager, fe_type, fe_type.ir)


@typeof_impl.register(Format)
def _type_of_format(value: Format, _context: Any) -> FormatType:
    return FormatType(value)


@lower_constant(FormatType)
def _format_constant(context: Any, builder: Any, ty: Any, value: Any) -> Any:
    return context.get_dummy_value()


@infer_global(operator.add)
class _Addition(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: Any, kws: Any) -> Any:
        same = len(args) == 2 and args[0] == args[1]
        return signature(args[0], *args) if same and isinstance(args[0], VectorType) else None


@lower_builtin(operator.add, VectorType, VectorType)
def _add(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.fadd(*args)


def words_of(vector: ir.VectorType) -> ir.VectorType:
    """Return the integer type as wide as a vector's numbers.

    It has as many numbers.
    """
    return ir.VectorType(INT32 if vector.element == ir.FloatType() else INT64, vector.count)


def splat(builder: Any, number: Any, count: int) -> Any:
    """Return a vector with one number in all lanes."""
    single = ir.Constant(ir.VectorType(number.type, count), ir.Undefined)
    return shuffle(builder, builder.insert_element(single, number, INT32(0)), single, [0] * count)


def shuffle(builder: Any, one: Any, other: Any, places: list[int]) -> Any:
    """Return the lanes at these indices of two concatenated vectors."""
    mask = ir.Constant(ir.VectorType(INT32, len(places)), places)
    return builder.shuffle_vector(one, other, mask)


def llvm_call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """Call the LLVM function of this name."""
    kind = ir.FunctionType(result, [one.type for one in arguments])
    return builder.call(builder.module.declare_intrinsic(name, fnty=kind), arguments)


def pointer(builder: Any, address: Any, kind: Any) -> Any:
    """Convert an integer to a pointer."""
    return builder.inttoptr(address, kind.as_pointer())


def instruction(result: Any) -> Callable[[Callable[..., Any]], Any]:
    """Make an intrinsic of a function that generates its code.

    result  numba type of the result, or a function of the arguments' types that returns it

    The function gets LLVM's builder and the arguments: formats themselves, and values of LLVM.
    """

    def decorate(build: Callable[..., Any]) -> Any:
        def typed(_context: Any, *kinds: Any) -> tuple[Any, Any]:
            found = result if isinstance(result, types.Type) else result(*kinds)

            def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
                values = [
                    kind.format if isinstance(kind, FormatType) else value
                    for kind, value in zip(kinds, args, strict=True)
                ]
                made = build(builder, *values)
                return context.get_dummy_value() if isinstance(found, types.Dummy) else made

            return found(*kinds), generate

        typed.__name__ = build.__name__
        vars(typed)["__signature__"] = inspect.signature(build)
        return intrinsic(typed)

    return decorate


# Decorates functions that are inlined into compiled functions, and never called from Python.
part = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True)


def memory_type(stored: Format) -> ir.VectorType:
    """Return the LLVM type of a format's elements in memory."""
    vector = VectorType(stored.computed).ir
    return vector if stored == stored.computed else ir.VectorType(INT16, stored.lanes)


def widened(builder: Any, stored: Format, value: Any) -> Any:
    """Convert a vector from its format to the compute type; exact."""
    if stored == stored.computed:
        return value
    vector = VectorType(stored.computed).ir
    if stored.name == "float16":
        half = builder.bitcast(value, ir.VectorType(ir.HalfType(), stored.lanes))
        return builder.fpext(half, vector)
    words = words_of(vector)
    return builder.bitcast(builder.shl(builder.zext(value, words), _all(words, 16)), vector)


def narrowed(builder: Any, stored: Format, value: Any) -> Any:
    """Convert a vector to its format, rounded to nearest even."""
    if stored == stored.computed:
        return value
    memory = memory_type(stored)
    if stored.name == "float16":
        half = builder.fptrunc(value, ir.VectorType(ir.HalfType(), stored.lanes))
        return builder.bitcast(half, memory)
    words = words_of(value.type)
    bits = builder.bitcast(value, words)
    odd = builder.and_(builder.lshr(bits, _all(words, 16)), _all(words, 1))
    rounded = builder.add(bits, builder.add(odd, _all(words, 0x7FFF)))
    is_nan = builder.fcmp_unordered("uno", value, value)
    high = builder.select(is_nan, _all(words, 0x7FC00000), rounded)
    return builder.trunc(builder.lshr(high, _all(words, 16)), memory)


def _all(words: ir.VectorType, number: int) -> ir.Constant:
    return ir.Constant(words, [number] * words.count)
