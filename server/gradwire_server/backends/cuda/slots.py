"""A stream with its memory, which one call uses at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gradwire_server.backends.cuda.copies import Copies
from gradwire_server.backends.cuda.device import Array, Device, DeviceError, Memory
from gradwire_server.backends.cuda.programs import Buffer, Program, packed
from gradwire_server.backends.cuda.registered import Registered

# Of what lies in one allocation: a line of the device's caches.
ALIGNMENT = 128
# Slabs for which a program's addresses are remembered.
_MOST_KNOWN = 16

_X, _Y = Buffer("x"), Buffer("y")


@dataclass(frozen=True)
class Ready:
    """A program of so many outer slices, with the memory that it takes.

    x_bytes, y_bytes  of these slices
    tables            addresses of its tables; None where they go up with each part
    memory            that holds them; None likewise
    """

    program: Program
    x_bytes: int
    y_bytes: int
    tables: Sequence[int] | None = None
    memory: Memory | None = None
    _known: dict[int, Mapping[Buffer, int]] = field(default_factory=dict[int, Mapping[Buffer, int]])

    @property
    def own(self) -> Sequence[Array]:
        """The tables that go up with each part."""
        return self.program.tables if self.tables is None else ()

    @property
    def nbytes(self) -> int:
        """What it takes of a slab."""
        return self._places[1]

    def addresses(self, base: int) -> Mapping[Buffer, int]:
        """Return where everything is in a slab that begins there."""
        known = self._known.get(base)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known.setdefault(base, self._addresses(base))
        return known

    def _addresses(self, base: int) -> dict[Buffer, int]:
        at_x, at_y, *rest = [base + offset for offset in self._places[0]]
        count = len(self.program.scratch)
        tables = rest[count:] if self.tables is None else self.tables
        return {
            Buffer("x"): at_x,
            Buffer("y"): at_y,
            **{Buffer("scratch", number): at for number, at in enumerate(rest[:count])},
            **{Buffer("table", number): at for number, at in enumerate(tables)},
        }

    @cached_property
    def _places(self) -> tuple[list[int], int]:
        """Return offsets in a slab of x, y, scratch and own tables, and what they take in all."""
        own = [one.nbytes for one in self.own]
        sizes = [self.x_bytes, self.y_bytes, *self.program.scratch, *own]
        return packed(sizes, alignment=ALIGNMENT)


@dataclass(frozen=True, slots=True)
class Part:
    """Outer slices that are computed together.

    slices   that the program is made for; x and y may have fewer
    x, y     arrays that follow each other on the device
    carried  whether y is read too
    """

    slices: int
    x: Sequence[Array]
    y: Sequence[Array]
    carried: bool = False


class Slot:
    """A stream, pinned memory, and a slab of the device's memory.

    slab      None until there is one
    is_taken  whether a call holds the slab; else it may be taken away
    """

    def __init__(self, device: Device, registered: Registered, *, staged_bytes: int) -> None:
        self._stream = device.stream()
        pinned = device.pinned(2 * max(1, staged_bytes // 2))
        self._copies = Copies(self._stream, pinned, registered)
        self._is_idle = True
        self.slab: Memory | None = None
        self.is_taken = False

    def hold(self, arrays: Sequence[Array], memory: Memory) -> list[int]:
        """Copy arrays to memory of the device; return where they are in it."""
        offsets, _ = packed([one.nbytes for one in arrays], alignment=ALIGNMENT)
        addresses = [memory.address + offset for offset in offsets]
        try:
            for address, array in zip(addresses, arrays, strict=True):
                self._copies.up(address, [array])
            self._copies.finish()
        except BaseException:
            with contextlib.suppress(DeviceError):
                self._copies.abandon()
            raise
        return addresses

    def begin(self, part: Part, ready: Ready) -> None:
        """Let a part go up, be computed and come down, after one that is finished."""
        if self.slab is None or not self._is_idle:
            raise ValueError("a part needs a slab, and the one before it to be finished")
        self._is_idle = False
        addresses = ready.addresses(self.slab.address)
        x, y = addresses[_X], addresses[_Y]
        self._copies.up(x, part.x)
        if part.carried:
            self._copies.up(y, part.y)
        for number, table in enumerate(ready.own):
            self._copies.up(addresses[Buffer("table", number)], [table])
        for launch in ready.program.launches:
            self._stream.launch(launch, addresses)
        self._copies.down(part.y, y)

    def finish(self) -> None:
        """Wait until the part is done, if there is one; its results are there then."""
        if not self._is_idle:
            self._copies.finish()
            self._is_idle = True

    def abandon(self) -> None:
        """Wait until nothing is pending; results are lost."""
        self._is_idle = True
        self._copies.abandon()
