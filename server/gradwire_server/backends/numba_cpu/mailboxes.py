"""Where fields lie in what threads that share work keep in memory: offsets in bytes.

Every field is an int64, but for semaphores and a mask of processors. What different threads write
at once lies on different cache lines.
"""

from __future__ import annotations

LINE_BYTES = 64

# A team, which its mailboxes follow.
FREE_THREADS = 0  # that no call has taken
HELPERS = 8  # that have been started
UNWOKEN = 16  # part of the work of recent calls that no helper was woken for
TEAM_BYTES = 64

# A mailbox of one helper.
STATE = 0  # one of those below
TASK = 8  # address of the task that the mailbox is claimed for, else 0
ASLEEP = 16  # whether the helper sleeps, or is about to
ENDING = 24  # whether it is told to end
THREAD = 32  # its number in the operating system
SHARE = 40  # of the task that it begins with
WAKE = 64  # semaphores: of the helper, a line is enough for any sem_t
FINISHED = 128  # and of who waits for it
PROCESSORS = 192  # mask of those that it may run on
MASK_BYTES = 128
MAILBOX_BYTES = PROCESSORS + MASK_BYTES

FREE, CLAIMED, POSTED, RUNNING, AWAITED, DONE = range(6)

# A task.
RUN = 0  # address of the compiled function that computes units of a job
JOB = 8
X = 16
Y = 24
SCRATCH = 32  # bytes that each thread needs for buffers
UNITS = 40
STEP = 48  # units that are taken at once
SHARES = 56  # that the units are divided into
NEXT = 64  # unit that is taken next, of each share on a line of its own
MOST_SHARES = 16
TASK_BYTES = NEXT + LINE_BYTES * MOST_SHARES
