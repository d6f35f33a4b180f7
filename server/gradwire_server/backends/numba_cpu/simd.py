"""Instructions on memory by address, for compiled kernels: integers, numbers and vectors.

A loop of plain Python that numba compiles is vectorised if and as LLVM sees fit. What these kernels
need of it (16-bit formats converted in registers, no check for overlap) is spelled out instead.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.cgutils import memset, raw_memcpy
from numba.extending import intrinsic

from gradwire_server.backends.numba_cpu.formats import memory_type, narrowed, widened
from gradwire_server.backends.numba_cpu.vectors import (
    INT32,
    INT64,
    VectorType,
    declared,
    pointer,
    splat,
)


@intrinsic
def lanes(_context: Any, compute: Any) -> Any:
    """How many numbers of the compute type a vector holds."""
    count = VectorType(compute.dtype).lanes

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return INT64(count)

    return types.int64(compute), generate


@intrinsic
def call(_context: Any, address: Any, arguments: Any) -> Any:
    """Call the C function at an address with a tuple of int64; it returns nothing."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        values = [
            context.cast(builder, builder.extract_value(args[1], index), one, types.int64)
            for index, one in enumerate(arguments)
        ]
        kind = ir.FunctionType(ir.VoidType(), [INT64] * len(values))
        builder.call(pointer(builder, args[0], kind), values)
        return context.get_dummy_value()

    return types.void(types.int64, arguments), generate


@intrinsic
def integer_at(_context: Any, address: Any) -> Any:
    """The int64 at an address."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load(pointer(builder, args[0], INT64))

    return types.int64(types.int64), generate


@intrinsic
def number_at(_context: Any, compute: Any, address: Any) -> Any:
    """The number of the compute type at an address."""
    element = VectorType(compute.dtype).ir.element

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        value = builder.load(pointer(builder, args[1], element))
        value.align = 1
        return value

    return compute.dtype(compute, types.int64), generate


@intrinsic
def put_number(_context: Any, address: Any, number: Any) -> Any:
    """Write a number of the compute type."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store(args[1], builder.inttoptr(args[0], args[1].type.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, number), generate


@intrinsic
def broadcast(_context: Any, compute: Any, address: Any) -> Any:
    """The number at an address, in all lanes."""
    vector = VectorType(compute.dtype)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        number = builder.load(pointer(builder, args[1], vector.ir.element))
        return splat(builder, number, vector.lanes)

    return vector(compute, types.int64), generate


@intrinsic
def product(_context: Any, compute: Any, weight: Any, value: Any) -> Any:
    """A vector times the number at an address."""
    vector = VectorType(compute.dtype)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        number = builder.load(pointer(builder, args[1], vector.ir.element))
        return builder.fmul(splat(builder, number, vector.lanes), args[2])

    return vector(compute, types.int64, vector), generate


@intrinsic
def unweighted(_context: Any, compute: Any, weight: Any, value: Any) -> Any:
    """A vector times 1: a weight that need not be multiplied."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return args[2]

    return value(compute, types.int64, value), generate


@intrinsic
def zeros(_context: Any, compute: Any) -> Any:
    """+0 in all lanes."""
    vector = VectorType(compute.dtype)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return ir.Constant(vector.ir, None)

    return vector(compute), generate


@intrinsic
def load(_context: Any, memory: Any, compute: Any, address: Any) -> Any:
    """As many numbers of a format as a vector has lanes, in the compute type."""
    vector = VectorType(compute.dtype)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = memory_type(memory, vector)
        value = builder.load(pointer(builder, args[2], kind))
        value.align = 1
        return widened(builder, memory, value, vector)

    return vector(memory, compute, types.int64), generate


@intrinsic
def load_first(_context: Any, memory: Any, compute: Any, address: Any, count: Any) -> Any:
    """The same with the first lanes only: the others are 0, and their memory is not touched."""
    vector = VectorType(compute.dtype)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = memory_type(memory, vector)
        place = pointer(builder, args[2], kind)
        name = f"llvm.masked.load.{_suffix(kind)}.p0"
        mask = _first(builder, args[3], vector.lanes)
        function = declared(builder, name, kind, [place.type, INT32, mask.type, kind])
        value = builder.call(function, [place, INT32(1), mask, ir.Constant(kind, None)])
        return widened(builder, memory, value, vector)

    return vector(memory, compute, types.int64, types.int64), generate


@intrinsic
def prefetch(_context: Any, address: Any) -> Any:
    """Have a cache line brought near; any address will do, mapped or not."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = pointer(builder, args[0], ir.IntType(8))
        kinds = [place.type, INT32, INT32, INT32]
        function = declared(builder, "llvm.prefetch.p0", ir.VoidType(), kinds)
        # To read, into the nearest cache, data.
        builder.call(function, [place, INT32(0), INT32(3), INT32(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def store(_context: Any, memory: Any, address: Any, vector: Any) -> Any:
    """Write a vector in a format, rounded to nearest even."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        value = narrowed(builder, memory, args[2], vector)
        builder.store(value, pointer(builder, args[1], value.type)).align = 1
        return context.get_dummy_value()

    return types.void(memory, types.int64, vector), generate


@intrinsic
def store_first(_context: Any, memory: Any, address: Any, vector: Any, count: Any) -> Any:
    """The same with the first lanes only: the memory of the others is not touched."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        value = narrowed(builder, memory, args[2], vector)
        place = pointer(builder, args[1], value.type)
        name = f"llvm.masked.store.{_suffix(value.type)}.p0"
        mask = _first(builder, args[3], vector.lanes)
        kinds = [value.type, place.type, INT32, mask.type]
        builder.call(declared(builder, name, ir.VoidType(), kinds), [value, place, INT32(1), mask])
        return context.get_dummy_value()

    return types.void(memory, types.int64, vector, types.int64), generate


@intrinsic
def put_streaming(_context: Any, address: Any, vector: Any) -> Any:
    """Write a vector past the caches. The address is a multiple of 64, and others see it late."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        instruction = builder.store(args[1], pointer(builder, args[0], args[1].type))
        instruction.align = 64
        instruction.set_metadata("nontemporal", builder.module.add_metadata([INT32(1)]))
        return context.get_dummy_value()

    return types.void(types.int64, vector), generate


@intrinsic
def fence(_context: Any) -> Any:
    """Let others see what was written before, if they see anything that is written after."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def copy(_context: Any, to: Any, source: Any, count: Any) -> Any:
    """Copy so many bytes, which do not overlap."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        to, source = (pointer(builder, one, ir.IntType(8)) for one in args[:2])
        raw_memcpy(builder, to, source, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def clear(_context: Any, address: Any, count: Any) -> Any:
    """Write so many zero bytes: +0 in every format."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        memset(builder, builder.inttoptr(args[0], ir.IntType(8).as_pointer()), args[1], 0)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _first(builder: Any, count: Any, total: int) -> Any:
    """Mask of the first lanes."""
    words = ir.VectorType(INT32, total)
    limit = splat(builder, builder.trunc(count, INT32), total)
    return builder.icmp_signed("<", ir.Constant(words, list(range(total))), limit)


def _suffix(kind: ir.VectorType) -> str:
    names = {"half": "f16", "float": "f32", "double": "f64"}
    return f"v{kind.count}{names.get(str(kind.element), str(kind.element))}"
