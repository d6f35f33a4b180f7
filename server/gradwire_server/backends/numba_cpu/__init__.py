"""The compiled CPU backend: the bits of `numpy_cpu`, from kernels that numba compiles.

How a plan becomes machine code:

- backend.py      the methods that the engine calls
- threads.py      threads that share a call in team.py, by way of mailboxes.py
- compilation.py  compiles, or finds what was compiled before
- jobs.py         from a plan to jobs, by way of tables.py, as records.py lays them out
- blocks.py       the loop over blocks, each through up to three stages
- nearest.py      all stages at once where every weight is 1, by windows.py
- rows.py         sums of rows; the width stage is in columns.py, steady.py and permute.py
- simd.py, shuffles.py, on vectors.py and formats.py: the instructions the kernels are written in;
  atomics.py and system.py: those of team.py

Modules compile when they are imported, team.py and those from jobs.py on: only compilation.py
imports them.
"""

from __future__ import annotations

from gradwire_server.backends.numba_cpu.backend import NumbaCpu

__all__ = ["NumbaCpu"]
