"""The process of a replica: a server as `gradwire-server` runs it, which tells its load.

    python -m gradwire.cli.tethered gradwire_ray.hosted FLAG ...

Its standard output has the line that tells the address, then a line of load twice a second; or a
line that tells why it cannot serve.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

from gradwire_ray import load
from gradwire_ray.replica import REFUSAL
from gradwire_server.command import read_settings
from gradwire_server.processes import serve, startup
from gradwire_server.server import Server


def main() -> None:
    """Serve until SIGTERM."""
    startup.hold()
    telling: set[asyncio.Task[None]] = set()

    def tell(server: Server) -> None:
        telling.add(asyncio.ensure_future(load.tell(server, sys.stdout.fileno())))

    try:
        # Workers are more replicas here, whatever this machine's variables say.
        settings = replace(read_settings(sys.argv[1:]), workers=1, pin_workers=False)
        serve.run(serve.serve(settings, on_serving=tell))
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        # The actor passes it on; the log of its process has it too.
        sys.stdout.write(f"{REFUSAL}{' '.join(str(error).split())}\n")
        sys.stdout.flush()
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
