"""What no call tells: how late the event loop is, and what the server holds at the moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from gradwire_server.observability.cells import Cells, place
from gradwire_server.observability.definitions import LAG

_EVERY_S = 0.25


class Sampler:
    """Writes readings into cells, four times a second and at the end. Belongs to one event loop.

    readings  what is read, by the cell that it is written to
    """

    def __init__(self, cells: Cells, readings: Mapping[int, Callable[[], float]]) -> None:
        self._cells = cells
        self._readings = dict(readings)
        self._lag = place(LAG)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start, in the running event loop."""
        self.sample()
        self._task = asyncio.create_task(self._run())

    def renew(self, readings: Mapping[int, Callable[[], float]]) -> None:
        """Read other things from now on."""
        self._readings = dict(readings)
        self.sample()

    async def stop(self) -> None:
        """Sample once more and stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        self.sample()

    def sample(self) -> None:
        """Write every reading now."""
        for cell, read in self._readings.items():
            self._cells.values[cell] = read()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _EVERY_S
            await asyncio.sleep(_EVERY_S)
            self._cells.observe(self._lag, LAG.buckets, max(0.0, loop.time() - due))
            self.sample()
