"""The HTTP port: health, metrics and the status page, one for all workers.

listener  threads that accept connections, away from the event loop; TLS
requests  reads one request in bounded memory and time, writes one answer
guard     whose Host, and who may read what
site      which path has what
history   what was counted in the last minutes
status    what the page tells, as a dictionary: pure
page      the page, from that dictionary: pure
markup    elements of HTML that escape what they hold

A library was looked for and left out: what is answered are five paths without a body, and aiohttp
or uvicorn with starlette would bring seven more packages and an event loop of their own into the
process that serves gRPC. Threads of the standard library wait in the kernel while nobody asks.
"""

from __future__ import annotations

from gradwire_server.admin_http.site import Site

__all__ = ["Site"]
