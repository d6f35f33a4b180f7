"""Helpers: threads that live in compiled code, and calls that share their work with them.

Who calls posts a task to helpers that are free, works on it, too, and then takes back what no
helper has begun: one that wakes up late costs nobody anything. The units of a task are divided into
shares. Each thread begins with a share of its own, so that neighbors in memory stay in one
processor's cache, and goes on with what is left of the others.

A mailbox passes through these states:

    FREE -> CLAIMED -> POSTED -> RUNNING [-> AWAITED] -> DONE -> FREE
                          +----> CLAIMED -> FREE

Callers make FREE CLAIMED, and who did owns the mailbox until it is FREE again; but its helper makes
POSTED RUNNING and, at the end, DONE. So a helper looks at a task only while its caller waits.
"""

from __future__ import annotations

from numba import njit, types

from gradwire_server.backends.numba_cpu import mailboxes as at
from gradwire_server.backends.numba_cpu.atomics import (
    atomic_load,
    atomic_store,
    compare_exchange,
    exchange,
    fetch_add,
    pause,
)
from gradwire_server.backends.numba_cpu.mailboxes import (
    AWAITED,
    CLAIMED,
    DONE,
    FREE,
    POSTED,
    RUNNING,
    TASK_BYTES,
)
from gradwire_server.backends.numba_cpu.simd import call, integer_at, put_number
from gradwire_server.backends.numba_cpu.system import (
    calloc,
    free,
    nanoseconds,
    on_stack,
    sched_getaffinity,
    sched_getcpu,
    sched_setaffinity,
    sched_yield,
    sem_init,
    sem_post,
    sem_wait,
)
from gradwire_server.backends.numba_cpu.vectors import part

# How long a thread looks for what it waits for before it sleeps: as long as it takes to wake one
# up, 50 to 150 us on virtual machines.
_PATIENCE_NS = 100_000
# Looks in a row, between two at the clock.
_LOOKS = 16
# Steps that a share is taken in: who comes late to the last one delays the others by so much.
_STEPS = 16
# One part in so many of the work that no helper was woken for counts when the next call comes.
_DOUBT = 8
_SHARE = types.void(*[types.int64] * 12)


@part
def _mailbox(team, helper):
    return team + at.TEAM_BYTES + helper * at.MAILBOX_BYTES


@part
def _work(task, scratch, begin):
    """Compute one share, and then what is left of the others."""
    run, job = integer_at(task + at.RUN), integer_at(task + at.JOB)
    x, y = integer_at(task + at.X), integer_at(task + at.Y)
    units, step = integer_at(task + at.UNITS), integer_at(task + at.STEP)
    shares = integer_at(task + at.SHARES)
    for turn in range(shares):
        number = (begin + turn) % shares
        stop = units * (number + 1) // shares
        place = task + at.NEXT + at.LINE_BYTES * number
        first = fetch_add(place, step)
        while first < stop:
            call(run, (job, x, y, scratch, first, min(first + step, stop)))
            first = fetch_add(place, step)


@part
def _look(place, wanted):
    """Look for a value for less than a microsecond."""
    for _ in range(_LOOKS):
        if atomic_load(place) == wanted:
            return
        pause()


@part
def _sleep(mailbox):
    """Sleep until there is something to do. Who sees to that looks at ASLEEP afterwards."""
    atomic_store(mailbox + at.ASLEEP, 1)
    if atomic_load(mailbox + at.STATE) != POSTED and not atomic_load(mailbox + at.ENDING):
        sem_wait(mailbox + at.WAKE)
    atomic_store(mailbox + at.ASLEEP, 0)
    # Only where it wakes up is settled by who woke it.
    sched_setaffinity(0, at.MASK_BYTES, mailbox + at.PROCESSORS)


@part
def _await(mailbox):
    """Wait until a helper has done its part."""
    since = nanoseconds()
    while atomic_load(mailbox + at.STATE) != DONE:
        if nanoseconds() - since < _PATIENCE_NS:
            _look(mailbox + at.STATE, DONE)
        elif compare_exchange(mailbox + at.STATE, RUNNING, AWAITED):
            while atomic_load(mailbox + at.STATE) != DONE:
                sem_wait(mailbox + at.FINISHED)


@part
def _take(team, wanted):
    """Take at least the calling thread and at most as many as wanted."""
    while True:
        there = atomic_load(team + at.FREE_THREADS)
        count = max(1, min(wanted, there))
        if compare_exchange(team + at.FREE_THREADS, there, there - count):
            return count


