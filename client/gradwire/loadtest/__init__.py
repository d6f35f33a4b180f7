"""Load tests of a server, for `gradwire bench`.

`scenarios` defines the calls; `generator` makes them, in processes of their own, as the SDK makes
them with its retries off; `runner` controls those processes and samples the server meanwhile;
`result` is the schema of the JSON, and makes it of their reports; `report` renders it.

In an open loop calls are due at a fixed rate, whether or not earlier ones have ended, and a latency
counts from when its call was due. In a closed loop each caller waits for its result before it calls
again: a server that stalls for a second then delays one call of each caller, where independent
callers would have arrived all the while. HdrHistogram's correction adds those calls (G. Tene, "How
NOT to Measure Latency": coordinated omission).
"""

from __future__ import annotations
