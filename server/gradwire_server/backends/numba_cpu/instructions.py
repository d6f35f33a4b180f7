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
    instruction,
    llvm_call,
    memory_type,
    narrowed,
    part,
    pointer,
    shuffle,
    splat,
    widened,
    words_of,
)

# Whether `pick` can be compiled.
CAN_PICK = "+avx512f" in FEATURES


@instruction(types.int64)
def lanes(_builder, stored):
    """Number of elements of a format."""
    return INT64(stored.lanes)


@instruction(types.int64)
def element_bytes(_builder, stored):
    """Bytes of an element of a format."""
    return INT64(stored.size)


@instruction(lambda stored: FormatType(stored.format.computed))
def computed_of(_builder, _stored):
    """The compute type's format of as many lanes."""


@instruction(lambda stored: FormatType(_with_registers(stored, 2)))
def twice(_builder, _stored):
    """The format of twice as many lanes."""


def _with_registers(kind, times):
    return replace(kind.format, registers=int(kind.format.registers * times))


@intrinsic
def call(_context, address, arguments):
    """Call a C function with a tuple of int64.

    The function is at `address` and returns void.
    """

    def generate(context, builder, sig, args):
        values = [
            context.cast(builder, builder.extract_value(args[1], index), one, types.int64)
            for index, one in enumerate(arguments)
        ]
        kind = ir.FunctionType(ir.VoidType(), [INT64] * len(values))
        builder.call(pointer(builder, args[0], kind), values)
        return context.get_dummy_value()

    return types.void(types.int64, arguments), generate


@instruction(types.int64)
def integer_at(builder, address):
    """The int64 at an address."""
    return builder.load(pointer(builder, address, INT64))


@instruction(lambda computed, _: getattr(types, computed.format.name))
def number_at(builder, computed, address):
    """The number of the compute type at an address."""
    return _loaded(builder, address, memory_type(computed).element)


@instruction(types.void)
def put_number(builder, address, number):
    """Write a number to an address."""
    builder.store(number, pointer(builder, address, number.type))


@instruction(lambda _, value: value)
def product(builder, weight, value):
    """A vector times the number at address weight."""
    number = builder.load(pointer(builder, weight, value.type.element))
    return builder.fmul(splat(builder, number, value.type.count), value)


@instruction(lambda _, value: value)
def lanewise_product(builder, weights, value):
    """A vector times the vector at address weights, lane by lane."""
    return builder.fmul(_loaded(builder, weights, value.type), value)


@instruction(lambda computed: VectorType(computed.format))
def zeros(_builder, computed):
    """+0 in all lanes."""
    return ir.Constant(memory_type(computed), None)


@instruction(lambda stored, _: VectorType(stored.format.computed))
def load(builder, stored, address):
    """Elements at an address as a vector of the compute type."""
    one = replace(stored, registers=1)
    # One load of all registers would read the last one first.
    values = []
    for place in range(stored.registers):
        at = builder.add(address, INT64(place * one.lanes * one.size))
        values.append(_loaded(builder, at, memory_type(one)))
    while len(values) > 1:
        places = list(range(2 * values[0].type.count))
        pairs = zip(values[::2], values[1::2], strict=True)
        values = [shuffle(builder, *pair, places) for pair in pairs]
    return widened(builder, stored, values[0])


@instruction(lambda stored, *_: VectorType(stored.format.computed))
def load_first(builder, stored, address, count):
    """Load the first count lanes only, as `load` does.

    The other lanes are 0, and their memory is not read.
    """
    kind = memory_type(stored)
    place = pointer(builder, address, kind)
    arguments = place, INT32(1), _first(builder, count, kind.count), ir.Constant(kind, None)
    name = f"llvm.masked.load.{_suffix(kind)}.p0"
    return widened(builder, stored, llvm_call(builder, name, kind, *arguments))


@instruction(types.void)
def prefetch(builder, stored, address):
    """Prefetch as many cache lines as a vector fills registers.

    The lines need not be mapped.
    """
    for line in range(stored.registers):
        place = builder.add(address, INT64(VECTOR_BYTES * line))
        # For reading, with the highest locality, of data.
        arguments = pointer(builder, place, ir.IntType(8)), INT32(0), INT32(3), INT32(1)
        llvm_call(builder, "llvm.prefetch.p0", ir.VoidType(), *arguments)


@instruction(types.void)
def store(builder, stored, address, vector):
    """Write a vector in a format, rounded to nearest even."""
    _put(builder, address, narrowed(builder, stored, vector))


