"""What a call takes before it computes: its parts, tables, slabs, and further streams."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from gradwire_server.backends.cuda import parts
from gradwire_server.backends.cuda.calls import Call
from gradwire_server.backends.cuda.device import Device
from gradwire_server.backends.cuda.kept import Kept
from gradwire_server.backends.cuda.memory import BoundedMemory, size_class
from gradwire_server.backends.cuda.slots import ALIGNMENT, Part, Ready, Slot
from gradwire_server.backends.cuda.waiting import Slots

# Streams of one call: one goes up, one is computed, one comes down.
_MOST_SLOTS = 3


@dataclass(eq=False, slots=True)
class Taken:
    """What a call computes with.

    parts  in their order
    ready  program of each length that a part has
    slots  the next one first
    own    the one of them that the call came with
    """

    parts: Sequence[Part]
    ready: dict[int, Ready]
    slots: deque[Slot]
    own: Slot


class Taking:
    """Memory of the device, as calls take it and give it back.

    made         all slots there are
    slots        those that are idle
    limit        most bytes that are taken at once
    table_bytes  of it, for tables of recent plans
    slab_bytes   what a slab has, unless one outer slice takes more
    part_bytes   most that a part reads, or writes, unless likewise
    """

    def __init__(
        self,
        device: Device,
        made: Sequence[Slot],
        slots: Slots[Call, Slot],
        *,
        limit: int,
        table_bytes: int,
        slab_bytes: int,
        part_bytes: int,
    ) -> None:
        self._made, self._slots = made, slots
        self._memory = BoundedMemory(device, limit=limit, release=self._release)
        self._kept = Kept(table_bytes)
        self._slab_bytes, self._part_bytes = slab_bytes, part_bytes

    @property
    def memory_taken(self) -> int:
        """Bytes that are in use or kept for later."""
        return self._memory.taken

    def take(self, slot: Slot, calls: Sequence[Call]) -> Taken:
        """Take what equal calls need to be computed together, or one alone; in turn only.

        Where memory is short parts are smaller. MemoryError, with nothing taken, where there is
        not enough for the smallest.
        """
        if len(calls) > 1:
            slices = parts.padded(len(calls)) * calls[0].outer
            joined = Part(slices, [one.x for one in calls], [one.y for one in calls])
            return self._taken(slot, calls[0], [joined])
        (call,) = calls
        whole = self._kept.ready(call, call.outer)
        if whole is not None and slot.slab is not None and slot.slab.nbytes >= whole.nbytes:
            slot.is_taken = True
            part = Part(call.outer, [call.x], [call.y])
            return Taken([part], {call.outer: whole}, deque([slot]), slot)
        slices = self._slices(call)
        while True:
            try:
                return self._taken(slot, call, list(_parts(call, slices)))
            except MemoryError:
                if slices == 1:
                    raise
            slices = -(-slices // 2)

    def give_back(self, taken: Taken) -> None:
        """Give back all but the slot that the call came with; nothing is pending on any."""
        self.give_back_others(taken)
        taken.own.is_taken = False
        taken.ready.clear()

    def give_back_others(self, taken: Taken) -> None:
        """Give back all slots but the one that the call came with."""
        for slot in taken.slots:
            if slot is not taken.own:
                slot.is_taken = False
                self._slots.give_back(slot)
        taken.slots = deque([taken.own])

    def _slices(self, call: Call) -> int:
        """Return how many outer slices of a call are computed at once where memory is not short."""
        most = partial(parts.slices_of_part, call.outer, max(call.slice_bytes))
        slices = most(most_bytes=self._part_bytes)
        while slices > 1 and self._loose(call, slices).nbytes > self._slab_bytes:
            slices = -(-slices // 2)
        return slices

    def _taken(self, slot: Slot, call: Call, made: Sequence[Part]) -> Taken:
        ready = {slices: self._ready(call, slices, slot) for slices in {one.slices for one in made}}
        nbytes = max(one.nbytes for one in ready.values())
        self._give_slab(slot, nbytes)
        slot.is_taken = True
        taken = Taken(made, ready, deque([slot]), slot)
        try:
            self._add_others(taken, nbytes)
        except BaseException:
            self.give_back(taken)
            raise
        return taken

    def _ready(self, call: Call, slices: int, slot: Slot) -> Ready:
        """Return the program of so many slices, its tables on the device if they may be kept."""
        found = self._kept.ready(call, slices)
        if found is not None:
            return found
        loose = self._loose(call, slices)
        if call.plan is None:
            return loose
        tables = loose.program.tables
        nbytes = sum(-(-one.nbytes // ALIGNMENT) * ALIGNMENT for one in tables)
        memory = self._memory.allocate(max(nbytes, ALIGNMENT))
        addresses = slot.hold(tables, memory)
        ready = Ready(loose.program, loose.x_bytes, loose.y_bytes, addresses, memory)
        self._kept.keep(call, slices, ready)
        return ready

    def _loose(self, call: Call, slices: int) -> Ready:
        """Return the program of so many slices, without memory."""
        x_bytes, y_bytes = (slices * one for one in call.slice_bytes)
        return Ready(self._kept.program(call, slices), x_bytes, y_bytes)

    def _give_slab(self, slot: Slot, nbytes: int) -> None:
        """See to it that a slot has a slab of so many bytes."""
        if slot.slab is not None and slot.slab.nbytes >= nbytes:
            return
        slot.slab = None  # given back first: both may not fit
        try:
            slot.slab = self._memory.allocate(self._usual(nbytes))
        except MemoryError:
            slot.slab = self._memory.allocate(nbytes)

    def _usual(self, nbytes: int) -> int:
        return max(self._slab_bytes, size_class(nbytes))

    def _add_others(self, taken: Taken, nbytes: int) -> None:
        """Take idle slots too, as many as there is use and free memory for."""
        while len(taken.slots) < min(_MOST_SLOTS, len(taken.parts)):
            slot = self._slots.take_idle()
            if slot is None:
                return
            taken.slots.append(slot)
            slot.is_taken = True
            if slot.slab is None or slot.slab.nbytes < nbytes:
                slot.slab = None
                try:
                    slot.slab = self._memory.allocate_free(self._usual(nbytes))
                except MemoryError:
                    taken.slots.pop()
                    slot.is_taken = False
                    self._slots.give_back(slot)
                    return

    def _release(self) -> None:
        """Give back tables that no call uses now, and slabs that no call holds."""
        self._kept.release()
        for slot in self._made:
            if not slot.is_taken:
                slot.slab = None


def _parts(call: Call, slices: int) -> Iterator[Part]:
    for first, stop in parts.ranges(call.outer, slices):
        x, y = call.x[first:stop], call.y[first:stop]
        yield Part(stop - first, [x], [y], call.carried)
