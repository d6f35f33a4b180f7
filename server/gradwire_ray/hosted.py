"""Program of a replica's server, which writes its load to standard output.

    python -m gradwire.cli.tethered gradwire_ray.hosted FLAG ...

Its standard output has a line of its report twice a second, or one with the reason why it cannot
serve.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from statistics import fmean

from gradwire_server.command import read_settings
from gradwire_server.processes import serve, startup
from gradwire_server.server import Server

# Intervals of samples, and of lines.
_SAMPLE_S = 0.05
_LINE_S = 0.5


def main() -> None:
    """Serve until SIGTERM."""
    startup.hold()
    try:
        # One process per replica: more workers are more replicas. The variable does not apply.
        settings = read_settings(["--workers", "1", *sys.argv[1:]])
        serve.run(serve.serve(settings, beside=_write_load))
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        # The actor passes it on; the log of its process has it too.
        startup.tell(json.dumps({"failure": str(error)}))
        sys.exit(f"Error: {error}")


async def _write_load(server: Server) -> None:
    """Write a line with the fields of a Report twice a second.

    Lines are written as long as the server serves.
    """
    output = sys.stdout.fileno()
    os.set_blocking(output, False)
    admission, threads = server.service.admission, server.settings.threads
    while True:
        seen = list[int]()
        began, used = time.monotonic(), time.thread_time()
        while (passed := time.monotonic() - began) < _LINE_S:
            seen.append(admission.queue_depth + admission.computing)
            await asyncio.sleep(_SAMPLE_S)
        # There is one slot more than threads, for the next evaluation.
        at_work = fmean(min(each, threads) for each in seen)
        load = {
            "address": server.bound,
            "waiting": round(fmean(seen) - at_work, 2),
            "busy": round(at_work / threads, 2),
            "loop": round(min(1.0, (time.thread_time() - used) / passed), 2),
            "refused": sum(admission.refusals.values()),
            "streams": admission.streams,
        }
        try:
            os.write(output, json.dumps(load).encode() + b"\n")
        except BlockingIOError:
            # The actor is stopped or slow; it gets the next line.
            continue
        except BrokenPipeError:
            return


if __name__ == "__main__":
    main()
