"""Compiled CPU backend, with the bits of `numpy_cpu`, by numba.

From a plan to machine code:

- backend.py       the methods that the engine calls
- compilation.py   compiles the kernels, or loads them from a file
- __main__.py      compiles them, as a child of a server
- jobs.py          from a plan to jobs, with tables.py, written as records.py states
- threads.py       threads that share the blocks of a job
- blocks.py        runs a block through up to three stages
- rows.py          sums of rows for the first two stages, conversion, streaming
- width.py         the third stage, along rows
- instructions.py  the instructions of the kernels, on the types of vectors.py

threads.py and the kernels compile when they are imported; only compilation.py imports them,
directly or through jobs.py.
"""

from __future__ import annotations

from gradwire_server.backends.numba_cpu.backend import NumbaCpu

__all__ = ["NumbaCpu"]
