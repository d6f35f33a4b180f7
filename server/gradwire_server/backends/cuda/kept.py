"""Programs of recent plans, and their tables on the device."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire_server.backends.cuda.calls import Call
from gradwire_server.backends.cuda.programs import Program
from gradwire_server.backends.cuda.slots import Ready
from gradwire_server.plans import Plan
from gradwire_server.recent import Recent

# Programs that are kept, and the memory of the host that their tables may take.
_MOST = 512
_PROGRAM_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class _Made:
    """A program; with the plan, so that its identity stays its own."""

    plan: Plan
    program: Program


class Kept:
    """What was made for recent plans. Threads may share it.

    table_bytes  of the device's memory, for tables
    """

    def __init__(self, table_bytes: int) -> None:
        self._table_bytes = table_bytes
        self._programs = Recent[_Made](most=_MOST, max_weight=_PROGRAM_BYTES)
        self._ready = self._nothing()

    def program(self, call: Call, slices: int) -> Program:
        """Return a call's program of so many slices."""
        if call.plan is None:
            return call.program(slices)
        key = (call.key, slices)
        found = self._programs.get(key)
        if found is None:
            found = _Made(call.plan, call.program(slices))
            weight = sum(one.nbytes for one in found.program.tables)
            self._programs.keep(key, found, weight=weight)
        return found.program

    def ready(self, call: Call, slices: int) -> Ready | None:
        """Return a program whose tables are on the device; None if they are not."""
        if call.plan is None:
            return None
        found = self._ready.get((call.key, slices))
        return found and found[1]

    def keep(self, call: Call, slices: int, ready: Ready) -> None:
        """Keep a program and its tables, if they are not too large."""
        if call.plan is not None and ready.memory is not None:
            kept = call.plan, ready
            self._ready.keep((call.key, slices), kept, weight=ready.memory.nbytes)

    def release(self) -> None:
        """Let go of all tables; those in use stay until they are not."""
        self._ready = self._nothing()

    def _nothing(self) -> Recent[tuple[Plan, Ready]]:
        return Recent(most=_MOST, max_weight=self._table_bytes)
