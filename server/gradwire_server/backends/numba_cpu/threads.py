"""The threads that compute: those that call, and helpers that are started when they are needed."""

from __future__ import annotations

import atexit
import threading
from types import ModuleType
from typing import Any
from weakref import WeakSet, finalize

import numpy as np
import numpy.typing as npt

from gradwire_server.backends.float_environment import default_float_environment
from gradwire_server.backends.numba_cpu import mailboxes as at

_teams: WeakSet[Team] = WeakSet()
_serving: set[threading.Thread] = set()


class ScratchMemory:
    """Zeros that begin at a multiple of a cache line's and a vector's 64 bytes."""

    def __init__(self, size: int) -> None:
        held: npt.NDArray[Any] = np.zeros(size + at.LINE_BYTES, np.uint8)
        start: int = held.__array_interface__["data"][0]
        self.size = size
        self.address = -(-start // at.LINE_BYTES) * at.LINE_BYTES
        self._bytes = held[self.address - start :][:size]

    def put(self, place: int, value: int) -> None:
        """Write an int64 so many bytes from the beginning."""
        self._bytes[place : place + 8].view(np.int64)[0] = value


class Scratch(threading.local):
    """Memory of each thread for what stages hand on."""

    def __init__(self) -> None:
        self._memory = ScratchMemory(0)

    def address(self, size: int) -> int:
        """Return where at least so many bytes begin, at a multiple of a vector's 64."""
        if self._memory.size < size:
            # Zeros: what lies beyond a row is read, and arithmetic on denormal numbers is slow.
            self._memory = ScratchMemory(size)
        return self._memory.address


class Team:
    """Threads that calls share: each takes those that are free, its own among them.

    Belongs to the process that it was made in. Helpers end with it.

    most  threads that compute at once, those that call among them
    code  the module `team`
    """

    def __init__(self, most: int, code: ModuleType) -> None:
        self._most = most
        self._code = code
        self._memory = ScratchMemory(at.TEAM_BYTES + (most - 1) * at.MAILBOX_BYTES)
        self._memory.put(at.FREE_THREADS, most)
        self._helpers = 0
        self._lock = threading.Lock()
        _teams.add(self)
        finalize(self, _end, code, self._memory).atexit = False

    def ready(self, wanted: int) -> int:
        """Return the team's address once there are helpers for so many threads, or as may be."""
        count = min(wanted, self._most) - 1
        if self._helpers < count:
            with self._lock:
                self._start(count)
        return self._memory.address

    def end(self) -> None:
        """Tell the helpers to end. Calls go on without them."""
        _end(self._code, self._memory)

    def _start(self, count: int) -> None:
        memory = self._memory
        while self._helpers < count:
            place = at.TEAM_BYTES + self._helpers * at.MAILBOX_BYTES
            self._code.prepare(memory.address + place)
            thread = threading.Thread(
                target=_serve,
                args=(self._code, memory, memory.address + place),
                name=f"gradwire-kernel-{self._helpers}",
                daemon=True,
            )
            try:
                thread.start()
            except RuntimeError:
                return  # there are too many threads, or the interpreter is about to end
            memory.put(place + at.THREAD, thread.native_id or 0)
            self._helpers += 1
            memory.put(at.HELPERS, self._helpers)


def _serve(code: ModuleType, _memory: ScratchMemory, mailbox: int) -> None:
    """Be a helper, and keep the memory alive that it uses."""
    thread = threading.current_thread()
    _serving.add(thread)
    with default_float_environment():
        code.serve(mailbox)
    _serving.discard(thread)


def _end(code: ModuleType, memory: ScratchMemory) -> None:
    code.end(memory.address)


@atexit.register
def _end_all() -> None:
    """End all helpers while the code that they run is still there."""
    for team in list(_teams):
        team.end()
    for thread in list(_serving):
        thread.join()
