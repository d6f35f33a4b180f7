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
_MOST_VECTORS = 1 << 17

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
class Table:
    """The arrays of a map, with weights rounded to a compute type. Must outlive its addresses."""

    inputs: int
    start: Indices
    offset: Indices
    weight: npt.NDArray[Any]
    _groups: dict[int, tuple[Indices, npt.NDArray[Any]] | None] = field(
        default_factory=dict[int, Any]
    )

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

    def groups(self, channels: int) -> npt.NDArray[np.int64] | None:
        """Describe rows of outputs times channels as groups of a vector each; None if too wide.

        int64[n, 5]: first number read, most taps, whether a group reads beyond two vectors,
        whether all lanes have as many taps, and the address of its data. Those are, a vector each,
        the place of each lane's first tap after the first number, as integers, the taps of each
        lane, likewise, and their weights, tap by tap.
        """
        if channels not in self._groups:
            # Of two threads the first one's stay: their addresses may be in use already.
            self._groups.setdefault(channels, _grouped(self, channels))
        found = self._groups[channels]
        return None if found is None else found[0]

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


def _grouped(table: Table, channels: int) -> tuple[Indices, npt.NDArray[Any]] | None:
    """Groups and the data they point to."""
    lanes = _VECTOR_BYTES // table.weight.itemsize
    elements = table.outputs * channels
    groups = -(-elements // lanes)
    taps = int(table.counts.max())
    if groups * (taps + 2) > _MOST_VECTORS:
        return None
    lane = np.minimum(np.arange(groups * lanes), elements - 1)
    output, channel = np.divmod(lane, channels)
    counts = table.counts[output].reshape(groups, lanes)
    first = (table.start[output] * channels + channel).reshape(groups, lanes)
    base = np.where(counts > 0, first, np.iinfo(np.int64).max).min(axis=1)
    place = np.where(counts > 0, first - base[:, np.newaxis], 0)
    reach = place.max(axis=1)
    if reach.max() >= 4 * lanes:
        return None
    most = counts.max(axis=1)
    data = np.zeros((groups, taps + 2, lanes), table.weight.dtype)
    integers = data.view(f"i{table.weight.itemsize}")
    integers[:, 0], integers[:, 1] = place, counts
    for tap in range(taps):
        there = (table.offset[:-1][output] + tap).reshape(groups, lanes)
        has = counts > tap
        data[:, tap + 2][has] = table.weight[there[has]]
    address = data.ctypes.data + np.arange(groups) * data.strides[0]
    alike = counts.min(axis=1) == most
    columns = (np.where(most > 0, base, 0), most, reach >= 2 * lanes, alike, address)
    return np.stack([column.astype(np.int64) for column in columns], axis=1), data
