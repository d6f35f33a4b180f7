"""Conversions between formats in memory and the compute type, as LLVM instructions.

Where the processor converts float16, its instructions do; elsewhere, and for bfloat16 everywhere,
integers do: processors' own conversions to bfloat16 flush denormals.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from gradwire_server.backends.numba_cpu.vectors import (
    FEATURES,
    INT16,
    TARGET,
    FormatType,
    VectorType,
)

# LLVM would call functions of a library that is not there.
_HAS_HALF = not TARGET[0].startswith("x86_64") or "+f16c" in FEATURES


def memory_type(memory: FormatType, vector: VectorType) -> ir.VectorType:
    """LLVM's type of a vector in memory."""
    return vector.ir if memory.format == "compute" else ir.VectorType(INT16, vector.lanes)


def widened(builder: Any, memory: FormatType, value: Any, vector: VectorType) -> Any:
    """Convert a vector as read from memory to the compute type; exact."""
    if memory.format == "compute":
        return value
    if vector.element == types.float64:
        raise TypeError("16-bit formats are computed in float32")
    if memory.format == "bfloat16":
        return builder.bitcast(_Words(builder, vector).widened(value, 16), vector.ir)
    if _HAS_HALF:
        half = builder.bitcast(value, ir.VectorType(ir.HalfType(), vector.lanes))
        return builder.fpext(half, vector.ir)
    return _float_of_half(_Words(builder, vector), value)


def narrowed(builder: Any, memory: FormatType, value: Any, vector: VectorType) -> Any:
    """Convert a vector to what is written to memory, rounded to nearest even."""
    if memory.format == "compute":
        return value
    if vector.element == types.float64:
        raise TypeError("16-bit formats are computed in float32")
    words = _Words(builder, vector)
    if memory.format == "bfloat16":
        return words.narrowed(builder.lshr(_bfloat16_in_high_half(words, value), words.all(16)))
    if _HAS_HALF:
        half = builder.fptrunc(value, ir.VectorType(ir.HalfType(), vector.lanes))
        return builder.bitcast(half, words.shorts)
    return words.narrowed(_half_of_float(words, value))


class _Words:
    """Vectors of 32-bit integers."""

    def __init__(self, builder: Any, vector: VectorType) -> None:
        self.builder, self.vector, self.type = builder, vector, vector.words
        self.shorts = ir.VectorType(INT16, vector.lanes)

    def all(self, number: int) -> ir.Constant:
        return ir.Constant(self.type, [number] * self.vector.lanes)

    def of(self, value: Any) -> Any:
        return self.builder.bitcast(value, self.type)

    def floats(self, words: Any) -> Any:
        return self.builder.bitcast(words, self.vector.ir)

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
    """Shift the exponent to its place and scale by 2**112, which mends its bias and denormals."""
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
    """Round normal numbers as integers and denormal ones by a sum that leaves their bits lowest."""
    builder, bits = words.builder, words.of(value)
    magnitude = builder.and_(bits, words.all(0x7FFFFFFF))
    odd = builder.and_(builder.lshr(magnitude, words.all(13)), words.all(1))
    rebiased = builder.add(magnitude, words.all((15 - 127) * (1 << 23) + 0xFFF))
    normal = builder.lshr(builder.add(rebiased, odd), words.all(13))
    # The sum's last place is float16's least denormal, 2**-24.
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
