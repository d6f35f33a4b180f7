"""Vector types, number formats and conversions between them, for compiled kernels.

A vector fills one 512-bit register or several; LLVM splits it where registers are narrower.
Additions and multiplications carry no fast-math flags, so LLVM neither fuses, reorders nor flushes.

float16 is converted by the processor where it can. Elsewhere, and for bfloat16 everywhere, integer
instructions convert, because the processors' own conversions to bfloat16 flush denormals.
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


STORAGE_FORMATS = tuple(map(Format, ("float32", "float16", "bfloat16", "float64")))
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


def words_of(vector: ir.VectorType) -> ir.VectorType:
    """Return the type of integers of the same width and count as a vector's numbers."""
    return ir.VectorType(INT32 if vector.element == ir.FloatType() else INT64, vector.count)


def splat(builder: Any, number: Any, count: int) -> Any:
    """Return a vector with one number in all lanes."""
    single = ir.Constant(ir.VectorType(number.type, count), ir.Undefined)
    return shuffle(builder, builder.insert_element(single, number, INT32(0)), single, [0] * count)


def shuffle(builder: Any, one: Any, other: Any, places: list[int]) -> Any:
    """Return the lanes at these indices of two concatenated vectors."""
    mask = ir.Constant(ir.VectorType(INT32, len(places)), places)
    return builder.shuffle_vector(one, other, mask)


def declared(builder: Any, name: str, result: Any, kinds: list[Any]) -> Any:
    """Return the LLVM function of this name, declared in the module."""
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(result, kinds), name)


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


# Without F16C, LLVM would call conversion functions of a library that is not linked.
_HAS_HALF = not TARGET[0].startswith("x86_64") or "+f16c" in FEATURES


def memory_type(stored: Format) -> ir.VectorType:
    """Return the LLVM type of a format's elements in memory."""
    vector = VectorType(stored.computed).ir
    return vector if stored == stored.computed else ir.VectorType(INT16, stored.lanes)


def widened(builder: Any, stored: Format, value: Any) -> Any:
    """Convert a vector from its format to the compute type; exact."""
    words = _Words(builder, stored)
    if stored == stored.computed:
        return value
    if stored.name == "bfloat16":
        return words.floats(words.widened(value, 16))
    if _HAS_HALF:
        half = builder.bitcast(value, ir.VectorType(ir.HalfType(), stored.lanes))
        return builder.fpext(half, words.vector)
    return _float_of_half(words, value)


def narrowed(builder: Any, stored: Format, value: Any) -> Any:
    """Convert a vector to its format, rounded to nearest even."""
    words = _Words(builder, stored)
    if stored == stored.computed:
        return value
    if stored.name == "bfloat16":
        return words.narrowed(builder.lshr(_bfloat16_in_high_half(words, value), words.all(16)))
    if _HAS_HALF:
        half = builder.fptrunc(value, ir.VectorType(ir.HalfType(), stored.lanes))
        return builder.bitcast(half, words.shorts)
    return words.narrowed(_half_of_float(words, value))


class _Words:
    """Operations on vectors of 32-bit integers."""

    def __init__(self, builder: Any, stored: Format) -> None:
        self.builder, self.vector = builder, VectorType(stored.computed).ir
        self.type = words_of(self.vector)
        self.shorts = ir.VectorType(INT16, stored.lanes)

    def all(self, number: int) -> ir.Constant:
        return ir.Constant(self.type, [number] * self.vector.count)

    def of(self, value: Any) -> Any:
        return self.builder.bitcast(value, self.type)

    def floats(self, words: Any) -> Any:
        return self.builder.bitcast(words, self.vector)

    def widened(self, shorts: Any, places: int) -> Any:
        return self.builder.shl(self.builder.zext(shorts, self.type), self.all(places))

    def narrowed(self, words: Any) -> Any:
        return self.builder.trunc(words, self.shorts)


def _bfloat16_in_high_half(words: _Words, value: Any) -> Any:
    builder, bits = words.builder, words.of(value)
    odd = builder.and_(builder.lshr(bits, words.all(16)), words.all(1))
    rounded = builder.add(bits, builder.add(odd, words.all(0x7FFF)))
    is_nan = builder.fcmp_unordered("uno", value, value)
    return builder.select(is_nan, words.all(0x7FC00000), rounded)


def _float_of_half(words: _Words, shorts: Any) -> Any:
    """Shift the exponent into place; scale by 2**112 to correct its bias and denormals."""
    builder = words.builder
    bits = words.widened(shorts, 0)
    magnitude = builder.shl(builder.and_(bits, words.all(0x7FFF)), words.all(13))
    scale = words.floats(words.all((127 + 112) << 23))
    scaled = words.of(builder.fmul(words.floats(magnitude), scale))
    special = builder.icmp_unsigned(">=", magnitude, words.all(0x7C00 << 13))
    result = builder.select(special, builder.or_(scaled, words.all(0xFF << 23)), scaled)
    sign = builder.shl(builder.and_(bits, words.all(0x8000)), words.all(16))
    return words.floats(builder.or_(result, sign))


def _half_of_float(words: _Words, value: Any) -> Any:
    """Round normal numbers with integers, denormals by an addition that aligns their bits."""
    builder, bits = words.builder, words.of(value)
    magnitude = builder.and_(bits, words.all(0x7FFFFFFF))
    odd = builder.and_(builder.lshr(magnitude, words.all(13)), words.all(1))
    rebiased = builder.add(magnitude, words.all((15 - 127) * (1 << 23) + 0xFFF))
    normal = builder.lshr(builder.add(rebiased, odd), words.all(13))
    # The sum's unit in the last place is float16's smallest denormal, 2**-24.
    offset = words.all((127 - 1) << 23)
    total = builder.fadd(words.floats(magnitude), words.floats(offset))
    denormal = builder.sub(words.of(total), offset)
    is_small = builder.icmp_unsigned("<", magnitude, words.all((127 - 14) << 23))
    finite = builder.select(is_small, denormal, normal)
    is_nan = builder.icmp_unsigned(">", magnitude, words.all(0xFF << 23))
    special = builder.select(is_nan, words.all(0x7E00), words.all(0x7C00))
    is_large = builder.icmp_unsigned(">=", magnitude, words.all((127 + 16) << 23))
    result = builder.select(is_large, special, finite)
    return builder.or_(result, builder.lshr(builder.and_(bits, words.all(1 << 31)), words.all(16)))