@part
def _divide(task, units, shares, least):
    """Divide the units evenly."""
    shares = min(shares, at.MOST_SHARES)
    put_number(task + at.UNITS, units)
    put_number(task + at.STEP, max(least, units // (shares * _STEPS)))
    put_number(task + at.SHARES, shares)
    for number in range(shares):
        put_number(task + at.NEXT + at.LINE_BYTES * number, units * number // shares)


@part
def _wake(mailbox):
    """Wake a helper up, and not on the processor that its caller needs.

    A virtual machine's idle processors do not look idle to its kernel.
    """
    mask, here = mailbox + at.PROCESSORS, sched_getcpu()
    if here >= 0 and sched_getaffinity(0, at.MASK_BYTES, mask) == 0:
        word = mask + here // 64 * 8
        all_of_them = integer_at(word)
        put_number(word, all_of_them & ~(1 << here % 64))
        sched_setaffinity(integer_at(mailbox + at.THREAD), at.MASK_BYTES, mask)
        put_number(word, all_of_them)
    sem_post(mailbox + at.WAKE)


@part
def _post(team, task, most, work, worth):
    """Post a task to so many helpers at most: those that are awake, or worth waking up.

    Small calls wake a helper only if they follow one another, so that it stays awake.
    """
    posted = 0
    unwoken = atomic_load(team + at.UNWOKEN)
    credit = unwoken + work
    asleep = False
    for helper in range(atomic_load(team + at.HELPERS)):
        mailbox = _mailbox(team, helper)
        if atomic_load(mailbox + at.ASLEEP) and credit < worth:
            asleep = True
        elif compare_exchange(mailbox + at.STATE, FREE, CLAIMED):
            posted += 1
            put_number(mailbox + at.SHARE, posted)
            atomic_store(mailbox + at.TASK, task)
            atomic_store(mailbox + at.STATE, POSTED)
            if exchange(mailbox + at.ASLEEP, 0):
                _wake(mailbox)
                credit -= worth
                unwoken = 0
        if posted == most:
            break
    atomic_store(team + at.UNWOKEN, unwoken + work // _DOUBT if asleep else 0)
    return posted


@part
def _gather(team, task, posted):
    """Take a task back from all helpers that it is posted to; then nobody looks at it any more."""
    helper = 0
    while posted:
        mailbox = _mailbox(team, helper)
        if atomic_load(mailbox + at.TASK) == task:
            if not compare_exchange(mailbox + at.STATE, POSTED, CLAIMED):
                _await(mailbox)
            atomic_store(mailbox + at.TASK, 0)
            atomic_store(mailbox + at.STATE, FREE)
            posted -= 1
        helper += 1


@njit(types.void(types.int64), nogil=True, cache=True)
def prepare(mailbox):
    """Make a mailbox ready, of memory that is full of zeros."""
    sem_init(mailbox + at.WAKE, 0, 0)
    sem_init(mailbox + at.FINISHED, 0, 0)


@njit(types.void(types.int64), nogil=True, cache=True)
def serve(mailbox):
    """Help until told to end, in a thread of its own."""
    scratch = size = 0
    since = nanoseconds()
    while not atomic_load(mailbox + at.ENDING):
        if compare_exchange(mailbox + at.STATE, POSTED, RUNNING):
            task = integer_at(mailbox + at.TASK)
            needed = integer_at(task + at.SCRATCH) + at.LINE_BYTES
            if needed > size:
                free(scratch)
                # Zeros, as in threads.Scratch. Without memory the others do it all.
                scratch = calloc(needed, 1)
                size = needed if scratch else 0
            if scratch:
                buffers = -(-scratch // at.LINE_BYTES) * at.LINE_BYTES
                _work(task, buffers, integer_at(mailbox + at.SHARE))
            if exchange(mailbox + at.STATE, DONE) == AWAITED:
                sem_post(mailbox + at.FINISHED)
            since = nanoseconds()
        elif nanoseconds() - since < _PATIENCE_NS:
            _look(mailbox + at.STATE, POSTED)
            sched_yield()
        else:
            _sleep(mailbox)
            since = nanoseconds()
    free(scratch)


@njit(types.void(types.int64), nogil=True, cache=True)
def end(team):
    """Tell all helpers to end."""
    for helper in range(atomic_load(team + at.HELPERS)):
        mailbox = _mailbox(team, helper)
        atomic_store(mailbox + at.ENDING, 1)
        sem_post(mailbox + at.WAKE)


@njit(_SHARE, nogil=True, cache=True)
def share(team, run, job, x, y, scratch, needed, units, least, wanted, work, worth):
    """Compute all units of a job, on this thread and on helpers that are free.

    run      address of the function that computes some of them
    scratch  address of as many bytes as needed, for this thread's buffers
    least    units that are worth being taken at once
    wanted   threads at most
    work     numbers read and written
    worth    work that is worth waking a helper up for
    """
    count = _take(team, wanted)
    posted = 0
    task = on_stack(TASK_BYTES)
    if count > 1:
        put_number(task + at.RUN, run)
        put_number(task + at.JOB, job)
        put_number(task + at.X, x)
        put_number(task + at.Y, y)
        put_number(task + at.SCRATCH, needed)
        _divide(task, units, count, least)
        posted = _post(team, task, count - 1, work, worth)
    if posted:
        _work(task, scratch, 0)
        _gather(team, task, posted)
    else:
        call(run, (job, x, y, scratch, 0, units))
    fetch_add(team + at.FREE_THREADS, count)
