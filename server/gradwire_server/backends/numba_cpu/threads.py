"""Threads that share the work of calls, in compiled code.

A caller posts a task to helper threads that are free, works on it too, and then takes it back from
the helpers that have not begun: a helper that wakes up late delays nobody. Each thread takes a part
of the units that are left, until none are: large parts first, so that neighbors in memory stay in
one processor's cache, and small ones last, so that all threads end together.

A thread pool in Python costs each call 30 to 80 us more: of 1 M numbers on two threads, 121 us here
took 207 us there (minima).

The state of a helper's mailbox is FREE, BUSY or the address of a task. A caller posts a task where
it finds FREE, and takes it back by writing FREE; the helper changes it to BUSY, computes, counts
itself as done in the task, and writes FREE. So a helper reads a task only while its caller waits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from weakref import finalize

import numpy as np
import numpy.typing as npt
from numba import njit, types

from gradwire_server.backends.float_environment import default_float_environment
from gradwire_server.backends.numba_cpu.instructions import call, integer_at, put_number
from gradwire_server.backends.numba_cpu.vectors import INT64, instruction, part, pointer

# Shared memory: offsets in bytes. Every field is an int64, but for the semaphore. Fields that
# different threads write concurrently are on different cache lines.
LINE_BYTES = 64

# The head of a team's memory, which the mailboxes follow.
FREE_THREADS = 0  # threads that no call has taken
HELPERS = 8  # helpers that have been started
TEAM_BYTES = 64

# A helper's mailbox.
STATE = 0
ASLEEP = 8  # whether the helper sleeps, or is about to
ENDING = 16  # whether it is told to end
WAKE = 64  # semaphore of the helper; a line holds any sem_t
MAILBOX_BYTES = 128

FREE, BUSY = range(2)

# A task.
RUN = 0  # address of the compiled function that computes units of a job
JOB = 8
X = 16
Y = 24
NEEDED = 32  # bytes that each thread needs for buffers
UNITS = 40
LEAST = 48  # fewest units worth taking at once
THREADS = 56
NEXT = 64  # first unit that no thread has taken
DONE = 128  # helpers that have ended
TASK_BYTES = 192

# Checks before a helper sleeps: they take about as long as a wake-up, 50 to 150 us on virtual
# machines. A caller sleeps between further checks.
_CHECKS = 200
_BETWEEN_US = 50
# Each time, a thread takes this part of its share of the units that are left: 1 / 2.
_TAKEN = 2

# Atomic operations on int64, all sequentially consistent.
_ORDER = "seq_cst"


@instruction(types.int64)
def atomic_load(builder, address):
    """Read an int64."""
    return builder.load_atomic(pointer(builder, address, INT64), _ORDER, 8)


@instruction(types.int64)
def exchange(builder, address, value):
    """Write an int64 and return the old one."""
    return builder.atomic_rmw("xchg", pointer(builder, address, INT64), value, _ORDER)


@instruction(types.int64)
def fetch_add(builder, address, value):
    """Add to an int64 and return the old one."""
    return builder.atomic_rmw("add", pointer(builder, address, INT64), value, _ORDER)


@instruction(types.boolean)
def compare_exchange(builder, address, expected, value):
    """Replace an int64 if it is the expected one.

    Returns whether it was.
    """
    place = pointer(builder, address, INT64)
    return builder.extract_value(builder.cmpxchg(place, expected, value, _ORDER, _ORDER), 1)


def _function(name, result, *arguments):
    """A function of the C library; pointers are integers."""
    return types.ExternalFunction(name, result(*arguments))


_sem_init = _function("sem_init", types.int32, types.int64, types.int32, types.uint32)
_sem_post = _function("sem_post", types.int32, types.int64)
_sem_wait = _function("sem_wait", types.int32, types.int64)
_usleep = _function("usleep", types.int32, types.uint32)
_sched_yield = _function("sched_yield", types.int32)
_calloc = _function("calloc", types.int64, types.int64, types.int64)
_free = _function("free", types.void, types.int64)


@part
def _mailbox(team, helper):
    return team + TEAM_BYTES + helper * MAILBOX_BYTES


@part
def _work(task, scratch):
    """Compute units of a task until none are left."""
    run, job = integer_at(task + RUN), integer_at(task + JOB)
    x, y = integer_at(task + X), integer_at(task + Y)
    units, least = integer_at(task + UNITS), integer_at(task + LEAST)
    parts = _TAKEN * integer_at(task + THREADS)
    first = atomic_load(task + NEXT)
    while first < units:
        stop = min(first + max(least, (units - first) // parts), units)
        if compare_exchange(task + NEXT, first, stop):
            call(run, (job, x, y, scratch, first, stop))
        first = atomic_load(task + NEXT)


@part
def _sleep(mailbox):
    """Sleep until a task is posted or the helper is to end."""
    exchange(mailbox + ASLEEP, 1)
    if atomic_load(mailbox + STATE) == FREE and not atomic_load(mailbox + ENDING):
        _sem_wait(mailbox + WAKE)
    exchange(mailbox + ASLEEP, 0)


@part
def _wake(mailbox):
    """Wake a helper that waits for a change."""
    if exchange(mailbox + ASLEEP, 0):
        _sem_post(mailbox + WAKE)


@part
def _take(team, wanted):
    """Take at least the caller's thread, and at most `wanted` threads."""
    while True:
        there = atomic_load(team + FREE_THREADS)
        count = max(1, min(wanted, there))
        if compare_exchange(team + FREE_THREADS, there, there - count):
            return count


