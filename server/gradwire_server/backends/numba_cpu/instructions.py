"""Instructions on memory by address and on vectors, for compiled kernels.

LLVM vectorizes plain loops if and as it sees fit. The kernels spell their vector code out instead:
16-bit formats are converted in registers, and buffers need no overlap checks. Arguments named
`stored` are formats of elements in memory, `computed` formats of a compute type.
"""

from __future__ import annotations

from dataclasses import replace

from llvmlite import ir
from numba import types
from numba.core.cgutils import memset, raw_memcpy
from numba.extending import intrinsic

from gradwire_server.backends.numba_cpu.vectors import (
    FEATURES,
    INT32,
    INT64,
    VECTOR_BYTES,
    FormatType,
    VectorType,
    declared,
    emits,
    memory_type,
    narrowed,
    part,
    pointer,
    shuffle,
    splat,
    widened,
)


def _constant(value_of):
    """Build an intrinsic that returns an integer fact about a format."""

    @intrinsic
    def fact(_context, stored):
        def build(builder, _stored):
            return INT64(value_of(stored.format))

        return emits(types.int64(stored), build)

    return fact


lanes = _constant(lambda stored: stored.lanes)
element_bytes = _constant(lambda stored: stored.size)


def _format(format_of):
    """Build an intrinsic that returns another format."""

    @intrinsic
    def other(_context, stored):
        def build(builder, _stored):
            return ir.Constant(ir.IntType(8).as_pointer(), None)

        return emits(FormatType(format_of(stored.format))(stored), build)

    return other


computed_of = _format(lambda stored: stored.computed)
twice = _format(lambda stored: replace(stored, registers=2 * stored.registers))


@intrinsic
def call(_context, address, arguments):
    """Call the C function at an address with a tuple of int64; it returns void."""

    def generate(context, builder, sig, args):
        values = [
            context.cast(builder, builder.extract_value(args[1], index), one, types.int64)
            for index, one in enumerate(arguments)
        ]
        kind = ir.FunctionType(ir.VoidType(), [INT64] * len(values))
        builder.call(pointer(builder, args[0], kind), values)
        return context.get_dummy_value()

    return types.void(types.int64, arguments), generate


@intrinsic
def integer_at(_context, address):
    """The int64 at an address."""

    def build(builder, address):
        return builder.load(pointer(builder, address, INT64))

    return emits(types.int64(types.int64), build)


@intrinsic
def number_at(_context, computed, address):
    """The number of the compute type at an address."""
    kind = VectorType(computed.format).ir.element

    def build(builder, _computed, address):
        return _loaded(builder, address, kind)

    number = types.float32 if kind == ir.FloatType() else types.float64
    return emits(number(computed, types.int64), build)


@intrinsic
def put_number(_context, address, number):
    """Write a number to an address."""

    def build(builder, address, number):
        builder.store(number, builder.inttoptr(address, number.type.as_pointer()))

    return emits(types.void(types.int64, number), build)


def _term(build_of):
    """Build an intrinsic for a vector with its weight, or a vector of weights, at an address."""

    @intrinsic
    def term(_context, weight, value):
        def build(builder, weight, value):
            return build_of(builder, weight, value)

        return emits(value(types.int64, value), build)

    return term


def _product(builder, weight, value):
    number = builder.load(pointer(builder, weight, value.type.element))
    return builder.fmul(splat(builder, number, value.type.count), value)


# The vector times the number at the address, or lane by lane times the vector there, or itself,
# where every weight is 1.
product = _term(_product)
lanewise_product = _term(
    lambda builder, weight, value: builder.fmul(_loaded(builder, weight, value.type), value)
)
unweighted = _term(lambda builder, weight, value: value)


@intrinsic
def zeros(_context, computed):
    """+0 in all lanes."""
    vector = VectorType(computed.format)

    def build(builder, _computed):
        return ir.Constant(vector.ir, None)

    return emits(vector(computed), build)


