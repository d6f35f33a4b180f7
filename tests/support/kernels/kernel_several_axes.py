"""Plans that move several axes at once, leave outputs without taps, or take several jobs."""

from __future__ import annotations

from itertools import product

import numpy as np

from support.kernels import kernel_maps as maps
from support.kernels.kernel_cases import Case

_SHORT = maps.cubic(4, 6)
_NARROWED = maps.cubic(37, 31)
_LONG = maps.linear(1100, 2200).adjoint()
_THIRD = maps.linear(3, 2)
_ROWS = maps.corners(40, 37)
_PIXELS = maps.linear(90, 61)
_UNEVEN = maps.linear(9, 5)


def cases() -> list[Case]:
    """Return all of them; no tensor has more than 250 000 numbers."""
    return [
        *_several_axes(),
        *_windows(),
        *_plain_rows(),
        *_empty_bands(),
        *_chains(),
    ]


def _several_axes() -> list[Case]:
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
    found = list[Case]()
    for name, along in rows.items():
        width = along.inputs
        found += [
            Case.of(f"two axes, {name}", (3, 18, width), {1: down, 2: along}),
            Case.of(f"two axes apart, {name}", (2, 9, 5, width), {1: up, 3: along}),
            Case.of(f"three axes, {name}", (2, 4, 9, width), {1: _SHORT, 2: up, 3: along}),
        ]
    down3 = {0: maps.nearest(4, 7), 1: maps.nearest(9, 5), 2: maps.nearest(11, 23)}
    return [
        *found,
        Case.of("three axes copied", (4, 9, 11), down3),
        Case.of("three axes of pixels", (4, 18, 37, 5), {0: _SHORT, 1: down, 2: _NARROWED}),
        Case.of("three axes of wide pixels", (4, 9, 37, 20), {0: _SHORT, 1: up, 2: _NARROWED}),
        Case.of("three axes, long rows", (4, 9, 2200), {0: _SHORT, 1: up, 2: _LONG}),
        Case.of("three long axes of pixels", (3, 40, 90, 3), {0: _THIRD, 1: _ROWS, 2: _PIXELS}),
    ]


def _windows() -> list[Case]:
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
    found = list[Case]()
    for name, (along, channels) in rows.items():
        line = (along.inputs, channels)
        shapes = {
            "one axis": ((37, *line), {1: along}),
            "two axes": ((2, 18, *line), {1: height, 2: along}),
            "three axes": ((2, 5, 6, *line), {1: depth, 2: maps.nearest(6, 4), 3: along}),
        }
        for axes, (shape, moving) in shapes.items():
            if along.inputs < 1000 or axes != "three axes":
                found.append(Case.of(f"windows of {axes}, {name}", shape, moving))
    return found


def _plain_rows() -> list[Case]:
    """Move rows whose weights are 1 together with another axis whose weights are not."""
    rows = {
        "doubled": (maps.nearest(130, 260), 1),
        "halved": (maps.nearest(130, 260).adjoint(), 1),
        "narrowed": (maps.nearest(97, 150).adjoint(), 1),
        "by eight": (maps.nearest(50, 400).adjoint(), 1),
        "of wide pixels": (maps.nearest(31, 50).adjoint(), 53),
    }
    return [
        Case.of(f"plain rows, {name}", (9, along.inputs, channels), {0: _UNEVEN, 1: along})
        for name, (along, channels) in rows.items()
    ]


def _empty_bands() -> list[Case]:
    """Leave outputs without taps on one axis or more."""
    rng = np.random.default_rng(4)
    found = list[Case]()
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
        found += [
            Case.of(f"three axes of {where}", (4, 9, width), moving, fill=fill),
            Case.of(f"two axes of {where}", (2, 9, width), {1: height, 2: row}, fill=fill),
            Case.of(f"pixels of {where}", (5, width, 3), {1: row}, fill=fill),
            Case.of(where, (5, width), {1: row}, fill=fill),
        ]
    nothing = maps.stepped(260, 130, step=2, taps=[0], weights=[])
    long_gap = maps.thinned(maps.linear(300, 150), np.arange(150) // 40 % 2 == 0)
    return [
        *found,
        Case.of("nothing but fill", (3, 260), {1: nothing}, fill=2.5),
        Case.of("rows that are nothing but gaps", (3, 260), {1: nothing}),
        Case.of("long gaps", (3, 300), {1: long_gap}),
        Case.of("long gaps, two axes", (3, 260, 300), {1: nothing, 2: long_gap}),
    ]


def _chains() -> list[Case]:
    """Move axes that take several jobs."""
    rng = np.random.default_rng(5)
    four = {0: maps.linear(6, 3), 1: maps.cubic(5, 8), 2: maps.linear(7, 9), 3: maps.linear(16, 8)}
    apart = {0: maps.linear(6, 9), 2: maps.cubic(5, 4), 4: maps.nearest(9, 19)}
    six = {axis: maps.linear(4, 5) for axis in (0, 2, 3, 5)}
    gaps = {
        axis: maps.thinned(maps.reweighted(maps.linear(6, 9), -1), rng.random(9) < 0.3)
        for axis in range(4)
    }
    deep = {0: maps.linear(2, 3), 1: maps.wide(rng, 70, 2), 2: maps.linear(800, 1300)}
    long = {0: maps.linear(4, 3), 1: maps.linear(3, 2), 2: maps.wide(rng, 5000, 2)}
    return [
        Case.of("four axes", (6, 5, 7, 16), four),
        Case.of("three axes apart", (6, 3, 5, 2, 9), apart),
        Case.of("four axes of six", (4, 3, 4, 4, 2, 4), six),
        Case.of("four axes with gaps", (6, 6, 6, 6), gaps, fill=-2.0),
        Case.of("depth of too many rows", (2, 70, 800), deep),
        Case.of("depth of too long rows", (4, 3, 5000), long),
    ]
