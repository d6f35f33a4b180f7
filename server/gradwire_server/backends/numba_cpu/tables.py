"""Tables: banded maps as the compiled kernels read them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gradwire_server.backends.numba_cpu.records import DOUBLE, HALVE
from gradwire_server.backends.numba_cpu.vectors import VECTOR_BYTES
from gradwire_server.plans import BandedMap

Indices = npt.NDArray[np.int64]

# Most vectors of grouped weights that are worth their memory.
_MOST_VECTORS = 1 << 15
# Most elements that the taps of a lane may reach beyond its first, since all lanes go as far.
_MOST_REACH = 60
# Fewest results worth a kernel of their own.
_LEAST_STEADY = 8


@dataclass(frozen=True, eq=False)
class Groups:
    """Rows of outputs x channels as a sequence of vectors, for PERMUTE.

    base  int64[n]: first element that each vector's lanes read, counted from input 0
    data  [n, taps + 2, lanes]: for each lane the offset of its first tap from base, as an integer;
          its number of taps, likewise; its weights, 0 beyond its taps
    """

    base: Indices
    data: npt.NDArray[Any]
    uneven: bool

    @property
    def record(self) -> tuple[int, ...]:
        """Return the field `groups` of records.JOB."""
        addresses = self.base.ctypes.data, self.data.ctypes.data
        return (*addresses, self.data.strides[0], self.data.shape[1] - 2, self.uneven)


@dataclass(frozen=True, eq=False)
class Table:
    """Arrays of a map, with weights rounded to a compute type.

    A table must outlive its addresses.
    """

    inputs: int
    start: Indices
    offset: Indices
    counts: Indices
    weight: npt.NDArray[Any]
    _groups: dict[int, Groups | None] = field(default_factory=dict[int, Any])

    @classmethod
    def of(cls, bands: BandedMap, compute: np.dtype[Any]) -> Table:
        """Round a map's weights."""
        start, offset = map(np.ascontiguousarray, (bands.start, bands.offset))
        with np.errstate(all="ignore"):
            weight = np.ascontiguousarray(bands.weight, compute)
        return cls(bands.inputs, start, offset, bands.counts, weight)

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
    def steady(self) -> dict[str, Any] | None:
        """Fields of records.JOB for HALVE or DOUBLE.

        None if most of the axis allows neither.
        """
        halved = self._steady(HALVE, period=1, step=2)
        if halved and halved["even"][1]:
            return halved
        return self._steady(DOUBLE, period=2, step=1)

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

    def _steady(self, method: int, *, period: int, step: int) -> dict[str, Any] | None:
        """Describe the longest run of repeating bands around the middle.

        Bands repeat if their starts, counts and weights do.
        """
        if self.outputs < _LEAST_STEADY:
            return None
        repeats = (self.start[period:] - self.start[:-period] == step) & (
            self.counts[period:] == self.counts[:-period]
        )
        first, stop = _run(repeats)
        # Of the run, each result has as many taps as the one a period before.
        begin, end = self.offset[first], self.offset[stop]
        taps = self.offset[first + period] - begin
        # As integers, since zeros of both signs differ.
        bits = _integers(self.weight)
        changes = np.flatnonzero(bits[begin:end] != bits[begin + taps : end + taps])
        repeats[self.offset.searchsorted(begin + changes, side="right") - 1] = False
        first, stop = _run(repeats)
        stop += period
        if 2 * (stop - first) < self.outputs:
            return None
        places = {"even": first, "odd": first + period - 1}
        phases = {name: self._phase(j) for name, j in places.items()}
        return {"method": method, "steady_first": first, "steady_stop": stop, **phases}

    def _phase(self, j: int) -> tuple[int, int, int]:
        """Return first input, taps and address of weights of a result."""
        weight = self.weight.ctypes.data + self.offset.item(j) * self.weight.itemsize
        return self.start.item(j), self.counts.item(j), weight


def _integers(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """View numbers as integers of their size."""
    return numbers.view(f"i{numbers.itemsize}")


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
    lanes = VECTOR_BYTES // table.weight.itemsize
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
    if place.max() >= 2 * lanes:
        return None
    data = np.zeros((groups, most + 2, lanes), table.weight.dtype)
    integers = _integers(data)
    integers[:, 0], integers[:, 1] = place, taps
    for tap in range(most):
        here = taps > tap
        data[:, tap + 2][here] = table.weight[table.offset[output[here]] + tap]
    return Groups(base, data, uneven=bool((taps < most).any()))