@instruction(types.void)
def store_first(builder, stored, address, vector, count):
    """Store the first count lanes only, as `store` does.

    The memory of the other lanes is not written.
    """
    value = narrowed(builder, stored, vector)
    place = pointer(builder, address, value.type)
    arguments = value, place, INT32(1), _first(builder, count, stored.lanes)
    llvm_call(builder, f"llvm.masked.store.{_suffix(value.type)}.p0", ir.VoidType(), *arguments)


@part
def load_until(stored, address, left):
    """Load a vector, but at most so many lanes of it."""
    if left >= lanes(stored):
        return load(stored, address)
    return load_first(stored, address, left)


@part
def store_until(stored, address, vector, left):
    """Write a vector, but at most so many lanes of it."""
    if left >= lanes(stored):
        store(stored, address, vector)
    else:
        store_first(stored, address, vector, left)


@instruction(types.void)
def put_streaming(builder, address, vector):
    """Write a vector with a non-temporal store.

    address is a multiple of 64. Needs `fence`.
    """
    written = builder.store(vector, pointer(builder, address, vector.type))
    written.align = VECTOR_BYTES
    written.set_metadata("nontemporal", builder.module.add_metadata([INT32(1)]))


@instruction(types.void)
def fence(builder):
    """Order all earlier writes before all later ones.

    Other threads see them in this order.
    """
    builder.fence("seq_cst")


@instruction(types.void)
def copy(builder, to, source, count):
    """Copy count bytes; the ranges do not overlap."""
    places = (pointer(builder, one, ir.IntType(8)) for one in (to, source))
    raw_memcpy(builder, *places, count, 1)


@instruction(types.void)
def clear(builder, address, count):
    """Write count zero bytes: +0 in every format."""
    memset(builder, pointer(builder, address, ir.IntType(8)), count, 0)


def _loaded(builder, address, kind):
    """Load a value from an address of any alignment."""
    value = builder.load(pointer(builder, address, kind))
    value.align = 1
    return value


def _put(builder, address, value):
    """Store a value at an address of any alignment."""
    builder.store(value, pointer(builder, address, value.type)).align = 1


def _first(builder, count, total):
    """Return the mask of the first count lanes."""
    words = ir.VectorType(INT32, total)
    limit = splat(builder, builder.trunc(count, INT32), total)
    return builder.icmp_signed("<", ir.Constant(words, list(range(total))), limit)


def _suffix(kind):
    return f"v{kind.count}{kind.element.intrinsic_name}"


def _every_second(first):
    @instruction(lambda vector: VectorType(_with_registers(vector, 1 / 2)))
    def every_second(builder, vector):
        return shuffle(builder, vector, vector, list(range(first, vector.type.count, 2)))

    return every_second


# Lanes 0, 2, 4 ... of a vector, and lanes 1, 3, 5 ...
even_lanes, odd_lanes = _every_second(0), _every_second(1)


@instruction(lambda even, _: VectorType(_with_registers(even, 2)))
def interleave(builder, even, odd):
    """The vector even[0], odd[0], even[1], odd[1] ..."""
    count = even.type.count
    places = [lane // 2 + lane % 2 * count for lane in range(2 * count)]
    return shuffle(builder, even, odd, places)


@instruction(lambda _index, low, _high: low)
def pick(builder, index, low, high):
    """Lanes index[lane] of two vectors of one register each.

    index is the address of integers as wide as the lanes. Needs CAN_PICK.
    """
    words = words_of(low.type)
    suffix = "ps" if words.element == INT32 else "pd"
    name = f"llvm.x86.avx512.vpermi2var.{suffix}.512"
    return llvm_call(builder, name, low.type, low, _loaded(builder, index, words), high)


@instruction(lambda _counts, _k, one, _other: one)
def where_more(builder, counts, k, one, other):
    """Lanes of `one` where count is above k, else of `other`.

    The counts are the integers at address `counts`.
    """
    words = words_of(one.type)
    least = k if words.element == INT64 else builder.trunc(k, words.element)
    limits = splat(builder, least, words.count)
    more = builder.icmp_signed(">", _loaded(builder, counts, words), limits)
    return builder.select(more, one, other)


@instruction(types.void)
def transpose(builder, computed, source, source_step, target, target_step):
    """Transpose a square block with the side of a vector.

    Steps are bytes from row to row.
    """

    def address(base, step, row):
        return builder.add(base, builder.mul(step, INT64(row)))

    places = (address(source, source_step, row) for row in range(computed.lanes))
    rows = [_loaded(builder, place, memory_type(computed)) for place in places]
    for row, value in enumerate(_transposed(builder, rows)):
        _put(builder, address(target, target_step, row), value)


def _transposed(builder, rows):
    """Transpose in log2(lanes) rounds.

    In each round, rows a span apart exchange blocks of that span.
    """
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
