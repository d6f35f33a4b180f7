"""What compiled code asks of the operating system: semaphores, the clock, memory, processors."""

from __future__ import annotations

import time
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gradwire_server.backends.numba_cpu.vectors import INT32, INT64, declared

_LINE_BYTES = 64


def _function(name: str, result: Any, *arguments: Any) -> Any:
    """A function of the C library; pointers are integers."""
    return types.ExternalFunction(name, result(*arguments))


sem_init = _function("sem_init", types.int32, types.int64, types.int32, types.uint32)
sem_post = _function("sem_post", types.int32, types.int64)
sem_wait = _function("sem_wait", types.int32, types.int64)
sched_yield = _function("sched_yield", types.int32)
sched_getcpu = _function("sched_getcpu", types.int32)
sched_getaffinity = _function(
    "sched_getaffinity", types.int32, types.int32, types.int64, types.int64
)
sched_setaffinity = _function(
    "sched_setaffinity", types.int32, types.int32, types.int64, types.int64
)
calloc = _function("calloc", types.int64, types.int64, types.int64)
free = _function("free", types.void, types.int64)


@intrinsic
def nanoseconds(_context: Any) -> Any:
    """The time on the monotonic clock."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.LiteralStructType([INT64, INT64])  # timespec
        place = _on_stack(builder, kind)
        clock = declared(builder, "clock_gettime", INT32, [INT32, place.type])
        builder.call(clock, [INT32(time.CLOCK_MONOTONIC), place])
        told = builder.load(place)
        seconds, rest = (builder.extract_value(told, index) for index in (0, 1))
        return builder.add(builder.mul(seconds, INT64(10**9)), rest)

    return types.int64(), generate


@intrinsic
def on_stack(_context: Any, size: Any) -> Any:
    """Address of so many bytes that last as long as the call, at the start of a cache line."""
    if not isinstance(size, types.IntegerLiteral):
        return None

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = _on_stack(builder, ir.ArrayType(ir.IntType(8), size.literal_value))
        return builder.ptrtoint(place, INT64)

    return types.int64(size), generate


def _on_stack(builder: Any, kind: Any) -> Any:
    with builder.goto_entry_block():
        place = builder.alloca(kind)
    place.align = _LINE_BYTES
    return place
