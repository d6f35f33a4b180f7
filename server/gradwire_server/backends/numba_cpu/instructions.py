"""Instructions on memory by address and on vectors, for compiled kernels.

LLVM vectorizes plain loops if and as it sees fit. The kernels spell their vector code out instead:
16-bit formats are converted in registers, and buffers need no overlap checks.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core.cgutils import memset, raw_memcpy
from numba.extending import intrinsic

from gradwire_server.backends.numba_cpu.vectors import (
    FEATURES,
    INT32,
    INT64,
    VECTOR_BITS,
    VectorType,
    declared,
    emits,
    memory_type,
    narrowed,
    pointer,
    shuffle,
    splat,
    widened,
)


@intrinsic
def lanes(_context, compute):
    """Number of lanes of a vector of the compute type."""
    count = VectorType(compute.dtype).lanes

    def build(builder, _compute):
        return INT64(count)

    return emits(types.int64(compute), build)


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
def number_at(_context, compute, address):
    """The number of the compute type at an address."""
    element = VectorType(compute.dtype).ir.element

    def build(builder, _compute, address):
        return _loaded(builder, address, element)

    return emits(compute.dtype(compute, types.int64), build)


@intrinsic
def put_number(_context, address, number):
    """Write a number to an address."""

    def build(builder, address, number):
        builder.store(number, builder.inttoptr(address, number.type.as_pointer()))

    return emits(types.void(types.int64, number), build)


@intrinsic
def broadcast(_context, compute, address):
    """The number at an address, in all lanes."""
    vector = VectorType(compute.dtype)

    def build(builder, _compute, address):
        return _splat_at(builder, address, vector)

    return emits(vector(compute, types.int64), build)


@intrinsic
def product(_context, compute, weight, value):
    """A vector times the number at address weight."""
    vector = VectorType(compute.dtype)

    def build(builder, _compute, weight, value):
        return builder.fmul(_splat_at(builder, weight, vector), value)

    return emits(vector(compute, types.int64, vector), build)


@intrinsic
def unweighted(_context, compute, weight, value):
    """The vector itself, in place of `product` where every weight is 1."""

    def build(builder, _compute, _weight, value):
        return value

    return emits(value(compute, types.int64, value), build)


@intrinsic
def zeros(_context, compute):
    """+0 in all lanes."""
    vector = VectorType(compute.dtype)

    def build(builder, _compute):
        return ir.Constant(vector.ir, None)

    return emits(vector(compute), build)


@intrinsic
def load(_context, memory, compute, address):
    """A vector of elements of a format, converted to the compute type."""
    vector = VectorType(compute.dtype)

    def build(builder, _memory, _compute, address):
        value = _loaded(builder, address, memory_type(memory, vector))
        return widened(builder, memory, value, vector)

    return emits(vector(memory, compute, types.int64), build)


@intrinsic
def load_first(_context, memory, compute, address, count):
    """As `load`, the first count lanes only; the others are 0 and their memory is not read."""
    vector = VectorType(compute.dtype)

    def build(builder, _memory, _compute, address, count):
        kind = memory_type(memory, vector)
        place = pointer(builder, address, kind)
        name = f"llvm.masked.load.{_suffix(kind)}.p0"
        mask = _first(builder, count, vector.lanes)
        function = declared(builder, name, kind, [place.type, INT32, mask.type, kind])
        value = builder.call(function, [place, INT32(1), mask, ir.Constant(kind, None)])
        return widened(builder, memory, value, vector)

    return emits(vector(memory, compute, types.int64, types.int64), build)


@intrinsic
def prefetch(_context, address):
    """Prefetch a cache line; the address need not be mapped."""

    def build(builder, address):
        place = pointer(builder, address, ir.IntType(8))
        kinds = [place.type, INT32, INT32, INT32]
        function = declared(builder, "llvm.prefetch.p0", ir.VoidType(), kinds)
        # For reading, with the highest locality, of data.
        builder.call(function, [place, INT32(0), INT32(3), INT32(1)])

    return emits(types.void(types.int64), build)


@intrinsic
def store(_context, memory, address, vector):
    """Write a vector in a format, rounded to nearest even."""

    def build(builder, _memory, address, value):
        value = narrowed(builder, memory, value, vector)
        builder.store(value, pointer(builder, address, value.type)).align = 1

    return emits(types.void(memory, types.int64, vector), build)


@intrinsic
def store_first(_context, memory, address, vector, count):
    """As `store`, the first count lanes only; the memory of the others is not written."""

    def build(builder, _memory, address, value, count):
        value = narrowed(builder, memory, value, vector)
        place = pointer(builder, address, value.type)
        name = f"llvm.masked.store.{_suffix(value.type)}.p0"
        mask = _first(builder, count, vector.lanes)
        kinds = [value.type, place.type, INT32, mask.type]
        builder.call(declared(builder, name, ir.VoidType(), kinds), [value, place, INT32(1), mask])

    return emits(types.void(memory, types.int64, vector, types.int64), build)


@intrinsic
def put_streaming(_context, address, vector):
    """Write a vector with a non-temporal store; address is a multiple of 64. Needs `fence`."""

    def build(builder, address, vector):
        instruction = builder.store(vector, pointer(builder, address, vector.type))
        instruction.align = 64
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


def _splat_at(builder, address, vector):
    number = builder.load(pointer(builder, address, vector.ir.element))
    return splat(builder, number, vector.lanes)


def _first(builder, count, total):
    """Return the mask of the first count lanes."""
    words = ir.VectorType(INT32, total)
    limit = splat(builder, builder.trunc(count, INT32), total)
    return builder.icmp_signed("<", ir.Constant(words, list(range(total))), limit)


def _suffix(kind):
    names = {"half": "f16", "float": "f32", "double": "f64"}
    return f"v{kind.count}{names.get(str(kind.element), str(kind.element))}"


# Whether `pick` and `pick_of` can be compiled.
CAN_PICK = "+avx512f" in FEATURES


@intrinsic(prefer_literal=True)
def every_second(_context, low, high, first):
    """Lanes first, first + 2, first + 4 ... of two concatenated vectors; first is 0 or 1."""
    count, begin = low.lanes, first.literal_value

    def build(builder, low, high, _first):
        return shuffle(builder, low, high, [2 * lane + begin for lane in range(count)])

    return emits(low(low, high, first), build)


@intrinsic(prefer_literal=True)
def interleave(_context, even, odd, half):
    """First (half 0) or second (half 1) vector of even[0], odd[0], even[1], odd[1] ..."""
    count = even.lanes
    places = [
        half.literal_value * count // 2 + lane // 2 + lane % 2 * count for lane in range(count)
    ]

    def build(builder, even, odd, _half):
        return shuffle(builder, even, odd, places)

    return emits(even(even, odd, half), build)


@intrinsic
def pick(_context, compute, at, index, wide):
    """Elements at[index[lane]]; index is the address of integers as wide as the elements.

    Indices are less than two vectors' lanes, or four vectors' if wide is not 0. Needs CAN_PICK.
    """
    vector = VectorType(compute.dtype)

    def build(builder, _compute, at, index, wide):
        which = _loaded(builder, index, vector.words)

        def two(first):
            places = (INT64(place * VECTOR_BITS // 8) for place in (first, first + 1))
            addresses = [builder.add(at, place) for place in places]
            pair = [_loaded(builder, address, vector.ir) for address in addresses]
            return _permuted(builder, vector, which, pair)

        near, start = two(0), builder.block
        with builder.if_then(builder.icmp_signed("!=", wide, INT64(0))):
            both = _near_or_far(builder, vector, which, near, two(2))
            end = builder.block
        result = builder.phi(vector.ir)
        result.add_incoming(near, start)
        result.add_incoming(both, end)
        return result

    return emits(vector(compute, types.int64, types.int64, types.int64), build)


@intrinsic
def pick_of(_context, compute, index, onward, vectors):
    """Lanes index[lane] + onward of two or four concatenated vectors; index as in `pick`."""
    vector = VectorType(compute.dtype)

    def build(builder, _compute, index, onward, given):
        step = splat(builder, _narrowed(builder, onward, vector), vector.lanes)
        which = builder.add(_loaded(builder, index, vector.words), step)
        given = [builder.extract_value(given, place) for place in range(len(vectors))]
        low = _permuted(builder, vector, which, given[:2])
        if len(given) == 2:
            return low
        high = _permuted(builder, vector, which, given[2:])
        return _near_or_far(builder, vector, which, low, high)

    return emits(vector(compute, types.int64, types.int64, vectors), build)


def _permuted(builder, vector, which, pair):
    """Return lanes of two concatenated vectors; indices count modulo their lanes."""
    name = "ps" if vector.element == types.float32 else "pd"
    kinds = [vector.ir, vector.words, vector.ir]
    function = declared(builder, f"llvm.x86.avx512.vpermi2var.{name}.512", vector.ir, kinds)
    return builder.call(function, [pair[0], which, pair[1]])


def _near_or_far(builder, vector, which, near, far):
    """Return lanes of the first two vectors, or of the next two where the index is beyond."""
    limit = ir.Constant(vector.words, [2 * vector.lanes] * vector.lanes)
    return builder.select(builder.icmp_signed("<", which, limit), near, far)


def _narrowed(builder, number, vector):
    """Convert an int64 to the width of a vector's lanes."""
    kind = vector.words.element
    return builder.trunc(number, kind) if kind.width < 64 else number


@intrinsic
def where_more(_context, compute, counts, k, one, other):
    """Lanes of one where the integer at address counts is greater than k, else of other."""
    vector = VectorType(compute.dtype)

    def build(builder, _compute, counts, k, one, other):
        least = splat(builder, _narrowed(builder, k, vector), vector.lanes)
        more = builder.icmp_signed(">", _loaded(builder, counts, vector.words), least)
        return builder.select(more, one, other)

    return emits(vector(compute, types.int64, types.int64, one, other), build)


@intrinsic
def transpose(_context, compute, source, source_step, target, target_step):
    """Transpose a square block with the side of a vector; steps are bytes from row to row."""
    vector = VectorType(compute.dtype)

    def build(builder, _compute, source, source_step, target, target_step):
        def address(base, step, row):
            return builder.add(base, builder.mul(step, INT64(row)))

        places = (address(source, source_step, row) for row in range(vector.lanes))
        rows = [_loaded(builder, place, vector.ir) for place in places]
        for row, value in enumerate(_transposed(builder, rows)):
            place = pointer(builder, address(target, target_step, row), vector.ir)
            builder.store(value, place).align = 1

    return emits(types.void(compute, *[types.int64] * 4), build)


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
