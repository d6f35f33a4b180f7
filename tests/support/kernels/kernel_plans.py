"""Strategies for plans and tensors as large as compiled kernels need them to show what they do.

Hypothesis settles what is there; numbers in bulk come from generators that it seeds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from gradwire_server.plans import BandedMap, Plan
from support.kernels import kernel_maps as maps
from support.kernels.kernel_table import SPECIALS
from support.oracles import oracles

# Around the widths of vectors, blocks and tiles.
LENGTHS = [1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 48, 64, 65, 100, 128, 131, 200, 256, 300]
LONG = [130, 200, 256, 300, 512, 777, 1030, 2050]
_STILL = [1, 1, 2, 3, 4, 5, 8, 15, 16, 17, 24, 33, 40]
_FILLS = [0.0, 0.0, -0.0, -1.5]
_KINDS = [maps.linear, maps.cubic, maps.nearest, maps.area, maps.corners]


def _generators() -> st.SearchStrategy[np.random.Generator]:
    return st.integers(0, 2**32 - 1).map(np.random.default_rng)


@st.composite
def sampled(draw: st.DrawFn, inputs: int, most: int) -> BandedMap:
    """Draw a resampling or its gradient, at scales that are whole and others."""
    sides = {inputs * 2, inputs // 2, inputs * 8, inputs // 8, inputs * 3 // 2, inputs * 5 // 7}
    sides |= {inputs, draw(st.integers(1, most))}
    outputs = draw(st.sampled_from(sorted(side for side in sides if 0 < side <= most)))
    kind = draw(st.sampled_from(_KINDS))
    return kind(outputs, inputs).adjoint() if draw(st.booleans()) else kind(inputs, outputs)


@st.composite
def stepped(draw: st.DrawFn, inputs: int, most: int) -> BandedMap:
    """Draw bands that advance steadily and may all be empty."""
    step = draw(st.sampled_from([0.25, 1 / 3, 0.5, 1, 2, 2, 3, 8]))
    about = max(1, min(most, int(inputs / step)))
    outputs = draw(st.sampled_from([about, max(1, about - 1), min(most, about + 3)]))
    fewest = draw(st.integers(0, 7))
    more = {0.25: 0, 1 / 3: 0, 0.5: 1}.get(step, int(step))
    taps = [fewest, fewest + draw(st.integers(0, more))]
    shift = draw(st.integers(-3, 3))
    return maps.stepped(inputs, outputs, step=step, taps=taps, weights=[1.0], shift=shift)


@st.composite
def scattered(draw: st.DrawFn, inputs: int, most: int) -> BandedMap:
    """Draw bands anywhere, narrow ones or wide ones."""
    rng = draw(_generators())
    outputs = draw(st.integers(1, most))
    widest = draw(st.sampled_from([0, 1, 2, 5, 30, inputs]))
    # As many weights as 300 inputs and outputs could have.
    return maps.scattered(rng, inputs, outputs, widest=min(widest, 1 + 90_000 // outputs))


@st.composite
def bands(draw: st.DrawFn, inputs: int, most: int) -> BandedMap:
    """Draw maps of so many inputs and at most so many outputs, of any pattern and weights."""
    pattern = draw(st.sampled_from([sampled, sampled, sampled, stepped, stepped, scattered]))
    found = draw(pattern(inputs, most))
    weights = draw(st.sampled_from(["own", "own", "ones", "alike", "phased", "awkward", "any"]))
    rng, count = draw(_generators()), max(1, found.nnz)
    if weights == "phased":
        found = maps.rephased(rng, found, period=draw(st.integers(1, 4)))
    elif weights != "own":
        new: dict[str, npt.ArrayLike] = {
            "ones": 1.0,
            "alike": rng.standard_normal(),
            "awkward": rng.choice(oracles.WEIGHTS, count),
            "any": rng.standard_normal(count),
        }
        found = maps.reweighted(found, new[weights])
    if draw(st.integers(0, 4)) == 0:
        share = draw(st.sampled_from([0.1, 0.5, 0.95]))
        found = maps.thinned(found, rng.random(found.outputs) < share)
    return maps.backwards(found) if draw(st.integers(0, 5)) == 0 else found


@st.composite
def plans(draw: st.DrawFn, *, most: int = 120_000) -> Plan:
    """Draw one to six axes, one to four of them with a pass; tensors have at most so many numbers.

    In half of them the last axis is a long one with a pass.
    """
    rank = draw(st.integers(1, 6))
    count = draw(st.integers(1, min(4, rank)))
    order = draw(st.permutations(range(rank)))
    has_long_rows = draw(st.booleans())
    if has_long_rows:
        order = [rank - 1, *(axis for axis in order if axis != rank - 1)]
    moving = order[:count]
    left = most
    shape, passes = [1] * rank, list[BandedMap | None]([None] * rank)
    for axis in order:
        lengths = LENGTHS if axis in moving else _STILL
        if has_long_rows and axis == rank - 1:
            lengths = LONG
        length = draw(st.sampled_from([one for one in lengths if one <= left]))
        found = draw(bands(length, min(left, 8 * length + 8))) if axis in moving else None
        shape[axis], passes[axis] = length, found
        left //= length if found is None else max(length, found.outputs)
    return Plan.build(passes, tuple(shape), fill=draw(st.sampled_from(_FILLS)))


@st.composite
def tensors(draw: st.DrawFn, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> oracles.Tensor:
    """Draw any strides: ordinary numbers, with or without special ones, or those alone."""
    rng = draw(_generators())
    ordinary = rng.standard_normal(1000) * 2.0 ** rng.integers(-12, 12, 1000)
    finite = SPECIALS[np.isfinite(SPECIALS)]
    values = draw(
        st.sampled_from([ordinary, np.concatenate([ordinary, SPECIALS]), finite, SPECIALS])
    )
    with np.errstate(all="ignore"):
        held = values.astype(dtype).astype(np.float64).tolist()
    return draw(oracles.tensors(shape, dtype=dtype, values=held))
