"""Main program of a worker process, started by the supervisor only."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from gradwire_server import backends
from gradwire_server.processes import serve
from gradwire_server.processes.worker_config import WorkerConfig

# prctl(2): the signal that this process gets when its parent ends.
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve the job given on standard input.

    It serves at most as long as the parent lives. The job is one line. Slow steps that cannot fail
    run when it arrives, the others when the parent closes its end.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    told = sys.stdin.buffer.readline()
    job = WorkerConfig.load(told) if told else None
    if job is not None:
        backends.DEVICES = job.devices
        wanted = job.settings.backend
        if job.settings.wait_for_kernels or backends.meanwhile(wanted) is None:
            backends.preload(wanted)
        sys.stdin.buffer.read()
    if job is None or os.getppid() != job.parent:
        sys.exit("gradwire-server: the process that watches the workers has ended")
    try:
        serve.run(serve.serve(job.settings, worker=job.number, cells=job.cells))
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
