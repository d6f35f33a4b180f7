"""Threads that share the work of calls, in compiled code.

A caller posts a task to helper threads that are free, works on it too, and then takes it back from
the helpers that have not begun: a helper that wakes up late delays nobody. The units of a task are
divided into shares. Each thread begins with its own share, so that neighbors in memory stay in one
processor's cache, and then takes what is left of the others: with one share for all, 1 M numbers on
two threads took 56 us instead of 50.

A thread pool in Python costs each call 30 to 80 us more: of 1 M numbers on two threads, 121 us here
took 207 us there (minima).

Each helper has a mailbox, with these states:

    FREE -> CLAIMED -> POSTED -> RUNNING -> DONE -> FREE
                          +----> CLAIMED -> FREE

A caller sets CLAIMED from FREE and owns the mailbox until it sets FREE again; only the helper
sets RUNNING from POSTED and, at the end, DONE. So it reads a task only while the caller waits.
"""

from __future__ import annotations

import atexit
import threading
import time
from weakref import WeakSet, finalize

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
UNWOKEN = 16  # part of the work of recent calls for which no helper was woken up
TEAM_BYTES = 64

# A helper's mailbox.
STATE = 0  # one of the states below
TASK = 8  # address of the mailbox with the task that this one is claimed for, else 0
ASLEEP = 16  # whether the helper sleeps, or is about to
ENDING = 24  # whether it is told to end
CLOCK = 32  # 16 bytes for the time
SHARE = 48  # share of the task that it begins with
RUN = 64  # the task: address of the compiled function that computes units of a job
JOB = 72
X = 80
Y = 88
SCRATCH = 96  # bytes that each thread needs for buffers
UNITS = 104
STEP = 112  # units taken at once
SHARES = 120  # number of shares
NEXT = 128  # next unit of each share, each on its own line
MOST_SHARES = 16
WAKE = NEXT + LINE_BYTES * MOST_SHARES  # semaphore of the helper; a line holds any sem_t
MAILBOX_BYTES = WAKE + LINE_BYTES

FREE, CLAIMED, POSTED, RUNNING, DONE = range(5)

# How long a helper spins before it sleeps: about as long as a wake-up takes, 50 to 150 us on
# virtual machines.
_SPIN_NS = 100_000
# Checks before a caller sleeps between them.
_CHECKS = 200
_BETWEEN_US = 50
# Steps of a share: a thread that comes late to the last one delays the others by one step.
_STEPS = 16
# Fraction of the work without a helper that counts for the next call: 1 / 8.
_CARRIED = 8

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
_clock_gettime = _function("clock_gettime", types.int32, types.int32, types.int64)
_calloc = _function("calloc", types.int64, types.int64, types.int64)
_free = _function("free", types.void, types.int64)


@part
def _nanoseconds(mailbox):
    """The time of the monotonic clock."""
    _clock_gettime(time.CLOCK_MONOTONIC, mailbox + CLOCK)
    return integer_at(mailbox + CLOCK) * 10**9 + integer_at(mailbox + CLOCK + 8)


@part
def _mailbox(team, helper):
    return team + TEAM_BYTES + helper * MAILBOX_BYTES


@part
def _work(task, scratch, begin):
    """Compute one share, then what is left of the others."""
    run, job = integer_at(task + RUN), integer_at(task + JOB)
    x, y = integer_at(task + X), integer_at(task + Y)
    units, step = integer_at(task + UNITS), integer_at(task + STEP)
    shares = integer_at(task + SHARES)
    for turn in range(shares):
        number = (begin + turn) % shares
        stop = units * (number + 1) // shares
        place = task + NEXT + LINE_BYTES * number
        first = fetch_add(place, step)
        while first < stop:
            call(run, (job, x, y, scratch, first, min(first + step, stop)))
            first = fetch_add(place, step)


@part
def _sleep(mailbox):
    """Sleep until a task is posted or the helper is to end.

    Callers of both check ASLEEP after them.
    """
    exchange(mailbox + ASLEEP, 1)
    if atomic_load(mailbox + STATE) != POSTED and not atomic_load(mailbox + ENDING):
        _sem_wait(mailbox + WAKE)
    exchange(mailbox + ASLEEP, 0)


@part
def _take(team, wanted):
    """Take at least the caller's thread, and at most `wanted` threads."""
    while True:
        there = atomic_load(team + FREE_THREADS)
        count = max(1, min(wanted, there))
        if compare_exchange(team + FREE_THREADS, there, there - count):
            return count


