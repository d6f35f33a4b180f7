"""What every device that runs the CUDA kernels must compute with NumPy's bits, row by row.

Devices are the simulated ones of cuda_device.py and a real GPU.

    PYTHONPATH=server:client:tests python tests/support/kernels/cuda_table.py [sim]

computes few_rows() on a device, for a tool that watches the process, and prints one hash of all
results, which is NumPy's where the bits are.
"""

from __future__ import annotations

import hashlib
import math
import sys
import zlib
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from itertools import chain, product
from typing import Literal, NamedTuple

import numpy as np
import pytest

from cudasim.module import Buffer, Module, why_not
from gradwire_server.backends import Backend, NumpyCpu
from gradwire_server.backends.cuda import cupy_device
from gradwire_server.backends.cuda.backend import Cuda
from gradwire_server.backends.cuda.programs import Buffer as Place
from gradwire_server.backends.cuda.programs import Program, X, Y
from gradwire_server.plans import BandedMap, Plan
from support.kernels import cuda_device, kernel_table
from support.kernels import kernel_maps as maps
from support.kernels.backend_calls import applied
from support.kernels.kernel_table import FORMATS, Case, Formats
from support.oracles import oracles

needs_simulator = pytest.mark.skipif(bool(why_not()), reason=why_not() or "g++ is here")
# For NVRTC, and for what takes minutes.
needs_cuda_packages = pytest.mark.skipif(
    find_spec("cupy") is None, reason="CuPy is not installed; .ci/cuda installs it"
)

Numbers = Literal["ordinary", "strewn", "special"]
_HALF = np.dtype(np.float16)
NUMBERS: list[Numbers] = ["strewn", "ordinary", "special"]


class Row(NamedTuple):
    """One plan on numbers of one type, to results of one type.

    numbers  ordinary; or with Inf, NaN, denormals and zeros of both signs strewn in; or only those
    """

    case: Case
    formats: Formats
    numbers: Numbers

    @property
    def name(self) -> str:
        arriving, leaving = self.formats
        return f"{self.case.name}, {self.numbers} {arriving} to {leaving}"

    @property
    def program(self) -> Program:
        return cuda_device.program(self.case.plan, *self.formats)

    @property
    def kernels(self) -> frozenset[str]:
        return frozenset(launch.kernel for launch in self.program.launches)

    @property
    def size(self) -> int:
        return math.prod(self.case.plan.input_shape) + math.prod(self.case.plan.output_shape)

    def check(self, device: Backend) -> None:
        oracles.same_bits(self.result(device), self.result(NumpyCpu()))

    def result(self, device: Backend) -> oracles.Tensor:
        arriving, leaving = self.formats
        if self.numbers == "special":
            rng = np.random.default_rng(zlib.crc32(self.name.encode()))
            with np.errstate(all="ignore"):
                values = np.array(oracles.VALUES).astype(arriving)
            x = rng.choice(values, self.case.plan.input_shape)
        else:
            x = kernel_table.numbers(self.case, arriving, special=self.numbers == "strewn")
        return applied(device, self.case.plan, x, leaving)


def cases() -> list[Case]:
    return [*kernel_table.cases(), *own_cases()]


def rows_of(case: Case) -> Iterator[Row]:
    """Yield one plan's rows: in three of the formats, and in all where it is the table's own."""
    formats = FORMATS if case in own_cases() else kernel_table.some_formats(case)
    for number, one in enumerate(formats):
        yield Row(case, one, NUMBERS[number % len(NUMBERS)])


def rows() -> list[Row]:
    return [row for case in cases() for row in rows_of(case)]


def watched_rows() -> list[Row]:
    """Return rows for the sanitizers, which take long: small tensors, one type of each size."""
    formats = [(np.dtype(one),) * 2 for one in (np.float16, np.float32, np.float64)]
    return [row for row in rows() if row.formats in formats and row.size <= 20_000]


