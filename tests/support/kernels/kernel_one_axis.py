"""Plans that move one axis, and axes whose neighbors in memory share their weights."""

from __future__ import annotations

from itertools import product

import numpy as np

from support.kernels import kernel_maps as maps
from support.kernels.kernel_cases import Case, named


def cases() -> list[Case]:
    """Return all of them; no tensor has more than 250 000 numbers."""
    return [
        *_single(),
        *_wide_bands(),
        *_steady_ends(),
        *_rows_and_pixels(),
    ]


def _single() -> list[Case]:
    """Move one axis, the last or the last but some channels, by every scale."""
    found = list[Case]()
    sides = [(150, 300), (300, 150), (111, 97), (97, 111), (40, 320), (320, 40), (300, 300)]
    kinds = {
        "linear": maps.linear,
        "cubic": maps.cubic,
        "nearest": maps.nearest,
        "area": maps.area,
        "corners": maps.corners,
    }
    for (name, kind), (inputs, outputs) in product(kinds.items(), sides):
        forward, back = kind(inputs, outputs), kind(outputs, inputs).adjoint()
        for bands, way in ((forward, "forward"), (back, "gradient")):
            if not bands.is_identity:
                channels = {"cubic": 3, "area": 2}.get(name, 1)
                where = f"{name} {way} {inputs} to {outputs}"
                found.append(Case.of(where, (19, inputs, channels), {1: bands}))
    return found


def _wide_bands() -> list[Case]:
    """Take axes of several tiles, and bands longer than what is held at once."""
    rng = np.random.default_rng(1)
    return named(
        {
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
            "short bands, backwards": (
                (33, 300),
                {1: maps.backwards(maps.scattered(rng, 300, 200, widest=6))},
            ),
            "descending gradient": ((9, 333), {1: maps.backwards(maps.linear(200, 333).adjoint())}),
        }
    )


def _steady_ends() -> list[Case]:
    """Advance by two inputs a result or by one for two, in bands of all lengths and weights."""
    rng = np.random.default_rng(2)
    found = list[Case]()
    for taps in ([0], [1], [2], [3], [5], [6], [2, 3], [3, 2]):
        for shift in (-3, 0):
            bands = maps.stepped(400, 203, step=2, taps=taps, weights=[0.7, -0.3, 2.0], shift=shift)
            alike = maps.rephased(rng, bands, period=1)
            where = f"two inputs a result, {taps} taps from {shift}"
            found += [
                Case.of(f"{where}", (7, 400), {1: alike}),
                Case.of(f"{where}, weights by turns", (4, 400), {1: bands}),
                Case.of(f"{where}, plain", (4, 400), {1: maps.reweighted(bands, 1.0)}),
            ]
    for taps in ([0], [1], [4], [2, 3], [0, 1], [1, 1]):
        bands = maps.stepped(140, 275, step=0.5, taps=taps, weights=[1.0], shift=-1)
        where = f"an input for two results, {taps} taps"
        found += [
            Case.of(f"{where}, plain", (5, 140), {1: bands}),
            Case.of(where, (7, 140), {1: maps.rephased(rng, bands, period=2)}),
        ]
    third = maps.rephased(rng, maps.stepped(402, 134, step=3, taps=[4], weights=[1]), period=1)
    return [
        *found,
        Case.of("three inputs a result", (3, 402), {1: third}),
    ]


def _rows_and_pixels() -> list[Case]:
    """Move axes whose neighbors in memory share their weights."""
    rng = np.random.default_rng(3)
    return named(
        {
            "columns of an image": ((37, 50), {0: maps.linear(37, 74)}),
            "columns of images": ((3, 74, 33), {1: maps.linear(37, 74).adjoint()}),
            "rows copied": ((3, 20, 100), {1: maps.nearest(20, 47)}),
            "rows of one vector and a bit": ((3, 20, 17), {1: maps.cubic(20, 11)}),
            "pixels of a vector": (
                (2, 9, 150, 16),
                {1: maps.linear(9, 5), 2: maps.linear(150, 75)},
            ),
            "pixels of 33 channels": (
                (5, 210, 33),
                {0: maps.linear(5, 4), 1: maps.cubic(210, 250)},
            ),
            "pixels copied": ((5, 50, 40), {0: maps.nearest(5, 7), 1: maps.nearest(50, 99)}),
            "pixels summed": ((5, 99, 40), {0: maps.area(5, 3), 1: maps.nearest(50, 99).adjoint()}),
            "pixels with gaps": (
                (30, 31, 21),
                {0: maps.linear(30, 20), 1: maps.scattered(rng, 31, 64, widest=3)},
            ),
        }
    )
