"""The exit status of a process is its own, whenever it is sent a signal."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE

from gradwire_server.processes.supervised import WorkerProcess

TIMES = 40


def test_a_signal_to_a_process_that_ends_leaves_its_status_alone() -> None:
    async def status() -> int:
        started = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", "", stdout=PIPE)
        process = WorkerProcess(started, stall_timeout_s=60)
        ending = asyncio.ensure_future(process.ended())
        while not ending.done():
            # None that would end it: what counts is that it is sent while the process ends.
            process.send(0)
            await asyncio.sleep(0)
        return await ending

    async def statuses() -> list[int]:
        return [await status() for _ in range(TIMES)]

    assert asyncio.run(statuses()) == [0] * TIMES