@part
def _post(team, task, most, wakes):
    """Post a task to free helpers; return how many got it.

    wakes  whether helpers that sleep get it, too
    """
    posted = 0
    for helper in range(atomic_load(team + HELPERS)):
        mailbox = _mailbox(team, helper)
        suits = posted < most and (wakes or not atomic_load(mailbox + ASLEEP))
        if suits and compare_exchange(mailbox + STATE, FREE, task):
            posted += 1
            _wake(mailbox)
    return posted


@part
def _gather(team, task, posted):
    """Take a task back, and wait for the helpers that began."""
    for helper in range(atomic_load(team + HELPERS)):
        if compare_exchange(_mailbox(team, helper) + STATE, task, FREE):
            posted -= 1
    checks = 0
    while atomic_load(task + DONE) != posted:
        checks += 1
        if checks < _CHECKS:
            _sched_yield()
        else:
            _usleep(_BETWEEN_US)


@njit(types.void(types.int64), nogil=True, cache=True)
def serve(mailbox):
    """Run a helper, in zeroed memory, until it is told to end."""
    _sem_init(mailbox + WAKE, 0, 0)
    scratch = size = checks = 0
    while not atomic_load(mailbox + ENDING):
        task = atomic_load(mailbox + STATE)
        if task != FREE and compare_exchange(mailbox + STATE, task, BUSY):
            needed = integer_at(task + NEEDED) + LINE_BYTES
            if needed > size:
                _free(scratch)
                # Zeroed as in Scratch. If there is no memory, the other threads do all the work.
                scratch = _calloc(needed, 1)
                size = needed if scratch else 0
            if scratch:
                _work(task, -(-scratch // LINE_BYTES) * LINE_BYTES)
            fetch_add(task + DONE, 1)
            exchange(mailbox + STATE, FREE)
            checks = 0
        elif checks < _CHECKS:
            checks += 1
            _sched_yield()
        else:
            _sleep(mailbox)
            checks = 0
    _free(scratch)


@njit(types.void(types.int64), nogil=True, cache=True)
def end(team):
    """Tell all helpers to end."""
    for helper in range(atomic_load(team + HELPERS)):
        mailbox = _mailbox(team, helper)
        exchange(mailbox + ENDING, 1)
        _wake(mailbox)


@njit(types.void(*[types.int64] * 12), nogil=True, cache=True)
def share(team, task, run, job, x, y, scratch, needed, units, least, wanted, wakes):
    """Compute all units of a job.

    This thread computes, and free helpers do.

    task     address of TASK_BYTES that belong to this thread
    run      address of the function that computes some units
    scratch  address of this thread's buffers, of needed bytes
    least    fewest units worth taking at once
    wanted   most threads
    wakes    whether the work is worth waking helpers up
    """
    count = _take(team, wanted)
    for index, value in enumerate((run, job, x, y, needed, units, least, count)):
        put_number(task + RUN + 8 * index, value)
    put_number(task + NEXT, 0)
    put_number(task + DONE, 0)
    posted = _post(team, task, count - 1, wakes)
    _work(task, scratch)
    _gather(team, task, posted)
    fetch_add(team + FREE_THREADS, count)


class ScratchMemory:
    """Zeroed memory, aligned to 64 bytes.

    This is the size of a cache line and of a vector.
    """

    def __init__(self, size: int) -> None:
        held: npt.NDArray[np.uint8] = np.zeros(size + LINE_BYTES, np.uint8)
        start: int = held.__array_interface__["data"][0]
        self.size = size
        self.address = -(-start // LINE_BYTES) * LINE_BYTES
        self._bytes = held[self.address - start :][:size]

    def put(self, place: int, value: int) -> None:
        """Write an int64 at an offset."""
        self._bytes[place : place + 8].view(np.int64)[0] = value


class Scratch(threading.local):
    """Per-thread memory: a task, and the buffers between stages.

    task  address of TASK_BYTES
    """

    def __init__(self) -> None:
        self._memory = ScratchMemory(0)
        self._task = ScratchMemory(TASK_BYTES)
        self.task = self._task.address

    def address(self, size: int) -> int:
        """Return the address of at least size bytes, a multiple of 64."""
        if self._memory.size < size:
            # Zeroed, since bytes beyond a row are read too, and denormals are slow.
            self._memory = ScratchMemory(size)
        return self._memory.address


class Team:
    """Threads that calls share.

    Each call takes free threads, and always its own. A team belongs to the process that made it;
    its helpers end with it.

    most     most threads that compute at once, callers' own included
    address  of the shared memory
    """

    def __init__(self, most: int) -> None:
        memory = ScratchMemory(TEAM_BYTES + (most - 1) * MAILBOX_BYTES)
        self.address = memory.address
        helpers = list(_started(memory, most - 1))
        memory.put(FREE_THREADS, most)
        memory.put(HELPERS, len(helpers))
        finalize(self, _end, memory, helpers)


def _started(memory: ScratchMemory, count: int) -> Iterator[threading.Thread]:
    """Start helpers, as many as possible."""
    for number in range(count):
        thread = threading.Thread(
            target=_serve,
            args=(memory, memory.address + TEAM_BYTES + number * MAILBOX_BYTES),
            name=f"gradwire-kernel-{number}",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError:
            return  # too many threads, or the interpreter is shutting down
        yield thread


def _serve(_memory: ScratchMemory, mailbox: int) -> None:
    """Run a helper, and keep the memory that it uses alive."""
    with default_float_environment():
        serve(mailbox)


def _end(memory: ScratchMemory, helpers: list[threading.Thread]) -> None:
    """End helpers, before their code is unloaded."""
    end(memory.address)
    for one in helpers:
        one.join()
