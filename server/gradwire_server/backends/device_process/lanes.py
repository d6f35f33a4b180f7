"""A connection to a device's process with memory that both share, for one call at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from gradwire_server.backends.device_process.channels import PROTOCOL, Channel, Message
from gradwire_server.backends.device_process.plan_encoding import encoded, of_bands
from gradwire_server.backends.device_process.shared_memory import SharedMemory, described
from gradwire_server.plans import BandedMap, Plan

Array = npt.NDArray[Any]

# Recent plans that the other side keeps for the lane, and the entries of all their tables.
_MOST_PLANS = 64
_MOST_ENTRIES = 1 << 20


class DeviceLostError(ConnectionError):
    """The other side has gone, or says that its device is lost."""


class Lane:
    """One of the calls that a worker can have at a device at once.

    name    of the socket at which the device's process listens
    nbytes  of the memory for tensors and tables; a call that needs more has memory of its own

    Raises OSError where nobody listens, MemoryError where memory is short.
    """

    def __init__(self, name: str, nbytes: int) -> None:
        with SharedMemory.temporary(nbytes) as self._memory:
            self._channel = Channel.to(name)
            try:
                told: Message = {"protocol": PROTOCOL, "lane": nbytes}
                self._channel.send(told, [self._memory.fd])
            except BaseException:
                self._channel.close()
                raise
        # By identity, which stays a plan's own as long as it is kept.
        self._plans = OrderedDict[int, tuple[Plan, int]]()
        self._entries = 0
        self._free = list(range(_MOST_PLANS))

    def hang_up(self) -> None:
        """Have the call of another thread fail, and all later ones."""
        self._channel.hang_up()

    def close(self) -> None:
        """Give back what it has."""
        self._channel.close()

    def apply(self, plan: Plan, x: Array, y: Array) -> None:
        """Write the plan's result for x to y, as the protocol of backends says.

        Raises DeviceLostError where the device is; MemoryError where its memory is short, and
        RuntimeError where the other side made a mistake: then the lane goes on.
        """
        kept = self._plans.get(id(plan))
        if kept is not None:
            self._plans.move_to_end(id(plan))
            self._call({"plan": kept[1]}, (), x, y)
            return
        header, tables = encoded(plan)
        if plan.table_entries > _MOST_ENTRIES:
            self._call({"plan": None, "new": header}, tables, x, y)
            return
        self._make_room(plan.table_entries)
        number = self._free[-1]
        self._call({"plan": number, "new": header}, tables, x, y)
        self._plans[id(plan)] = plan, self._free.pop()
        self._entries += plan.table_entries

    def accumulate(self, bands: BandedMap, x: Array, y: Array, *, axis: int, carried: int) -> None:
        """Add the taps of every output on x to y, likewise."""
        # Windows of a map come once each, so nobody keeps them.
        header, tables = encoded(of_bands(bands))
        sums: Message = {"axis": axis, "carried": carried}
        self._call({"plan": None, "new": header, "accumulate": sums}, tables, x, y)

    def _make_room(self, entries: int) -> None:
        while self._plans and (not self._free or self._entries + entries > _MOST_ENTRIES):
            _, (plan, number) = self._plans.popitem(last=False)
            self._entries -= plan.table_entries
            self._free.append(number)

    def _call(self, task: Message, tables: Sequence[Array], x: Array, y: Array) -> None:
        where, size = described([x, y, *tables])
        task |= {"x": where[0], "y": where[1], "tables": where[2:]}
        if size <= self._memory.bytes.size:
            self._exchange(task, self._memory, (x, y, *tables), fds=())
        else:
            with SharedMemory.temporary(size) as own:
                self._exchange(task, own, (x, y, *tables), fds=(own.fd,))

    def _exchange(
        self, task: Message, memory: SharedMemory, arrays: Sequence[Array], *, fds: Sequence[int]
    ) -> None:
        at_x, at_y, *at_tables = (
            memory.view(one) for one in (task["x"], task["y"], *task["tables"])
        )
        x, y, *tables = arrays
        at_x[...] = x
        for target, table in zip(at_tables, tables, strict=True):
            target[...] = table
        if "accumulate" in task:
            at_y[...] = y
        try:
            self._channel.send(task, fds)
            answer, _ = self._channel.receive()
        except OSError as error:
            raise DeviceLostError("its process has ended") from error
        _check(answer)
        y[...] = at_y


def _check(answer: Message) -> None:
    why = answer.get("why", "")
    match answer["ended"]:
        case "done":
            return
        case "memory":
            raise MemoryError(why)
        case "lost":
            raise DeviceLostError(why)
        case _:
            raise RuntimeError(f"a fault in a device's process: {why}")
