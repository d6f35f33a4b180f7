"""Tables: banded maps as the compiled kernels read them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gradwire_server.plans import BandedMap

Indices = npt.NDArray[np.int64]

_VECTOR_BYTES = 64
# Most vectors of grouped weights that are worth their memory.
_MOST_VECTORS = 1 << 15
# Most elements that the taps of a lane may reach beyond its first, since all lanes go as far.
_MOST_REACH = 60
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
    """Results first .. stop - 1, whose bands repeat.

    phases  the bands of the first period
    """

    first: int
    stop: int
    phases: tuple[TablePhase, ...]

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of records.JOB."""
        phases = dict(zip(("even", "odd"), self.phases, strict=False))
        return {"steady_first": self.first, "steady_stop": self.stop, **phases}


@dataclass(frozen=True, eq=False)
class Groups:
    """Rows of outputs x channels as a sequence of vectors, for PERMUTE.

    base    int64[n]: first element that each vector's lanes read, counted from input 0
    data    [n, taps + 2, lanes]: for each lane the offset of its first tap from base, as an
            integer; its number of taps, likewise; its weights, 0 beyond its taps
    wide    whether some lanes begin beyond two vectors
    gaps    whether some lanes have no taps
    uneven  whether some lanes have fewer taps than others
    """

    base: Indices
    data: npt.NDArray[Any]
    wide: bool
    gaps: bool
    uneven: bool

    @property
    def record(self) -> tuple[int, ...]:
        """Return the field `groups` of records.JOB."""
        addresses = self.base.ctypes.data, self.data.ctypes.data
        taps = self.data.shape[1] - 2
        return (*addresses, self.data.strides[0], taps, self.wide, self.gaps, self.uneven)


@dataclass(frozen=True, eq=False)
class Table:
    """Arrays of a map, with weights rounded to a compute type.

    A table must outlive its addresses.

    bits  the weights' bits, as integers: zeros of both signs differ
    """

    inputs: int
    start: Indices
    offset: Indices
    counts: Indices
    weight: npt.NDArray[Any]
    bits: npt.NDArray[Any]
    _groups: dict[int, Groups | None] = field(default_factory=dict[int, Any])

    @classmethod
    def of(cls, bands: BandedMap, compute: np.dtype[Any]) -> Table:
        """Round a map's weights."""
        start, offset = map(np.ascontiguousarray, (bands.start, bands.offset))
        with np.errstate(all="ignore"):
            weight = np.ascontiguousarray(bands.weight, compute)
        bits: npt.NDArray[Any] = weight.view(_INTEGERS[compute.itemsize])
        return cls(bands.inputs, start, offset, bands.counts, weight, bits)

    @property
    def outputs(self) -> int:
        """Length of the side written."""
        return len(self.start)

    @property
    def record(self) -> tuple[int, ...]:
        """Values of records.AXIS."""
        arrays = (one.ctypes.data for one in (self.start, self.offset, self.weight))
        return (1, self.outputs, self.inputs, *arrays, not self.counts.all())

    @cached_property
    def halving(self) -> Steady | None:
        """Results with bands that advance by two inputs each, none empty."""
        found = self._steady(period=1, step=2)
        return found if found and found.phases[0].taps else None

    @cached_property
    def doubling(self) -> Steady | None:
        """Results whose bands advance by one input per two results."""
        return self._steady(period=2, step=1)

    def groups(self, channels: int) -> Groups | None:
        """Return rows of outputs x channels as vectors.

        None if PERMUTE does not pay.
        """
        if channels not in self._groups:
            # If two threads do this, the first result stays, since its addresses may be in use.
            self._groups.setdefault(channels, _grouped(self, channels))
        return self._groups[channels]

    def widest_span(self, tile: int) -> int:
        """Return the most inputs that bands of one tile cover."""
        first = np.arange(0, self.outputs, tile)
        last = np.minimum(first + tile, self.outputs) - 1
        stop = self.start + self.counts
        low = np.minimum(self.start[first], self.start[last])
        return int((np.maximum(stop[first], stop[last]) - low).max())

    def _steady(self, *, period: int, step: int) -> Steady | None:
        """Return the longest run of repeating bands around the middle.

        Bands repeat if their starts, counts and weights do.
        """
        compared = self.outputs - period
        if compared < _LEAST_STEADY:
            return None
        repeats = (self.start[period:] - self.start[:-period] == step) & (
            self.counts[period:] == self.counts[:-period]
        )
        first, stop = _run(repeats)
        # Of the run, each result has as many taps as the one a period before.
        begin, end = self.offset[first], self.offset[stop]
        taps = self.offset[first + period] - begin
        changes = np.flatnonzero(self.bits[begin:end] != self.bits[begin + taps : end + taps])
        repeats[self.offset.searchsorted(begin + changes, side="right") - 1] = False
        first, stop = _run(repeats)
        if stop + period - first < _LEAST_STEADY:
            return None
        phases = tuple(self._phase(j) for j in range(first, first + period))
        return Steady(first, stop + period, phases)

    def _phase(self, j: int) -> TablePhase:
        offset, taps = self.offset.item(j), self.counts.item(j)
        weight = self.weight.ctypes.data + offset * self.weight.itemsize
        return TablePhase(self.start.item(j), taps, weight)


def _run(repeats: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Return the first index and the end of the middle run.

    The run is that of true values around the middle.
    """
    middle = len(repeats) // 2
    breaks = np.flatnonzero(~repeats)
    after = int(breaks.searchsorted(middle))
    first = breaks.item(after - 1) + 1 if after else 0
    return first, breaks.item(after) if after < len(breaks) else len(repeats)


def _grouped(table: Table, channels: int) -> Groups | None:
    lanes = _VECTOR_BYTES // table.weight.itemsize
    elements = table.outputs * channels
    groups, most = -(-elements // lanes), int(table.counts.max())
    used = len(table.weight) * channels // lanes + groups
    too_many = groups * (most + 2) > _MOST_VECTORS or groups * most > 2 * used
    if not most or too_many or (most - 1) * channels > _MOST_REACH:
        return None
    # Lanes beyond the end equal the last one.
    at = np.minimum(np.arange(groups * lanes), elements - 1).reshape(groups, lanes)
    output, channel = at // channels, at % channels
    taps, first = table.counts[output], table.start[output] * channels + channel
    # Lanes without taps read nothing, wherever they are.
    first[taps == 0] = first.max()
    base = first.min(axis=1)
    place = np.where(taps, first - base[:, None], 0)
    if place.max() >= 4 * lanes:
        return None
    data = np.zeros((groups, most + 2, lanes), table.weight.dtype)
    integers: npt.NDArray[Any] = data.view(table.bits.dtype)
    integers[:, 0], integers[:, 1] = place, taps
    for tap in range(most):
        here = taps > tap
        data[:, tap + 2][here] = table.weight[table.offset[output[here]] + tap]
    return Groups(
        base,
        data,
        wide=bool(place.max() >= 2 * lanes),
        gaps=not taps.all(),
        uneven=bool((taps < most).any()),
    )