@intrinsic
def load(_context, stored, address):
    """A vector of the elements at an address, converted to the compute type."""
    one = replace(stored.format, registers=1)
    kind = memory_type(one)

    def build(builder, _stored, address):
        # One load of all registers would read the last one first.
        values = []
        for place in range(stored.format.registers):
            at = builder.add(address, INT64(place * one.lanes * one.size))
            values.append(_loaded(builder, at, kind))
        while len(values) > 1:
            places = list(range(2 * values[0].type.count))
            pairs = zip(values[::2], values[1::2], strict=True)
            values = [shuffle(builder, *pair, places) for pair in pairs]
        return widened(builder, stored.format, values[0])

    return emits(VectorType(stored.format.computed)(stored, types.int64), build)


@intrinsic
def load_first(_context, stored, address, count):
    """As `load`, the first count lanes only; the others are 0 and their memory is not read."""
    kind = memory_type(stored.format)

    def build(builder, _stored, address, count):
        place = pointer(builder, address, kind)
        name = f"llvm.masked.load.{_suffix(kind)}.p0"
        mask = _first(builder, count, kind.count)
        function = declared(builder, name, kind, [place.type, INT32, mask.type, kind])
        value = builder.call(function, [place, INT32(1), mask, ir.Constant(kind, None)])
        return widened(builder, stored.format, value)

    vector = VectorType(stored.format.computed)
    return emits(vector(stored, types.int64, types.int64), build)


@intrinsic
def prefetch(_context, stored, address):
    """Prefetch as many cache lines as a vector fills registers; they need not be mapped."""

    def build(builder, _stored, address):
        kinds = [ir.IntType(8).as_pointer(), INT32, INT32, INT32]
        function = declared(builder, "llvm.prefetch.p0", ir.VoidType(), kinds)
        for line in range(stored.format.registers):
            place = builder.add(address, INT64(VECTOR_BYTES * line))
            # For reading, with the highest locality, of data.
            arguments = [pointer(builder, place, ir.IntType(8)), INT32(0), INT32(3), INT32(1)]
            builder.call(function, arguments)

    return emits(types.void(stored, types.int64), build)


@intrinsic
def store(_context, stored, address, vector):
    """Write a vector in a format, rounded to nearest even."""

    def build(builder, _stored, address, value):
        value = narrowed(builder, stored.format, value)
        builder.store(value, pointer(builder, address, value.type)).align = 1

    return emits(types.void(stored, types.int64, vector), build)


@intrinsic
def store_first(_context, stored, address, vector, count):
    """As `store`, the first count lanes only; the memory of the others is not written."""

    def build(builder, _stored, address, value, count):
        value = narrowed(builder, stored.format, value)
        place = pointer(builder, address, value.type)
        name = f"llvm.masked.store.{_suffix(value.type)}.p0"
        mask = _first(builder, count, vector.lanes)
        kinds = [value.type, place.type, INT32, mask.type]
        builder.call(declared(builder, name, ir.VoidType(), kinds), [value, place, INT32(1), mask])

    return emits(types.void(stored, types.int64, vector, types.int64), build)


@part
def store_until(stored, address, vector, left):
    """Write a vector, but at most so many lanes of it."""
    if left >= lanes(stored):
        store(stored, address, vector)
    else:
        store_first(stored, address, vector, left)


@intrinsic
def put_streaming(_context, address, vector):
    """Write a vector with a non-temporal store; address is a multiple of 64. Needs `fence`."""

    def build(builder, address, vector):
        instruction = builder.store(vector, pointer(builder, address, vector.type))
        instruction.align = VECTOR_BYTES
        instruction.set_metadata("nontemporal", builder.module.add_metadata([INT32(1)]))

    return emits(types.void(types.int64, vector), build)


@intrinsic
def fence(_context):
    """Order all earlier writes before all later ones, as other threads see them."""

    def build(builder):
        builder.fence("seq_cst")

    return emits(types.void(), build)


@intrinsic
def copy(_context, to, source, count):
    """Copy count bytes; the ranges do not overlap."""

    def build(builder, *arguments):
        to, source = (pointer(builder, one, ir.IntType(8)) for one in arguments[:2])
        raw_memcpy(builder, to, source, arguments[2], 1)

    return emits(types.void(types.int64, types.int64, types.int64), build)


@intrinsic
def clear(_context, address, count):
    """Write count zero bytes: +0 in every format."""

    def build(builder, address, count):
        memset(builder, builder.inttoptr(address, ir.IntType(8).as_pointer()), count, 0)

    return emits(types.void(types.int64, types.int64), build)


