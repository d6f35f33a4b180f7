"""A list of plans that takes compiled kernels through every method, and numbers for them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from itertools import chain, product
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from gradwire_server.backends import Backend, NumpyCpu
from gradwire_server.plans import BandedMap, Plan
from support.kernels import kernel_maps as maps
from support.kernels.backend_calls import applied
from support.oracles import oracles

Shape = tuple[int, ...]
Moving = Mapping[int, BandedMap]
Formats = tuple[np.dtype[np.generic], np.dtype[np.generic]]

_FLOAT32, _FLOAT16, _BFLOAT16, _FLOAT64 = oracles.STORAGE_TYPES

# What comes in and what goes out: the storage type itself, and by turns what it is computed in.
_ARRIVING = [_FLOAT32, _FLOAT16, _FLOAT16, _FLOAT32, _BFLOAT16, _BFLOAT16, _FLOAT64, _FLOAT32]
_LEAVING = [_FLOAT32, _FLOAT32, _FLOAT16, _FLOAT16, _BFLOAT16, _FLOAT32, _FLOAT64, _BFLOAT16]
FORMATS: list[Formats] = list(zip(_ARRIVING, _LEAVING, strict=True))

# Some of them once in a while among ordinary numbers.
SPECIALS = np.array([*oracles.VALUES, 6.5e4, -3e-8, 1e-45, 3e38])


class Case(NamedTuple):
    """A plan and what it is there for."""

    name: str
    plan: Plan

    @classmethod
    def of(cls, name: str, shape: Shape, moving: Moving, *, fill: float = 0.0) -> Self:
        """Move some axes of tensors of a shape."""
        plan = Plan.build([moving.get(axis) for axis in range(len(shape))], shape, fill=fill)
        assert len(plan.passes) == len(moving)
        return cls(name, plan)


def check(backend: Backend, plan: Plan, x: oracles.Tensor, dtype: npt.DTypeLike) -> None:
    oracles.same_bits(applied(backend, plan, x, dtype), applied(NumpyCpu(), plan, x, dtype))


def numbers(case: Case, dtype: npt.DTypeLike, *, special: bool) -> oracles.Tensor:
    with np.errstate(all="ignore"):
        return _numbers(case.name, case.plan.input_shape, special=special).astype(dtype)


@lru_cache(maxsize=4)
def _numbers(name: str, shape: Shape, *, special: bool) -> oracles.Tensor:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    x = rng.standard_normal(shape)
    if special:
        there = rng.random(x.shape) < 0.02
        x[there] = rng.choice(SPECIALS, int(there.sum()))
    return x


def to_be_rounded(dtype: np.dtype[np.generic]) -> oracles.Tensor:
    """Return float32: numbers of a 16-bit type, ties, what lies beside, overflow, random bits."""
    random = np.random.default_rng(6).integers(0, 1 << 32, 1 << 19, np.uint32).view(np.float32)
    limits = np.array([65504, 65519.996, 65520, 65536, 3.3895314e38, 3.4e38], np.float32)
    with np.errstate(all="ignore"):
        exact = np.arange(1 << 16, dtype=np.uint16).view(dtype).astype(np.float32)
        finite = np.sort(exact[np.isfinite(exact)])
        ties = finite[:-1] + (finite[1:] - finite[:-1]) / 2
        near = np.concatenate([exact, ties, limits, -limits])
        beside = [np.nextafter(near, np.float32(to)) for to in (np.inf, -np.inf)]
    return np.concatenate([near, *beside, random])


def some_formats(case: Case) -> list[Formats]:
    first = zlib.crc32(case.name.encode()) % len(FORMATS)
    return [FORMATS[first - step] for step in (0, 3, 6)]


@cache
def cases() -> list[Case]:
    """Return all of them; no tensor has more than 1.2 million numbers."""
    axes = _single(), _shapes(), _several_axes()
    return list(chain(*axes, _windows(), _empty_bands()))


def _single() -> Iterator[Case]:
    """Move one axis, the last or the last but some channels, by every scale."""
    sides = [(150, 300), (300, 150), (111, 97), (97, 111), (40, 320), (320, 40), (300, 300)]
    kinds = (maps.linear, maps.cubic, maps.nearest, maps.area, maps.corners)
    for kind, (inputs, outputs) in product(kinds, sides):
        forward, back = kind(inputs, outputs), kind(outputs, inputs).adjoint()
        for bands, way in ((forward, "forward"), (back, "gradient")):
            if not bands.is_identity:
                channels = {maps.cubic: 3, maps.area: 2}.get(kind, 1)
                where = f"{kind.__name__} {way} {inputs} to {outputs}"
                yield Case.of(where, (19, inputs, channels), {1: bands})


def _shapes() -> Iterator[Case]:
    """Take axes of several tiles, and bands longer than what is held at once."""
    rng, linear, nearest = np.random.default_rng(1), maps.linear, maps.nearest
    gaps = maps.scattered(np.random.default_rng(3), 31, 64, widest=3)
    shapes: dict[str, tuple[Shape, Moving]] = {
        "tiles of doubled rows": ((2, 6000), {1: maps.linear(6000, 12000)}),
        "tiles of halved rows": ((2, 12000), {1: maps.linear(6000, 12000).adjoint()}),
        "tiles of other rows": ((3, 9001), {1: maps.linear(9001, 7001)}),
        "tiles of pixels": ((2, 3001, 3), {1: maps.cubic(3001, 2503)}),
        "tiles of columns": ((17, 3000), {1: maps.area(3000, 290)}),
        "a band wider than 4096": ((3, 5000), {1: maps.wide(rng, 5000, 3)}),
        "a band wider than 8192": ((18, 8300), {1: maps.wide(rng, 8300, 2)}),
        "wide bands of pixels": ((3, 1900, 5), {1: maps.wide(rng, 1900, 4)}),
        "wide bands read by two rows": ((2, 9000), {1: maps.wide(rng, 9000, 5)}),
        "rows longer than a tile": ((2, 9, 5000), {1: maps.cubic(9, 5)}),
        "bands of every length": ((5, 700), {1: maps.scattered(rng, 700, 400, widest=90)}),
        "short bands anywhere": ((33, 300), {1: maps.scattered(rng, 300, 200, widest=6)}),
        "descending gradient": ((9, 333), {1: maps.backwards(maps.linear(200, 333).adjoint())}),
        # Axes whose neighbors in memory share their weights.
        "columns of an image": ((37, 50), {0: linear(37, 74)}),
        "columns of images": ((3, 74, 33), {1: linear(37, 74).adjoint()}),
        "rows copied": ((3, 20, 100), {1: nearest(20, 47)}),
        "rows of one vector and a bit": ((3, 20, 17), {1: maps.cubic(20, 11)}),
        "pixels of a vector": ((2, 9, 150, 16), {1: linear(9, 5), 2: linear(150, 75)}),
        "pixels of 33 channels": ((5, 210, 33), {0: linear(5, 4), 1: maps.cubic(210, 250)}),
        "pixels copied": ((5, 50, 40), {0: nearest(5, 7), 1: nearest(50, 99)}),
        "pixels summed": ((5, 99, 40), {0: maps.area(5, 3), 1: nearest(50, 99).adjoint()}),
        "pixels with gaps": ((30, 31, 21), {0: linear(30, 20), 1: gaps}),
    }
    for name, (shape, moving) in shapes.items():
        yield Case.of(name, shape, moving)
    turned = maps.backwards(maps.scattered(rng, 300, 200, widest=6))
    yield Case.of("short bands, backwards", (33, 300), {1: turned})
    # Advance by two inputs a result or by one for two, in bands of all lengths and weights.
    rng = np.random.default_rng(2)
    for taps in ([0], [1], [2], [3], [5], [6], [2, 3], [3, 2]):
        for shift in (-3, 0):
            bands = maps.stepped(400, 203, step=2, taps=taps, weights=[0.7, -0.3, 2.0], shift=shift)
            alike = maps.rephased(rng, bands, period=1)
            where = f"two inputs a result, {taps} taps from {shift}"
            yield Case.of(where, (7, 400), {1: alike})
            yield Case.of(f"{where}, weights by turns", (4, 400), {1: bands})
            yield Case.of(f"{where}, plain", (4, 400), {1: maps.reweighted(bands, 1.0)})
    for taps in ([0], [1], [4], [2, 3], [0, 1], [1, 1]):
        bands = maps.stepped(140, 275, step=0.5, taps=taps, weights=[1.0], shift=-1)
        where = f"an input for two results, {taps} taps"
        yield Case.of(f"{where}, plain", (5, 140), {1: bands})
        yield Case.of(where, (7, 140), {1: maps.rephased(rng, bands, period=2)})
    third = maps.rephased(rng, maps.stepped(402, 134, step=3, taps=[4], weights=[1]), period=1)
    yield Case.of("three inputs a result", (3, 402), {1: third})


_SHORT = maps.cubic(4, 6)


def _several_axes() -> Iterator[Case]:
    """Move two and three axes in one go, in every way along the rows."""
    up, down = maps.linear(9, 18), maps.linear(9, 18).adjoint()
    rows = {
        "doubled": maps.linear(130, 260),
        "halved": maps.linear(130, 260).adjoint(),
        "copied": maps.nearest(130, 260),
        "narrowed": maps.cubic(130, 97),
        "by eight": maps.area(1040, 130),
        "by eight, plain": maps.nearest(100, 800).adjoint(),
        "backwards": maps.backwards(maps.linear(130, 260)),
    }
    for name, along in rows.items():
        width = along.inputs
        yield Case.of(f"two axes, {name}", (3, 18, width), {1: down, 2: along})
        yield Case.of(f"two axes apart, {name}", (2, 9, 5, width), {1: up, 3: along})
        yield Case.of(f"three axes, {name}", (2, 4, 9, width), {1: _SHORT, 2: up, 3: along})
    copied = {0: maps.nearest(4, 7), 1: maps.nearest(9, 5), 2: maps.nearest(11, 23)}
    yield Case.of("three axes copied", (4, 9, 11), copied)
    narrowed, long = maps.cubic(37, 31), maps.linear(1100, 2200).adjoint()
    yield Case.of("three axes of pixels", (4, 18, 37, 5), {0: _SHORT, 1: down, 2: narrowed})
    yield Case.of("three axes of wide pixels", (4, 9, 37, 20), {0: _SHORT, 1: up, 2: narrowed})
    yield Case.of("three axes, long rows", (4, 9, 2200), {0: _SHORT, 1: up, 2: long})
    longer = {0: maps.linear(3, 2), 1: maps.corners(40, 37), 2: maps.linear(90, 61)}
    yield Case.of("three long axes of pixels", (3, 40, 90, 3), longer)
    # Axes that take several jobs.
    rng = np.random.default_rng(5)
    four = {0: maps.linear(6, 3), 1: maps.cubic(5, 8), 2: maps.linear(7, 9), 3: maps.linear(16, 8)}
    yield Case.of("four axes", (6, 5, 7, 16), four)
    apart = {0: maps.linear(6, 9), 2: maps.cubic(5, 4), 4: maps.nearest(9, 19)}
    yield Case.of("three axes apart", (6, 3, 5, 2, 9), apart)
    six = {axis: maps.linear(4, 5) for axis in (0, 2, 3, 5)}
    yield Case.of("four axes of six", (4, 3, 4, 4, 2, 4), six)
    negative = maps.reweighted(maps.linear(6, 9), -1)
    gaps = {axis: maps.thinned(negative, rng.random(9) < 0.3) for axis in range(4)}
    yield Case.of("four axes with gaps", (6, 6, 6, 6), gaps, fill=-2.0)
    deep = {0: maps.linear(2, 3), 1: maps.wide(rng, 70, 2), 2: maps.linear(800, 1300)}
    yield Case.of("depth of too many rows", (2, 70, 800), deep)
    far = {0: maps.linear(4, 3), 1: maps.linear(3, 2), 2: maps.wide(rng, 5000, 2)}
    yield Case.of("depth of too long rows", (4, 3, 5000), far)


def _windows() -> Iterator[Case]:
    """Move one axis to three where every weight is 1."""
    rng = np.random.default_rng(6)
    rows = {
        "halved": (maps.nearest(75, 150).adjoint(), 1),
        "halved in tiles": (maps.nearest(2600, 5200).adjoint(), 1),
        "narrowed": (maps.nearest(97, 150).adjoint(), 1),
        "narrowed in tiles": (maps.nearest(3100, 4700).adjoint(), 1),
        "narrowed by more": (maps.nearest(100, 225).adjoint(), 1),
        "of pixels": (maps.nearest(61, 90).adjoint(), 3),
        "of wide pixels": (maps.nearest(31, 50).adjoint(), 53),
        "of wide pixels in tiles": (maps.nearest(90, 150).adjoint(), 130),
        "with gaps": (maps.nearest(150, 97).adjoint(), 1),
        "of wide pixels with gaps": (maps.nearest(50, 31).adjoint(), 20),
        "backwards": (maps.backwards(maps.nearest(61, 90).adjoint()), 1),
    }
    height = maps.thinned(maps.nearest(7, 18).adjoint(), np.arange(7) == 3)
    depth = maps.thinned(maps.scattered(rng, 5, 4, widest=3), np.arange(4) == 1)
    depth = maps.reweighted(depth, 1.0)
    for name, (along, channels) in rows.items():
        line = (along.inputs, channels)
        shapes = {
            "one axis": ((37, *line), {1: along}),
            "two axes": ((2, 18, *line), {1: height, 2: along}),
            "three axes": ((2, 5, 6, *line), {1: depth, 2: maps.nearest(6, 4), 3: along}),
        }
        for axes, (shape, moving) in shapes.items():
            if along.inputs < 1000 or axes != "three axes":
                yield Case.of(f"windows of {axes}, {name}", shape, moving)
    # Move rows whose weights are 1 together with another axis whose weights are not.
    rows = {
        "doubled": (maps.nearest(130, 260), 1),
        "halved": (maps.nearest(130, 260).adjoint(), 1),
        "narrowed": (maps.nearest(97, 150).adjoint(), 1),
        "by eight": (maps.nearest(50, 400).adjoint(), 1),
        "of wide pixels": (maps.nearest(31, 50).adjoint(), 53),
    }
    for name, (along, channels) in rows.items():
        moving = {0: maps.linear(9, 5), 1: along}
        yield Case.of(f"plain rows, {name}", (9, along.inputs, channels), moving)


def _empty_bands() -> Iterator[Case]:
    """Leave outputs without taps on one axis or more."""
    rng = np.random.default_rng(4)
    lines = {"rows": 150, "short rows": 21, "rows by eight": 640}
    for (name, width), fill in product(lines.items(), (0.0, -0.0, -1.5)):
        outputs = width // 8 if name == "rows by eight" else width * 4 // 3
        along = maps.area(width, outputs) if width > outputs else maps.linear(width, outputs)
        along = maps.reweighted(along, [-0.5, -1, -0.25])
        depth, height, row = (
            maps.thinned(bands, rng.random(bands.outputs) < 0.4)
            for bands in (maps.reweighted(_SHORT, -1), maps.linear(9, 18), along)
        )
        moving = {0: depth, 1: height, 2: row}
        where = f"{name} with gaps, fill {fill}"
        yield Case.of(f"three axes of {where}", (4, 9, width), moving, fill=fill)
        yield Case.of(f"two axes of {where}", (2, 9, width), {1: height, 2: row}, fill=fill)
        yield Case.of(f"pixels of {where}", (5, width, 3), {1: row}, fill=fill)
        yield Case.of(where, (5, width), {1: row}, fill=fill)
    nothing = maps.stepped(260, 130, step=2, taps=[0], weights=[])
    long_gap = maps.thinned(maps.linear(300, 150), np.arange(150) // 40 % 2 == 0)
    yield Case.of("nothing but fill", (3, 260), {1: nothing}, fill=2.5)
    yield Case.of("rows that are nothing but gaps", (3, 260), {1: nothing})
    yield Case.of("long gaps", (3, 300), {1: long_gap})
    yield Case.of("long gaps, two axes", (3, 260, 300), {1: nothing, 2: long_gap})
