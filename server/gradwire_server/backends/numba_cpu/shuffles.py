"""Instructions that move lanes of vectors, for compiled kernels."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gradwire_server.backends.numba_cpu.vectors import (
    FEATURES,
    INT64,
    VECTOR_BITS,
    VectorType,
    declared,
    pointer,
    shuffle,
    splat,
)

# Whether `pick` can be compiled.
CAN_PICK = "+avx512f" in FEATURES


@intrinsic(prefer_literal=True)
def every_second(_context: Any, low: Any, high: Any, first: Any) -> Any:
    """Lanes 0, 2, 4 ... of two vectors side by side, or 1, 3, 5 ...: first is a constant."""
    count, begin = low.lanes, first.literal_value

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return shuffle(builder, args[0], args[1], [2 * lane + begin for lane in range(count)])

    return low(low, high, first), generate


@intrinsic(prefer_literal=True)
def interleave(_context: Any, even: Any, odd: Any, half: Any) -> Any:
    """First (half 0) or second (half 1) vector of even[0], odd[0], even[1], odd[1] ..."""
    count = even.lanes
    places = [
        half.literal_value * count // 2 + lane // 2 + lane % 2 * count for lane in range(count)
    ]

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return shuffle(builder, args[0], args[1], places)

    return even(even, odd, half), generate


@intrinsic
def pick(_context: Any, compute: Any, at: Any, index: Any, wide: Any) -> Any:
    """Numbers at[index[lane]]: index is an address of integers as wide as the numbers.

    They reach up to two vectors from at, or four where wide is not 0. For processors where
    `CAN_PICK`.
    """
    vector = VectorType(compute.dtype)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        words = vector.words
        which = builder.load(pointer(builder, args[2], words))
        which.align = 1
        name = "ps" if vector.element == types.float32 else "pd"
        kinds = [vector.ir, words, vector.ir]
        function = declared(builder, f"llvm.x86.avx512.vpermi2var.{name}.512", vector.ir, kinds)

        def two(first: int) -> Any:
            pair = []
            for place in (first, first + 1):
                address = builder.add(args[1], INT64(place * VECTOR_BITS // 8))
                pair.append(builder.load(pointer(builder, address, vector.ir)))
                pair[-1].align = 1
            return builder.call(function, [pair[0], which, pair[1]])

        near, start = two(0), builder.block
        is_wide = builder.icmp_signed("!=", args[3], INT64(0))
        with builder.if_then(is_wide):
            limit = ir.Constant(words, [2 * vector.lanes] * vector.lanes)
            both = builder.select(builder.icmp_signed("<", which, limit), near, two(2))
            end = builder.block
        result = builder.phi(vector.ir)
        result.add_incoming(near, start)
        result.add_incoming(both, end)
        return result

    return vector(compute, types.int64, types.int64, types.int64), generate


@intrinsic
def pick_of(_context: Any, compute: Any, index: Any, onward: Any, vectors: Any) -> Any:
    """Lanes index[lane] + onward of two or four vectors side by side; index as of `pick`."""
    vector = VectorType(compute.dtype)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        which = _onward(builder, vector, args[1], args[2])
        given = [builder.extract_value(args[3], place) for place in range(len(vectors))]
        low = _permuted(builder, vector, which, given[:2])
        if len(given) == 2:
            return low
        limit = ir.Constant(vector.words, [2 * vector.lanes] * vector.lanes)
        high = _permuted(builder, vector, which, given[2:])
        return builder.select(builder.icmp_signed("<", which, limit), low, high)

    return vector(compute, types.int64, types.int64, vectors), generate


def _onward(builder: Any, vector: VectorType, index: Any, onward: Any) -> Any:
    """Load places and add a number to all."""
    words = vector.words
    which = builder.load(pointer(builder, index, words))
    which.align = 1
    step = builder.trunc(onward, words.element) if words.element.width < 64 else onward
    return builder.add(which, splat(builder, step, vector.lanes))


def _permuted(builder: Any, vector: VectorType, which: Any, pair: Any) -> Any:
    """Lanes of two vectors side by side; places count modulo their lanes."""
    name = "ps" if vector.element == types.float32 else "pd"
    kinds = [vector.ir, vector.words, vector.ir]
    function = declared(builder, f"llvm.x86.avx512.vpermi2var.{name}.512", vector.ir, kinds)
    return builder.call(function, [pair[0], which, pair[1]])


@intrinsic
def where_more(_context: Any, compute: Any, counts: Any, k: Any, one: Any, other: Any) -> Any:
    """Lanes of one where the integer at address counts is more than k, else those of other."""
    vector = VectorType(compute.dtype)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        words = vector.words
        count = builder.load(pointer(builder, args[1], words))
        count.align = 1
        least = builder.trunc(args[2], words.element) if words.element.width < 64 else args[2]
        more = builder.icmp_signed(">", count, splat(builder, least, vector.lanes))
        return builder.select(more, args[3], args[4])

    return vector(compute, types.int64, types.int64, one, other), generate


@intrinsic
def transpose(
    _context: Any, compute: Any, source: Any, source_step: Any, target: Any, target_step: Any
) -> Any:
    """Transpose a square of as many rows as a vector has lanes; steps are bytes from row to row."""
    vector = VectorType(compute.dtype)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        def place(base: Any, step: Any, row: int) -> Any:
            address = builder.add(base, builder.mul(step, INT64(row)))
            return pointer(builder, address, vector.ir)

        rows = []
        for row in range(vector.lanes):
            rows.append(builder.load(place(args[1], args[2], row)))
            rows[-1].align = 1
        for row, value in enumerate(_transposed(builder, rows)):
            builder.store(value, place(args[3], args[4], row)).align = 1
        return context.get_dummy_value()

    return types.void(compute, *[types.int64] * 4), generate


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """Transpose in log2 rounds, in each of which rows a span apart exchange blocks of that span."""
    count, span = len(rows), 1
    while span < count:
        low = [lane if not lane & span else lane - span + count for lane in range(count)]
        high = [lane + span if not lane & span else lane + count for lane in range(count)]
        done = list(rows)
        for row in range(count):
            if not row & span:
                pair = rows[row], rows[row + span]
                done[row] = shuffle(builder, *pair, low)
                done[row + span] = shuffle(builder, *pair, high)
        rows, span = done, span * 2
    return rows
