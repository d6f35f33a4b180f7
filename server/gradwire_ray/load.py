"""How busy a server is: what its process tells the actor that owns it, a line at a time."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import asdict, dataclass

from gradwire_server.server import Server

# How often a server is looked at, and what it saw is told.
_LOOK_S = 0.05
_TELL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How busy one replica was during the last half second.

    waiting  evaluations that waited for a thread, on average
    busy     share of the threads that compute that did so, 0 to 1
    loop     share of the time in which the event loop was at work, 0 to 1
    refused  evaluations refused for want of room, since the server started
    streams  open at the end
    """

    waiting: float = 0.0
    busy: float = 0.0
    loop: float = 0.0
    refused: int = 0
    streams: int = 0

    def dump(self) -> bytes:
        """Write it as a line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def read(cls, line: bytes) -> Load:
        """Read such a line."""
        return cls(**json.loads(line))


async def tell(server: Server, fd: int) -> None:
    """Write a server's load to a pipe, as long as it serves."""
    os.set_blocking(fd, False)
    admission, threads = server.service.admission, server.settings.threads
    while True:
        waiting = computing = looks = 0
        began, used = time.monotonic(), time.thread_time()
        while (passed := time.monotonic() - began) < _TELL_S:
            # The slot beyond those of the threads is held by who is next.
            waiting += admission.queue_depth + max(0, admission.computing - threads)
            computing += min(admission.computing, threads)
            looks += 1
            await asyncio.sleep(_LOOK_S)
        load = Load(
            waiting=waiting / looks,
            busy=computing / looks / threads,
            loop=min(1.0, (time.thread_time() - used) / passed),
            refused=sum(admission.refusals.values()),
            streams=admission.streams,
        )
        try:
            os.write(fd, load.dump())
        except BlockingIOError:
            # Whoever reads is stopped, or slow; it gets the next one.
            continue
        except BrokenPipeError:
            sys.stderr.write("gradwire-ray: nobody asks for the load any more\n")
            return
