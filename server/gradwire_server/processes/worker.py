"""Main program of a worker process, started by the supervisor only."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys

from gradwire_server import backends
from gradwire_server.config.settings import Settings
from gradwire_server.processes import serve
from gradwire_server.server import Server

# prctl(2): the signal that this process gets when its parent ends.
_PR_SET_PDEATHSIG = 1
# Heartbeats sent within the stall timeout, in which at least one has to arrive.
_BEATS = 8


def main() -> None:
    """Serve the job given on standard input.

    It serves at most as long as the parent lives. The job is one line. Slow steps that cannot fail
    run when it arrives, the others when the parent closes its end.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    job = json.loads(sys.stdin.buffer.readline() or '{"parent": 0}')
    if os.getppid() != job["parent"]:
        # It has ended before prctl(2).
        sys.exit("gradwire-server: the process that watches the workers has ended")
    settings = Settings(**job["settings"])
    backends.DEVICES = job["devices"]
    if settings.wait_for_kernels or backends.meanwhile(settings.backend) is None:
        backends.preload(settings.backend)
    sys.stdin.buffer.read()
    try:
        serve.run(
            serve.serve(settings, worker=job["number"], cells=job["cells"], beside=_send_heartbeats)
        )
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        sys.exit(f"Error: {error}")


async def _send_heartbeats(server: Server) -> None:
    """Send heartbeats to the supervisor while the event loop runs."""
    pipe = sys.stdout.fileno()
    os.set_blocking(pipe, False)
    try:
        while True:
            # A stopped supervisor does not read, and the pipe fills.
            with contextlib.suppress(BlockingIOError):
                os.write(pipe, b".")
            await asyncio.sleep(server.settings.stall_timeout_s / _BEATS)
    finally:
        # The supervisor expects no more of them: to exit may take longer than the stall timeout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), pipe)


if __name__ == "__main__":
    main()
