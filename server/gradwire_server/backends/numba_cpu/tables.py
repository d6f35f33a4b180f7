"""A banded map as compiled kernels read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gradwire_server.plans import BandedMap

Indices = npt.NDArray[np.int64]

_VECTOR_BYTES = 64
# Vectors of grouped weights that are still worth their memory.
_MOST_VECTORS = 1 << 15

# Numbers beyond the place of a lane that its taps may reach, since all lanes go as far.
_MOST_REACH = 60

# Results that must follow one pattern for a kernel of its own to be worth its start.
_LEAST_STEADY = 8


class Phase(NamedTuple):
    """Bands of results that share their weights: first input, taps, address of the weights."""

    start: int
    taps: int
    weight: int


class Steady(NamedTuple):
    """Results first .. stop - 1, whose bands repeat every `period` results, `step` inputs on.

    phases  the bands of results first, first + 1 ..., one for each of a period
    """

    period: int
    step: int
    first: int
    stop: int
    phases: tuple[Phase, ...]


@dataclass(frozen=True, eq=False)
class Groups:
    """Rows of outputs times channels as vectors, one after the other, for `permute`.

    base    int64[n], the first number that a vector's lanes read, counted from input 0
    data    [n, taps + 2, lanes]: the place of each lane's first tap after the base, as integers;
            its taps, likewise; and its weights, tap by tap, 0 beyond them
    wide    whether some lanes begin beyond two vectors
    reach   the furthest place of all lanes' taps
    gaps    whether some have no taps
    uneven  whether some have fewer than others
    """

    base: Indices
    data: npt.NDArray[Any]
    wide: bool
    reach: int
    gaps: bool
    uneven: bool

    @property
    def record(self) -> tuple[int, ...]:
        """Values of the kernels' record."""
        addresses = self.base.ctypes.data, self.data.ctypes.data
        taps = self.data.shape[1] - 2
        return (*addresses, self.data.strides[0], taps, self.wide, self.gaps, self.uneven)


