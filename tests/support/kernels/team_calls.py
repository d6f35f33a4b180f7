"""Calls of the compiled code that shares work, with jobs that tell who computed what."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from gradwire_server.backends import Backend
from support.oracles import oracles

_PACKAGE = "gradwire_server.backends.numba_cpu"


def team_code() -> ModuleType:
    module: ModuleType = import_module(f"{_PACKAGE}.compilation").load("").threads
    return module


def free_threads(backend: Backend) -> int:
    return word(vars(backend)["_team"].ready(1), "FREE_THREADS")


def word(place: int, field: str) -> int:
    offset: int = vars(team_code())[field]
    return ctypes.c_int64.from_address(place + offset).value


@cache
def counting() -> int:
    """Address of a compiled function in place of `blocks.run`.

    Its job is how many microseconds every eighth unit takes; it counts at y how often each unit is
    computed, and at x how often a thread's buffers are in use already.
    """
    numba: Any = import_module("numba")
    code, int64 = team_code(), numba.types.int64
    exchange, fetch_add = code.exchange, code.fetch_add
    usleep = numba.types.ExternalFunction("usleep", numba.types.int32(numba.types.uint32))

    def run(job: int, x: int, y: int, scratch: int, first: int, stop: int) -> None:  # noqa: PLR0917 - as it is called
        fetch_add(x, exchange(scratch, 1))
        for unit in range(first, stop):
            fetch_add(y + 8 * unit, 1)
            if unit % 8 == 0 and job:
                usleep(job)
        exchange(scratch, 0)

    compiled = numba.cfunc(numba.types.void(*[int64] * 6))(run)
    _kept.append(compiled)
    return int(compiled.address)


_kept: list[object] = []


class Count:
    """A job of some units and what is counted of it."""

    def __init__(self, units: int) -> None:
        self.in_use = np.zeros(1, np.int64)
        self.done = np.zeros(units, np.int64)
        self._buffers = np.zeros(16, np.int64)

    def share(self, team: int, *, threads: int, slow_us: int = 0) -> None:
        """Compute every unit on so many threads at most, all of which are worth waking up."""
        places = (_address(one) for one in (self.in_use, self.done, self._buffers))
        numbers = (8, len(self.done), 1, threads, 1, 0)
        team_code().share(team, counting(), slow_us, *places, *numbers)


def _address(array: oracles.Tensor) -> int:
    return int(array.ctypes.data)
