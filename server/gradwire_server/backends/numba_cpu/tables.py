"""A banded map as compiled kernels read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gradwire_server.backends.numba_cpu import scans
from gradwire_server.plans import BandedMap

Indices = npt.NDArray[np.int64]

_VECTOR_BYTES = 64
# Vectors of grouped weights that are still worth their memory.
_MOST_VECTORS = 1 << 15

# Numbers beyond the place of a lane that its taps may reach, since all lanes go as far.
_MOST_REACH = 60

# What numba compiles has no types.
_SCANS: Any = scans

# Integers with as many bytes as a number of the compute type.
_INTEGERS: dict[int, np.dtype[Any]] = {4: np.dtype(np.int32), 8: np.dtype(np.int64)}

# Results that must follow one pattern for a kernel of its own to be worth its start.
_LEAST_STEADY = 8


class TablePhase(NamedTuple):
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
    phases: tuple[TablePhase, ...]


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


@dataclass(frozen=True, eq=False, slots=True)
class Facts:
    """What was found out about a table when its weights were rounded.

    start, offset, weight  addresses of its arrays
    fewest, most           taps of the results that have so many
    plain                  whether all weights are 1
    """

    start: int
    offset: int
    weight: int
    fewest: int
    most: int
    plain: int


@dataclass(frozen=True, eq=False)
class Table:
    """The arrays of a map, with weights rounded to a compute type. Must outlive its addresses.

    bits  those of the weights, as integers of their size
    """

    inputs: int
    start: Indices
    offset: Indices
    weight: npt.NDArray[Any]
    bits: npt.NDArray[Any]
    facts: Facts
    _groups: dict[int, Groups | None] = field(default_factory=dict[int, Any])

    @classmethod
    def of(cls, bands: BandedMap, compute: np.dtype[Any]) -> Table:
        """Round a map's weights."""
        start, offset = map(np.ascontiguousarray, (bands.start, bands.offset))
        rounded: npt.NDArray[Any] = np.empty(bands.nnz, compute)
        weight = np.ascontiguousarray(bands.weight)
        facts = Facts(*_SCANS.round_weights(start, offset, weight, rounded))
        bits: npt.NDArray[Any] = rounded.view(_INTEGERS[compute.itemsize])
        return cls(bands.inputs, start, offset, rounded, bits, facts)

    @property
    def outputs(self) -> int:
        """Length of the side written."""
        return len(self.start)

    @property
    def nnz(self) -> int:
        """Number of weights."""
        return len(self.weight)

    @property
    def record(self) -> tuple[int, ...]:
        """Values of the kernels' record of an axis with a pass."""
        facts = self.facts
        arrays = facts.start, facts.offset, facts.weight
        return (1, self.outputs, self.inputs, *arrays, facts.plain, int(not facts.fewest))

    @property
    def is_plain(self) -> bool:
        """Whether all weights are 1."""
        return bool(self.facts.plain)

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
        return int(_SCANS.widest_span(self.start, self.offset, tile))

    def _steady(self, *, period: int, step: int) -> Steady | None:
        """Find the longest run around the middle that repeats, by starts, counts and weights."""
        if self.outputs < _LEAST_STEADY + period:
            return None
        first, stop = _SCANS.steady(self.start, self.offset, self.bits, period, step)
        if stop - first < _LEAST_STEADY:
            return None
        phases = tuple(self._phase(j) for j in range(first, first + period))
        return Steady(period, step, first, stop, phases)

    def _phase(self, j: int) -> TablePhase:
        offset, stop = self.offset.item(j), self.offset.item(j + 1)
        weight = self.facts.weight + offset * self.weight.itemsize
        return TablePhase(self.start.item(j), stop - offset, weight)


def _grouped(table: Table, channels: int) -> Groups | None:
    lanes = _VECTOR_BYTES // table.weight.itemsize
    groups, taps = -(-table.outputs * channels // lanes), table.facts.most
    used = table.nnz * channels // lanes + groups
    too_many = groups * (taps + 2) > _MOST_VECTORS or groups * taps > 2 * used
    if not taps or too_many or (taps - 1) * channels > _MOST_REACH:
        return None
    base = np.empty(groups, np.int64)
    data = np.empty((groups, taps + 2, lanes), table.weight.dtype)
    integers = data.view(table.bits.dtype)
    farthest, reach, fewest = _SCANS.group(
        table.start, table.offset, table.bits, channels, base, integers
    )
    if farthest >= 4 * lanes:
        return None
    wide = farthest >= 2 * lanes
    return Groups(base, data, wide=wide, reach=reach, gaps=fewest == 0, uneven=fewest < taps)
