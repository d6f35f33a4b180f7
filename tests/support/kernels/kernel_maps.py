"""Maps of every pattern that compiled kernels tell apart, and of none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from gradwire_server.plans import BandedMap
from support.oracles import oracles

Generator = np.random.Generator
Weights = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


def linear(inputs: int, outputs: int) -> BandedMap:
    """Read two taps around half-pixel coordinates."""
    return oracles.linear_taps(inputs, outputs).map()


def cubic(inputs: int, outputs: int) -> BandedMap:
    """Read four taps around half-pixel coordinates."""
    return oracles.cubic_taps(inputs, outputs).map()


def nearest(inputs: int, outputs: int) -> BandedMap:
    index = (2 * np.arange(outputs) + 1) * inputs // (2 * outputs)
    return BandedMap.from_blocks([(index[:, np.newaxis], np.ones((outputs, 1)))], inputs=inputs)


def corners(inputs: int, outputs: int) -> BandedMap:
    """Read two taps where the first pixels and the last ones lie on each other."""
    position = np.arange(outputs) * (inputs - 1) / max(1, outputs - 1)
    low = np.minimum(position.astype(np.int64), max(0, inputs - 2))
    upper = position - low
    index = np.clip(low[:, np.newaxis] + np.arange(2), 0, inputs - 1)
    return BandedMap.from_blocks([(index, np.stack([1 - upper, upper], axis=1))], inputs=inputs)


def area(inputs: int, outputs: int) -> BandedMap:
    """Take the mean over the output's pixel of what it covers."""
    edges = np.arange(outputs + 1) * inputs
    start, stop = edges[:-1] // outputs, -(-edges[1:] // outputs)
    offset = _offsets(stop - start)
    place = np.arange(int(offset[-1])) + np.repeat(start - offset[:-1], stop - start)
    low, high = (np.repeat(edge, stop - start) for edge in (edges[:-1], edges[1:]))
    overlap = np.minimum((place + 1) * outputs, high) - np.maximum(place * outputs, low)
    return BandedMap(outputs, inputs, start, offset, overlap / inputs)


def stepped(
    inputs: int,
    outputs: int,
    *,
    step: float,
    taps: Sequence[int],
    weights: Sequence[float],
    shift: int = 0,
) -> BandedMap:
    """Advance steadily; cut bands off at the ends of the axis.

    taps     of output j they are taps[j % len(taps)]; each start + taps must ascend
    weights  the weights of all outputs, one band after the other, go through these again and again
    """
    first = (np.arange(outputs) * step).astype(np.int64) + shift
    last = first + np.resize(np.array(taps), outputs)
    start, stop = np.clip(first, 0, inputs), np.clip(last, 0, inputs)
    return _between(inputs, start, stop, partial(np.resize, np.array(weights, np.float64)))


def scattered(rng: Generator, inputs: int, outputs: int, *, widest: int) -> BandedMap:
    """Put bands anywhere, up to so wide, some of them empty."""
    sides = np.sort(rng.integers(0, inputs + 1, (2, outputs)), axis=1)
    start = sides.min(axis=0)
    stop = np.minimum(sides.max(axis=0), start + widest)
    return _between(inputs, start, stop, rng.standard_normal)


def wide(rng: Generator, inputs: int, outputs: int) -> BandedMap:
    """Let every output read nearly every input."""
    start = np.arange(outputs) * inputs // (20 * outputs)
    return _between(inputs, start, inputs - start[::-1], rng.standard_normal)


def _between(
    inputs: int, start: Places, stop: Places, weights: Callable[[int], Weights]
) -> BandedMap:
    offset = _offsets(stop - start)
    return BandedMap(len(start), inputs, start, offset, weights(int(offset[-1])))


def reweighted(bands: BandedMap, weights: npt.ArrayLike) -> BandedMap:
    weight = np.resize(np.asarray(weights, np.float64), bands.nnz)
    return BandedMap(bands.outputs, bands.inputs, bands.start, bands.offset, weight)


def rephased(rng: Generator, bands: BandedMap, *, period: int) -> BandedMap:
    """Keep the bands; weights depend on the tap and on the output modulo a period."""
    output = np.repeat(np.arange(bands.outputs), bands.counts)
    tap = np.arange(bands.nnz) - bands.offset[output]
    table = rng.choice([*oracles.WEIGHTS, 0.3, -1.25, 2.5], (period, 1 + tap.max(initial=0)))
    return reweighted(bands, table[output % period, tap])


def backwards(bands: BandedMap) -> BandedMap:
    """Reverse the order of the outputs: bands descend where they ascended."""
    counts = bands.counts[::-1]
    offset = _offsets(counts)
    place = np.arange(bands.nnz) + np.repeat(bands.offset[:-1][::-1] - offset[:-1], counts)
    start = np.ascontiguousarray(bands.start[::-1])
    return BandedMap(bands.outputs, bands.inputs, start, offset, bands.weight[place])


def thinned(bands: BandedMap, empty: npt.NDArray[np.bool_]) -> BandedMap:
    taps = np.arange(max(1, bands.counts.max(initial=0)))
    there = (taps < bands.counts[:, np.newaxis]) & ~empty[:, np.newaxis]
    index = np.minimum(bands.start[:, np.newaxis] + taps, bands.inputs - 1)
    weight = np.zeros(there.shape)
    weight[there] = bands.weight[(bands.offset[:-1, np.newaxis] + taps)[there]]
    return BandedMap.from_blocks([(index, weight)], inputs=bands.inputs)


def _offsets(counts: Places) -> Places:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