@part
def _claim(team, most, work, worth, task):
    """Post a task to at most `most` suitable helpers.

    Suitable helpers are awake, or worth waking up. The task is in the first mailbox that is
    claimed. Returns its address; 0 if no helper is free. Small calls wake a helper only if they
    follow one another, so that it stays awake.
    """
    first, posted, asleep = 0, 0, False
    unwoken = atomic_load(team + UNWOKEN)
    credit = unwoken + work
    for helper in range(atomic_load(team + HELPERS)):
        mailbox = _mailbox(team, helper)
        if posted == most:
            break
        if atomic_load(mailbox + ASLEEP) and credit < worth:
            asleep = True
        elif compare_exchange(mailbox + STATE, FREE, CLAIMED):
            if not first:
                first = mailbox
                for index, value in enumerate(task):
                    put_number(first + RUN + 8 * index, value)
                shares, units = integer_at(first + SHARES), integer_at(first + UNITS)
                for number in range(shares):
                    put_number(first + NEXT + LINE_BYTES * number, units * number // shares)
            posted += 1
            put_number(mailbox + SHARE, posted)
            exchange(mailbox + TASK, first)
            exchange(mailbox + STATE, POSTED)
            if exchange(mailbox + ASLEEP, 0):
                _sem_post(mailbox + WAKE)
                credit -= worth
                unwoken = 0
    exchange(team + UNWOKEN, unwoken + work // _CARRIED if asleep else 0)
    return first


@part
def _gather(team, task):
    """Take a task back from all helpers that it is posted to.

    No helper reads it afterwards.
    """
    # The mailbox with the task is the first: it is set free last.
    for helper in range(atomic_load(team + HELPERS) - 1, -1, -1):
        mailbox = _mailbox(team, helper)
        if atomic_load(mailbox + TASK) == task:
            if not compare_exchange(mailbox + STATE, POSTED, CLAIMED):
                checks = 0
                while atomic_load(mailbox + STATE) != DONE:
                    checks += 1
                    if checks < _CHECKS:
                        _sched_yield()
                    else:
                        _usleep(_BETWEEN_US)
            exchange(mailbox + TASK, 0)
            exchange(mailbox + STATE, FREE)


@njit(types.void(types.int64), nogil=True, cache=True)
def prepare(mailbox):
    """Initialize a mailbox in zeroed memory."""
    _sem_init(mailbox + WAKE, 0, 0)


@njit(types.void(types.int64), nogil=True, cache=True)
def serve(mailbox):
    """Run a helper until it is told to end."""
    scratch = size = 0
    since = _nanoseconds(mailbox)
    while not atomic_load(mailbox + ENDING):
        if compare_exchange(mailbox + STATE, POSTED, RUNNING):
            task = integer_at(mailbox + TASK)
            needed = integer_at(task + SCRATCH) + LINE_BYTES
            if needed > size:
                _free(scratch)
                # Zeroed as in Scratch. If there is no memory, the other threads do all the work.
                scratch = _calloc(needed, 1)
                size = needed if scratch else 0
            if scratch:
                buffers = -(-scratch // LINE_BYTES) * LINE_BYTES
                _work(task, buffers, integer_at(mailbox + SHARE))
            exchange(mailbox + STATE, DONE)
            since = _nanoseconds(mailbox)
        elif _nanoseconds(mailbox) - since < _SPIN_NS:
            _sched_yield()
        else:
            _sleep(mailbox)
            since = _nanoseconds(mailbox)
    _free(scratch)


@njit(types.void(types.int64), nogil=True, cache=True)
def end(team):
    """Tell all helpers to end."""
    for helper in range(atomic_load(team + HELPERS)):
        mailbox = _mailbox(team, helper)
        exchange(mailbox + ENDING, 1)
        _sem_post(mailbox + WAKE)


@njit(types.void(*[types.int64] * 12), nogil=True, cache=True)
def share(team, run, job, x, y, scratch, needed, units, least, wanted, work, worth):
    """Compute all units of a job.

    This thread computes, and free helpers do.

    run      address of the function that computes some units
    scratch  address of this thread's buffers, of needed bytes
    least    fewest units worth taking at once
    wanted   most threads
    work     elements read and written
    worth    work worth waking a helper up for
    """
    count = _take(team, wanted)
    shares = min(count, MOST_SHARES)
    step = max(least, units // (shares * _STEPS))
    task = _claim(team, count - 1, work, worth, (run, job, x, y, needed, units, step, shares))
    if task:
        _work(task, scratch, 0)
        _gather(team, task)
    else:
        call(run, (job, x, y, scratch, 0, units))
    fetch_add(team + FREE_THREADS, count)


_teams: WeakSet[Team] = WeakSet()
_serving: set[threading.Thread] = set()


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
    """Per-thread memory for the buffers between stages."""

    def __init__(self) -> None:
        self._memory = ScratchMemory(0)

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

    most  most threads that compute at once, callers' own included
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._memory = ScratchMemory(TEAM_BYTES + (most - 1) * MAILBOX_BYTES)
        self._memory.put(FREE_THREADS, most)
        self._helpers = 0
        self._lock = threading.Lock()
        _teams.add(self)
        finalize(self, _end, self._memory).atexit = False

    def ready(self, wanted: int) -> int:
        """Start helpers for `wanted` threads, if possible; return the team's address."""
        count = min(wanted, self._most) - 1
        if self._helpers < count:
            with self._lock:
                self._start(count)
        return self._memory.address

    def end(self) -> None:
        """Tell the helpers to end; calls go on without them."""
        _end(self._memory)

    def _start(self, count: int) -> None:
        memory = self._memory
        while self._helpers < count:
            place = TEAM_BYTES + self._helpers * MAILBOX_BYTES
            prepare(memory.address + place)
            thread = threading.Thread(
                target=_serve,
                args=(memory, memory.address + place),
                name=f"gradwire-kernel-{self._helpers}",
                daemon=True,
            )
            try:
                thread.start()
            except RuntimeError:
                return  # too many threads, or the interpreter is shutting down
            self._helpers += 1
            memory.put(HELPERS, self._helpers)


def _serve(_memory: ScratchMemory, mailbox: int) -> None:
    """Run a helper, and keep the memory that it uses alive."""
    thread = threading.current_thread()
    _serving.add(thread)
    with default_float_environment():
        serve(mailbox)
    _serving.discard(thread)


def _end(memory: ScratchMemory) -> None:
    end(memory.address)


@atexit.register
def _end_all() -> None:
    """End all helpers before their code is unloaded."""
    for team in list(_teams):
        team.end()
    for thread in list(_serving):
        thread.join()
