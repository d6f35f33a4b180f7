"""What the launches of one program share, and what each of them reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gradwire_server.backends.cuda import geometry, tables
from gradwire_server.backends.cuda.kernels import Format
from gradwire_server.backends.cuda.programs import Buffer
from gradwire_server.plans import BandedMap

_BITS: dict[int, np.dtype[Any]] = {size: np.dtype(f"u{size}") for size in (2, 4, 8)}


@dataclass(slots=True)
class Making:
    """A program in the making. Launches with equal tables share them.

    compute          type of sums
    multiprocessors  of the device
    """

    compute: np.dtype[Any]
    multiprocessors: int
    tables: list[npt.NDArray[Any]] = field(default_factory=list[npt.NDArray[Any]])
    _known: dict[tuple[object, ...], Buffer] = field(
        default_factory=dict[tuple[object, ...], Buffer]
    )

    def table(self, key: tuple[object, ...], make: Callable[[], npt.NDArray[Any]]) -> Buffer:
        """Keep an array under a key; make it if it is not there."""
        if key not in self._known:
            self._known[key] = Buffer("table", len(self.tables))
            self.tables.append(make())
        return self._known[key]

    def bands(self, bands: BandedMap) -> tuple[Buffer, Buffer, Buffer]:
        """Keep a map's own arrays: start, offset, weight."""
        weight = partial(bands.weight.astype, self.compute)
        return *self.spans(bands), self.table((bands, "weight"), weight)

    def spans(self, bands: BandedMap) -> tuple[Buffer, Buffer]:
        """Keep where a map's bands begin and how long they are: start, offset."""
        tables.check(bands)
        return (
            self.table((bands, "start"), partial(bands.start.astype, np.int32)),
            self.table((bands, "offset"), partial(bands.offset.astype, np.int32)),
        )

    def strip(self, outputs: int, *, threads: int, most: int = geometry.LONGEST_STRIP) -> int:
        """Return how many outputs one thread makes, as `geometry.strip` does."""
        return geometry.strip(
            outputs, threads=threads, multiprocessors=self.multiprocessors, most=most
        )


@dataclass(frozen=True, slots=True)
class Step:
    """What a launch reads and writes.

    formats  types of what it reads and of what it writes
    source   where it reads, result where it writes
    fill     what outputs without taps become
    """

    making: Making
    formats: Format
    source: Buffer
    result: Buffer
    fill: float

    @property
    def fill_bits(self) -> np.generic:
        """The fill in the type written, as an integer of its size."""
        with np.errstate(all="ignore"):
            number: npt.NDArray[Any] = np.array([self.fill]).astype(self.formats[1])
        bits: npt.NDArray[Any] = number.view(_BITS[number.itemsize])
        one: np.generic = bits[0]
        return one