def _loaded(builder, address, kind):
    """Load a value from an address of any alignment."""
    value = builder.load(pointer(builder, address, kind))
    value.align = 1
    return value


def _first(builder, count, total):
    """Return the mask of the first count lanes."""
    words = ir.VectorType(INT32, total)
    limit = splat(builder, builder.trunc(count, INT32), total)
    return builder.icmp_signed("<", ir.Constant(words, list(range(total))), limit)


def _suffix(kind):
    names = {"half": "f16", "float": "f32", "double": "f64"}
    return f"v{kind.count}{names.get(str(kind.element), str(kind.element))}"


# Whether `pick` can be compiled.
CAN_PICK = "+avx512f" in FEATURES


@intrinsic(prefer_literal=True)
def every_second(_context, vector, first):
    """Lanes first, first + 2, first + 4 ... of a vector; first is 0 or 1."""
    half = VectorType(replace(vector.format, registers=vector.format.registers // 2))
    places = list(range(first.literal_value, vector.lanes, 2))

    def build(builder, vector, _first):
        return shuffle(builder, vector, vector, places)

    return emits(half(vector, first), build)


@intrinsic
def interleave(_context, even, odd):
    """The vector even[0], odd[0], even[1], odd[1] ..."""
    whole = VectorType(replace(even.format, registers=2 * even.format.registers))
    places = [lane // 2 + lane % 2 * even.lanes for lane in range(whole.lanes)]

    def build(builder, even, odd):
        return shuffle(builder, even, odd, places)

    return emits(whole(even, odd), build)


@intrinsic
def pick(_context, index, onward, vector):
    """Lanes index[lane] + onward of a vector of two or four registers.

    index is the address of integers as wide as the lanes. Needs CAN_PICK.
    """
    one = VectorType(replace(vector.format, registers=1))
    suffix = "ps" if vector.format.size == 4 else "pd"

    def build(builder, index, onward, value):
        step = splat(builder, _narrowed(builder, onward, one), one.lanes)
        which = builder.add(_loaded(builder, index, one.words), step)
        name = f"llvm.x86.avx512.vpermi2var.{suffix}.512"
        function = declared(builder, name, one.ir, [one.ir, one.words, one.ir])
        # Of each pair of registers; indices count modulo their lanes.
        picked = []
        for first in range(0, vector.lanes, 2 * one.lanes):
            low, high = (
                shuffle(builder, value, value, list(range(begin, begin + one.lanes)))
                for begin in (first, first + one.lanes)
            )
            picked.append(builder.call(function, [low, which, high]))
        if len(picked) == 1:
            return picked[0]
        limit = ir.Constant(one.words, [2 * one.lanes] * one.lanes)
        return builder.select(builder.icmp_signed("<", which, limit), *picked)

    return emits(one(types.int64, types.int64, vector), build)


def _narrowed(builder, number, vector):
    """Convert an int64 to the width of a vector's lanes."""
    kind = vector.words.element
    return builder.trunc(number, kind) if kind.width < 64 else number


@intrinsic
def where_more(_context, counts, k, one, other):
    """Lanes of one where the integer at address counts is greater than k, else of other."""

    def build(builder, counts, k, chosen, rest):
        least = splat(builder, _narrowed(builder, k, one), one.lanes)
        more = builder.icmp_signed(">", _loaded(builder, counts, one.words), least)
        return builder.select(more, chosen, rest)

    return emits(one(types.int64, types.int64, one, other), build)


@intrinsic
def transpose(_context, computed, source, source_step, target, target_step):
    """Transpose a square block with the side of a vector; steps are bytes from row to row."""
    vector = VectorType(computed.format)

    def build(builder, _computed, source, source_step, target, target_step):
        def address(base, step, row):
            return builder.add(base, builder.mul(step, INT64(row)))

        places = (address(source, source_step, row) for row in range(vector.lanes))
        rows = [_loaded(builder, place, vector.ir) for place in places]
        for row, value in enumerate(_transposed(builder, rows)):
            place = pointer(builder, address(target, target_step, row), vector.ir)
            builder.store(value, place).align = 1

    return emits(types.void(computed, *[types.int64] * 4), build)


def _transposed(builder, rows):
    """Transpose in log2(lanes) rounds: rows a span apart exchange blocks of that span."""
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