@dataclass(frozen=True, eq=False)
class Table:
    """The arrays of a map, with weights rounded to a compute type. Must outlive its addresses."""

    inputs: int
    start: Indices
    offset: Indices
    weight: npt.NDArray[Any]
    _groups: dict[int, Groups | None] = field(default_factory=dict[int, Any])

    @classmethod
    def of(cls, bands: BandedMap, compute: np.dtype[Any]) -> Table:
        """Round a map's weights."""
        with np.errstate(all="ignore"):
            weight = bands.weight.astype(compute)
        start, offset = map(np.ascontiguousarray, (bands.start, bands.offset))
        return cls(bands.inputs, start, offset, weight)

    @property
    def outputs(self) -> int:
        """Length of the side written."""
        return len(self.start)

    @property
    def nnz(self) -> int:
        """Number of weights."""
        return len(self.weight)

    @cached_property
    def counts(self) -> Indices:
        """Weights of each output."""
        return np.diff(self.offset)

    @cached_property
    def record(self) -> tuple[int, ...]:
        """Values of the kernels' record of an axis with a pass."""
        addresses = (array.ctypes.data for array in (self.start, self.offset, self.weight))
        gaps = bool((self.counts == 0).any())
        return (1, self.outputs, self.inputs, *addresses, int(self.is_plain), int(gaps))

    @cached_property
    def is_plain(self) -> bool:
        """Whether all weights are 1."""
        return bool((self.weight == 1).all())

    @cached_property
    def halving(self) -> Steady | None:
        """The results whose bands advance by two inputs a result, none of them empty."""
        found = self._steady(period=1, step=2)
        return found if found and found.phases[0].taps else None

    @cached_property
    def doubling(self) -> Steady | None:
        """The results whose bands advance by one input for every two results."""
        return self._steady(period=2, step=1)

    def groups(self, channels: int) -> Groups | None:
        """Describe rows of outputs times channels as groups of a vector each; None if unfit."""
        if channels not in self._groups:
            # Of two threads the first one's stay: their addresses may be in use already.
            self._groups.setdefault(channels, _grouped(self, channels))
        return self._groups[channels]

    def widest_span(self, tile: int) -> int:
        """Most inputs that the bands of a tile of results cover."""
        first = np.arange(0, self.outputs, tile)
        last = np.minimum(first + tile, self.outputs) - 1
        start, stop = self.start, self.start + self.counts
        high, low = np.maximum(stop[first], stop[last]), np.minimum(start[first], start[last])
        return int((high - low).max())

    def _steady(self, *, period: int, step: int) -> Steady | None:
        """Find the longest run around the middle that repeats, by starts, counts and weights."""
        if self.outputs < _LEAST_STEADY + period:
            return None
        same = self._repeats(period, step)
        middle = len(same) // 2
        broken = np.flatnonzero(~same)
        first = int(broken[broken < middle].max(initial=-1)) + 1
        stop = int(broken[broken >= middle].min(initial=len(same))) + period
        if stop - first < _LEAST_STEADY:
            return None
        base, item = self.weight.ctypes.data, self.weight.itemsize
        phases = tuple(
            Phase(int(self.start[j]), int(self.counts[j]), base + int(self.offset[j]) * item)
            for j in range(first, first + period)
        )
        return Steady(period, step, first, stop, phases)

    def _repeats(self, period: int, step: int) -> npt.NDArray[np.bool_]:
        """Whether results j and j + period have the same band, `step` inputs on."""
        same: npt.NDArray[np.bool_] = self.start[period:] - self.start[:-period] == step
        counts = self.counts[:-period]
        same &= counts == self.counts[period:]
        alike = np.flatnonzero(same)
        taps = counts[alike]
        begin = np.cumsum(taps) - taps
        within = np.arange(int(taps.sum())) - np.repeat(begin, taps)
        bits = self.weight.view(f"u{self.weight.itemsize}")  # zeros of both signs differ
        one = bits[np.repeat(self.offset[alike], taps) + within]
        other = bits[np.repeat(self.offset[alike + period], taps) + within]
        differs = np.repeat(alike, taps)[one != other]
        same[differs] = False
        return same


def _grouped(table: Table, channels: int) -> Groups | None:
    lanes = _VECTOR_BYTES // table.weight.itemsize
    elements = table.outputs * channels
    groups, taps = -(-elements // lanes), int(table.counts.max())
    used = table.nnz * channels // lanes + groups
    too_many = groups * (taps + 2) > _MOST_VECTORS or groups * taps > 2 * used
    if not taps or too_many or (taps - 1) * channels > _MOST_REACH:
        return None
    lane = np.minimum(np.arange(groups * lanes), elements - 1)
    output, channel = np.divmod(lane, channels)
    counts = table.counts[output].reshape(groups, lanes)
    first = (table.start[output] * channels + channel).reshape(groups, lanes)
    base = np.where(counts > 0, first, np.iinfo(np.int64).max).min(axis=1)
    base = np.where(counts.max(axis=1) > 0, base, first[:, 0])
    place = np.where(counts > 0, first - base[:, np.newaxis], 0)
    if place.max() >= 4 * lanes:
        return None
    data = np.zeros((groups, taps + 2, lanes), table.weight.dtype)
    integers = data.view(f"i{table.weight.itemsize}")
    integers[:, 0], integers[:, 1] = place, counts
    for tap in range(taps):
        there = (table.offset[:-1][output] + tap).reshape(groups, lanes)
        has = counts > tap
        data[:, tap + 2][has] = table.weight[there[has]]
    wide, least = bool(place.max() >= 2 * lanes), int(counts.min())
    reach = int((place + np.maximum(counts - 1, 0) * channels).max())
    return Groups(base, data, wide=wide, reach=reach, gaps=least == 0, uneven=least < taps)
