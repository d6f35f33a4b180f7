"""Start of a process before its long imports: signals wait, and grpc writes no raw log lines.

SIGUSR2 would end the process by default. So would SIGTERM, but not in the first process of a
container, for which Linux drops signals without a handler (pid_namespaces(7)): a container would
then run on until it is killed. Both wait until there are handlers; what comes before hold() is all
that a signal can still end, so nothing that takes long is imported here.

grpc writes lines of its own to stderr, in no format of the log and one for each failed connection:
anyone who reaches a port with TLS could fill a disk with them.
"""

from __future__ import annotations

import os
import signal

_HELD = {signal.SIGUSR2, signal.SIGTERM} if os.getpid() == 1 else {signal.SIGUSR2}


def hold() -> None:
    """Let signals wait. Threads that the caller starts hold them for good."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def release() -> None:
    """Let them come, and what has waited, now that there are handlers."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)


def silence() -> None:
    """Have grpc write none, unless GRPC_VERBOSITY asks for some; it reads that when imported."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