def few_rows() -> list[Row]:
    """Return rows that launch every kernel that any row does, on as few numbers as that takes."""
    found, seen = list[Row](), set[str]()
    for row in sorted(rows(), key=lambda row: row.size):
        if not row.kernels <= seen:
            seen |= row.kernels
            found.append(row)
    return found


def digest(device: Backend, some: Collection[Row]) -> str:
    """Return one hash of all results, every NaN being the same."""
    found = hashlib.sha256()
    for row in some:
        found.update(oracles.canonical(row.result(device)).tobytes())
    return found.hexdigest()


@cache
def own_cases() -> list[Case]:
    """Return the plans that are there for what only CUDA kernels tell apart."""
    return list(chain(_steps(), _ranks(), _layouts(), _small_planes(), _awkward()))


def _steps() -> Iterator[Case]:
    """Shrink rows and columns by 2 and by 4, in rows of whole vectors and in others.

    A warp has 32 lanes of 16 bytes; rows around that many numbers are split differently.
    """
    sides = {
        "one lane": (1, 3, 8),
        "a part of a warp": (3, 5, 16),
        "a full warp": (2, 4, 128),
        "more than a warp": (2, 3, 132),
        "several tiles": (1, 9, 520),
        "rows that are no vectors": (2, 3, 9),
        "a single row": (5, 1, 32),
        "more rows than a strip": (1, 67, 8),
    }
    for (name, (outer, height, width)), step in product(sides.items(), (2, 4)):
        for kind in (maps.linear, maps.nearest, *[maps.cubic] * (step == 2)):
            rows = kind(height, step * height).adjoint()
            columns = kind(width, step * width).adjoint()
            shape = (outer, rows.inputs, columns.inputs)
            where = f"{kind.__name__} steps of {step}, {name}"
            yield Case.of(where, shape, {1: rows, 2: columns})
    # March along rows of whole vectors, in tiles that begin anywhere.
    rows = maps.linear(10, 23).adjoint()
    for channels, width in {1: 232, 3: 116}.items():
        columns = maps.linear(width // 2 - 9, width).adjoint()
        of, of_all = f", {channels} channels" * (channels > 1), (2, 23, width, channels)
        yield Case.of(f"rows of vectors, several tiles{of}", of_all, {1: rows, 2: columns})
        yield Case.of(f"rows of vectors, alone{of}", of_all[1:], {1: columns})


def _ranks() -> Iterator[Case]:
    """Move the first, a middle and the last axis, and every other, of tensors of 1 to 8 axes."""
    for rank in range(1, 9):
        shape = (5, 4, 3, 2, 3, 2, 3, 4)[:rank]
        for axis in sorted({0, rank // 2, rank - 1}):
            up = maps.cubic(shape[axis], 2 * shape[axis] + 1)
            yield Case.of(f"axis {axis} of {rank}", shape, {axis: up})
        if rank > 1:
            each = {axis: maps.linear(shape[axis], shape[axis] + 1) for axis in range(1, rank, 2)}
            yield Case.of(f"every axis of {rank}", shape, each)
    # Have several launches and many outer slices, of whole vectors and of others.
    rng = np.random.default_rng(10)
    gaps = maps.thinned(maps.linear(4, 6), rng.random(6) < 0.3)
    for name, inner in {"slices of vectors": 8, "slices of odd lengths": 5}.items():
        moving = {1: gaps, 2: maps.cubic(3, 5), 3: maps.linear(inner, 2 * inner)}
        yield Case.of(f"many {name}", (50, 4, 3, inner), moving, fill=2.5)


def _layouts() -> Iterator[Case]:
    """Move two and three axes with channels before them, behind them, and in between."""
    kinds = (maps.linear, maps.cubic, maps.nearest, maps.area)
    for kind, channels in product(kinds, (1, 3, 8, 131)):
        name, up, back = kind.__name__, kind(7, 12), kind(6, 11).adjoint()
        yield Case.of(f"{name}, {channels} channels first", (2, channels, 7, 11), {2: up, 3: back})
        yield Case.of(f"{name}, {channels} channels last", (2, 7, 11, channels), {1: up, 2: back})
        yield Case.of(f"{name}, {channels} between", (2, 7, channels, 11), {1: up, 3: back})
    same = maps.cubic(9, 8)
    for channels in (1, 5, 16, 131):
        shape = (7, 9, channels)
        yield Case.of(f"four read a column of {channels}", shape, {0: maps.area(7, 3), 1: same})
        deep = {1: maps.linear(3, 6), 2: maps.linear(4, 8), 3: maps.linear(5, 10)}
        yield Case.of(f"three axes, {channels} channels", (2, 3, 4, 5, channels), deep)


def _small_planes() -> Iterator[Case]:
    """Have many planes of a few numbers, and planes narrower than a lane."""
    for side in (1, 2, 3, 7, 14):
        up = maps.linear(side, 2 * side)
        moving = {1: up.adjoint(), 2: up.adjoint()}
        yield Case.of(f"planes of {2 * side}", (301, 2 * side, 2 * side), moving)
        yield Case.of(f"planes to {2 * side}", (301, side, side), {1: up, 2: up})
    thirds = maps.area(30, 3)
    yield Case.of("narrow planes, wide bands", (41, 30, 30), {1: thirds, 2: thirds})
    yield Case.of("narrow planes, wide bands, last", (301, 30), {1: thirds})
    # Read more of a row for each result than is held of it at once, or than weights are.
    rng = np.random.default_rng(8)
    sizes = ((9, 30, 2), (1, 2048, 2), (3, 2600, 3), (70, 2500, 1), (2, 4100, 300))
    for rows, length, outputs in sizes:
        bands = maps.wide(rng, length, outputs)
        yield Case.of(f"{rows} times {outputs} of {length}", (rows, length), {1: bands})


def _with_awkward_weights(rng: np.random.Generator, bands: BandedMap) -> BandedMap:
    return maps.reweighted(bands, rng.choice(oracles.WEIGHTS, bands.nnz))


def _awkward() -> Iterator[Case]:
    """Have weights that are zeros of both signs, denormals, huge and inexact numbers."""
    rng = np.random.default_rng(7)
    single = maps.stepped(90, 45, step=2, taps=[1], weights=[1.0])
    for name, bands in {
        "one tap": single,
        "several taps": maps.cubic(90, 70),
        "a step": maps.linear(45, 90).adjoint(),
        "gaps": maps.thinned(maps.linear(90, 60), rng.random(60) < 0.3),
    }.items():
        one, other = _with_awkward_weights(rng, bands), _with_awkward_weights(rng, bands)
        yield Case.of(f"awkward weights, {name}, last", (7, 90), {1: one})
        yield Case.of(f"awkward weights, {name}, inside", (3, 90, 16), {1: one})
        yield Case.of(f"awkward weights, {name}, two axes", (2, 90, 90), {1: one, 2: other})
        moving = {0: one, 1: other}
        yield Case.of(f"awkward weights, {name}, channels", (90, 90, 8), moving)
    # At most one or two taps on rows and columns, and outputs without taps.
    rng = np.random.default_rng(9)
    halved, sparse = maps.linear(40, 20).adjoint(), maps.linear(80, 20).adjoint()
    gaps = maps.thinned(maps.linear(30, 40), rng.random(40) < 0.3)
    for channels in (1, 3):
        of, shape = f"of rows with gaps, {channels} channels", (3, 20, 20, channels)
        yield Case.of(f"one tap {of}", shape, {1: sparse, 2: halved}, fill=-1.5)
    yield Case.of("one tap of columns with gaps", (5, 20, 20), {1: halved, 2: sparse}, fill=-1.5)
    yield Case.of("two taps of columns with gaps", (3, 30, 30), {1: gaps, 2: gaps}, fill=-1.5)
    turned = maps.backwards(maps.linear(30, 40))
    yield Case.of("two taps, backwards, 3 channels", (2, 30, 30, 3), {1: turned, 2: turned})
    for name, bands in {"one": sparse, "two": gaps}.items():
        both = {1: _with_awkward_weights(rng, bands), 2: _with_awkward_weights(rng, bands)}
        yield Case.of(f"awkward weights, at most {name}", (2, bands.inputs, bands.inputs), both)


def check_rows(backend: Backend, *, columns: int, period: int = 1_000_003) -> None:
    """Assert that rows of so many float16, equal every `period` columns, give NumPy's bits.

    A period that is a prime tells columns apart, whatever power of two lies between them.
    """
    up = maps.linear(2, 3)
    rng = np.random.default_rng(6)
    some = rng.standard_normal((2, period)).astype(np.float16)
    expected = applied(NumpyCpu(), Plan.build([up, None], some.shape), some, some.dtype)
    x = np.empty((2, columns), some.dtype)
    parts = [slice(first, first + period) for first in range(0, columns, period)]
    for part in parts:
        x[:, part] = some[:, : columns - part.start]
    y = applied(backend, Plan.build([up, None], x.shape), x, x.dtype)
    for part in parts:
        oracles.same_bits(y[:, part].copy(), expected[:, : columns - part.start].copy())


class Huge(NamedTuple):
    """A plan for a tensor of more than 2**31 numbers, and how much of its end is looked at.

    Nearly all are pages of zeros that nobody touches. Only the last blocks of each launch run, and
    only what they write is compared.

    shape   of the input
    moving  maps by axis
    tail    outputs along the first axis that are computed
    seen    how many numbers at the end of them are compared, 0 for all
    """

    name: str
    shape: tuple[int, ...]
    moving: Mapping[int, BandedMap]
    tail: int = 2
    seen: int = 0

    @property
    def plan(self) -> Plan:
        return _plan(self.shape, self.moving)

    @property
    def program(self) -> Program:
        return cuda_device.program(self.plan, _HALF, _HALF)

    def check(self, module: Module) -> None:
        """Assert that the end of the result has NumPy's bits."""
        plan, moving, first = self.plan, dict(self.moving), self.shape[0] - self.tail
        if bands := self.moving.get(0):
            begin = bands.outputs - self.tail
            first = int(bands.start[begin:].min())
            moving[0] = bands.window(begin, bands.outputs, first, bands.inputs)
        rng = np.random.default_rng(len(self.name))
        x = rng.standard_normal((self.shape[0] - first, *self.shape[1:])).astype(_HALF)
        expected = applied(NumpyCpu(), _plan(x.shape, moving), x, _HALF)
        expected = expected.ravel()[-self.seen :]
        source = module.sparse(math.prod(self.shape) * _HALF.itemsize)
        source.view(_HALF, x.size, first=math.prod(self.shape) - x.size)[:] = x.ravel()
        # One thread makes at most 64 outputs along the first axis, one after the other.
        share = (self.tail + 64) / plan.output_shape[0]
        _check_last_blocks(module, plan, source, expected, share=share)


def check_huge_rows(module: Module) -> None:
    """Assert the same of two rows of 2**30 numbers each that become three."""
    length, seen, filled = 2**30 + 8, 500, 1 << 16
    bands = maps.linear(2, 3)
    plan = _plan((2, length), {0: bands})
    x = np.random.default_rng(1).standard_normal((2, filled)).astype(_HALF)
    expected = applied(NumpyCpu(), _plan(x.shape, {0: bands}), x, _HALF)
    source = module.sparse(2 * length * _HALF.itemsize)
    for row in range(2):
        source.view(_HALF, filled, first=(row + 1) * length - filled)[:] = x[row]
    _check_last_blocks(module, plan, source, expected[-1, -seen:].copy(), share=8 / 2**20)


def huge() -> list[Huge]:
    """Return a plan for each kernel, whose input or output has more than 2**31 numbers."""
    up, down, nearest = maps.linear, maps.linear(500, 1000).adjoint(), maps.nearest
    gaps = maps.thinned(maps.linear(8, 6), np.arange(6) == 5)
    large, wide = maps.linear(23_552, 47_104).adjoint(), up(17_000, 16_500)
    image, copied = up(47_000, 46_000), nearest(23_500, 47_000)
    twice, halved = nearest(250, 500), nearest(500, 250)
    return [
        Huge("one axis, much inside", (300_000, 9, 1000), {1: maps.cubic(9, 7)}),
        Huge("one axis, little inside", (90_000_000, 9, 3), {1: up(9, 10)}, tail=9),
        Huge("the last axis", (2_200_000, 1000), {1: down}, tail=40),
        Huge("the last axis, more out", (2_200_000, 500), {1: up(500, 1000)}, tail=40),
        Huge("two axes", (9000, 500, 500), {1: up(500, 400), 2: up(500, 411)}),
        Huge("two axes, more out", (9000, 410, 401), {1: up(410, 500), 2: up(401, 501)}),
        Huge("two axes by steps", (2200, 1000, 1000), {1: down, 2: down}),
        Huge("two axes of channels", (36_000, 31, 31, 64), {1: up(31, 20), 2: up(31, 22)}),
        Huge("copied to more", (9000, 250, 250), {1: twice, 2: twice}),
        Huge("copied to fewer", (9000, 500, 500), {1: halved, 2: halved}),
        Huge("gaps", (300_000, 8, 30, 30), {1: gaps, 2: up(30, 31), 3: up(30, 40)}),
        Huge("one large image", (47_000, 47_000), {0: image, 1: image}),
        Huge("one large image by steps", (47_104, 47_104), {0: large, 1: large}),
        Huge("one large image of channels", (17_000, 17_000, 8), {0: wide, 1: wide}, seen=200),
        Huge("one large image, copied", (23_500, 23_500), {0: copied, 1: copied}),
    ]


def _plan(shape: tuple[int, ...], moving: Mapping[int, BandedMap]) -> Plan:
    return Plan.build([moving.get(axis) for axis in range(len(shape))], shape, fill=-1.5)


def _check_last_blocks(
    module: Module, plan: Plan, x: Buffer, expected: oracles.Tensor, *, share: float
) -> None:
    """Run the share of each launch's blocks that comes last."""
    size, program = math.prod(plan.output_shape), cuda_device.program(plan, _HALF, _HALF)
    y = module.sparse(size * _HALF.itemsize)
    buffers: dict[Place, Buffer] = {X: x, Y: y}
    buffers |= {place: module.holding(one) for place, one in program.tables.items()}
    buffers |= {place: module.sparse(nbytes) for place, nbytes in program.scratch.items()}
    addresses = {place: buffer.address for place, buffer in buffers.items()}
    for launch in program.launches:
        blocks = math.prod(launch.grid)
        count = min(blocks, math.ceil(blocks * share) + 2)
        module.launch(
            launch.kernel,
            launch.grid,
            launch.block,
            launch.resolved(addresses),
            blocks=(blocks - count, blocks),
        )
    last = y.view(_HALF, expected.size, first=size - expected.size)
    oracles.same_bits(last, expected)


if __name__ == "__main__":
    if sys.argv[1:]:
        backend = cuda_device.simulated_cuda(cuda_device.compiled())
    else:
        try:
            backend = Cuda(cupy_device.CupyDevice(), memory_bytes=256 << 20).on_device()
        except ImportError as error:
            sys.exit(f"cuda cannot run here: {error}")
    sys.stdout.write(digest(backend, few_rows()) + "\n")
