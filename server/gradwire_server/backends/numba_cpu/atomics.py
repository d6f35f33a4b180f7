"""Integers in memory that threads change at once, for compiled code.

All of these are sequentially consistent: what a thread wrote before one of them is seen by whoever
reads its outcome, and all threads see all of them in the same order.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gradwire_server.backends.numba_cpu.vectors import INT32, INT64, TARGET, declared, pointer

_ORDER = "seq_cst"


@intrinsic
def atomic_load(_context: Any, address: Any) -> Any:
    """The int64 at an address."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load_atomic(pointer(builder, args[0], INT64), _ORDER, 8)

    return types.int64(types.int64), generate


@intrinsic
def atomic_store(_context: Any, address: Any, value: Any) -> Any:
    """Write an int64."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store_atomic(args[1], pointer(builder, args[0], INT64), _ORDER, 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def exchange(_context: Any, address: Any, value: Any) -> Any:
    """Write an int64 and return the one that was there."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.atomic_rmw("xchg", pointer(builder, args[0], INT64), args[1], _ORDER)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def fetch_add(_context: Any, address: Any, value: Any) -> Any:
    """Add to an int64 and return what was there before."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", pointer(builder, args[0], INT64), args[1], _ORDER)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def compare_exchange(_context: Any, address: Any, expected: Any, value: Any) -> Any:
    """Write an int64 where the expected one is; whether it was."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = pointer(builder, args[0], INT64)
        found = builder.cmpxchg(place, args[1], args[2], _ORDER, _ORDER)
        return builder.extract_value(found, 1)

    return types.boolean(types.int64, types.int64, types.int64), generate


@intrinsic
def pause(_context: Any) -> Any:
    """Tell the processor that this thread waits in a loop."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        processor = TARGET[0].partition("-")[0]
        if processor in {"x86_64", "i686"}:
            builder.call(declared(builder, "llvm.x86.sse2.pause", ir.VoidType(), []), [])
        elif processor in {"aarch64", "arm64"}:
            hint = declared(builder, "llvm.aarch64.hint", ir.VoidType(), [INT32])
            builder.call(hint, [INT32(1)])  # YIELD
        return context.get_dummy_value()

    return types.void(), generate
