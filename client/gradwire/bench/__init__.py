"""Load tests: what `gradwire bench` does.

scenarios.py tells which calls are made; generator.py makes them, in processes of their own, as the
SDK makes them with its retries off; fleet.py and running.py lead those processes and look at the
server meanwhile; document.py is what comes of it, and the schema of the JSON; report.py shows it.

A latency is told in two ways. In an open loop calls are due at a fixed rate, whether or not those
before them have ended, and what counts is the time from when a call was due. In a closed loop
each caller waits for its result before it calls again: a server that stops for a second then delays
one call of each caller, where callers who do not know of each other would have come all the while.
HdrHistogram's correction adds those that were left out (G. Tene, "How NOT to Measure Latency": what
it calls coordinated omission).
"""

from __future__ import annotations
