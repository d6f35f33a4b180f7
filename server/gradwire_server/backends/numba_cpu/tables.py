"""Tables: banded maps as the compiled kernels read them."""

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
# Most vectors of grouped weights that are worth their memory.
_MOST_VECTORS = 1 << 15
# Most elements that the taps of a lane may reach beyond its first, since all lanes go as far.
_MOST_REACH = 60
# Compiled functions have no types.
_SCANS: Any = scans
# Integers with the size of the compute type.
_INTEGERS: dict[int, np.dtype[Any]] = {4: np.dtype(np.int32), 8: np.dtype(np.int64)}
# Fewest results worth a kernel of their own.
_LEAST_STEADY = 8


class TablePhase(NamedTuple):
    """A band that repeats: first input, taps, address of the weights."""

    start: int
    taps: int
    weight: int


class Steady(NamedTuple):
    """Results first .. stop - 1, whose bands repeat every `period` results, `step` inputs on.

    phases  the bands of the first period
    """

    period: int
    step: int
    first: int
    stop: int
    phases: tuple[TablePhase, ...]


@dataclass(frozen=True, eq=False)
class Groups:
    """Rows of outputs x channels as a sequence of vectors, for PERMUTE.

    base    int64[n]: first element that each vector's lanes read, counted from input 0
    data    [n, taps + 2, lanes]: for each lane the offset of its first tap from base, as an
            integer; its number of taps, likewise; its weights, 0 beyond its taps
    wide    whether some lanes begin beyond two vectors
    reach   greatest offset of any tap
    gaps    whether some lanes have no taps
    uneven  whether some lanes have fewer taps than others
    """

    base: Indices
    data: npt.NDArray[Any]
    wide: bool
    reach: int
    gaps: bool
    uneven: bool

    @property
    def record(self) -> tuple[int, ...]:
        """Values of the field `groups` of records.JOB."""
        addresses = self.base.ctypes.data, self.data.ctypes.data
        taps = self.data.shape[1] - 2
        return (*addresses, self.data.strides[0], taps, self.wide, self.gaps, self.uneven)


@dataclass(frozen=True, eq=False, slots=True)
class Facts:
    """Facts about a table, found when its weights are rounded.

    start, offset, weight  addresses of its arrays
    fewest, most           least and greatest number of taps of a result
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

    bits  the weights' bits, as integers
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
        """Values of records.AXIS."""
        facts = self.facts
        arrays = facts.start, facts.offset, facts.weight
        return (1, self.outputs, self.inputs, *arrays, facts.plain, int(not facts.fewest))

    @property
    def is_plain(self) -> bool:
        """Whether all weights are 1."""
        return bool(self.facts.plain)

    @cached_property
    def halving(self) -> Steady | None:
        """Results whose bands advance by two inputs per result, none of them empty."""
        found = self._steady(period=1, step=2)
        return found if found and found.phases[0].taps else None

    @cached_property
    def doubling(self) -> Steady | None:
        """Results whose bands advance by one input per two results."""
        return self._steady(period=2, step=1)

    def groups(self, channels: int) -> Groups | None:
        """Return rows of outputs x channels as vectors; None if PERMUTE does not pay."""
        if channels not in self._groups:
            # If two threads do this, the first result stays, since its addresses may be in use.
            self._groups.setdefault(channels, _grouped(self, channels))
        return self._groups[channels]

    def widest_span(self, tile: int) -> int:
        """Return the most inputs that the bands of a tile of results cover."""
        return int(_SCANS.widest_span(self.start, self.offset, tile))

    def _steady(self, *, period: int, step: int) -> Steady | None:
        """Return the longest run around the middle whose starts, counts and weights repeat."""
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
